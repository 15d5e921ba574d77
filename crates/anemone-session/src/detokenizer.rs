use crate::{Result, Tokenizer};

/// Decoders that hold back unfinished characters do so for at most this many tokens.
const MAX_HELD: usize = 64;

/// Turns a stream of ids into a stream of text.
///
/// A character is given once all its bytes have come; the pieces and the final [`flush`](Self::flush) joined are
/// [`Tokenizer::decode`] of all the ids with the same `skip_special`. The cost per token does not grow.
#[derive(Debug)]
pub struct Detokenizer<'t> {
    tokenizer: &'t Tokenizer,
    skip_special: bool,
    kept: Vec<u32>,
    mode: Mode,
    piece: String,
}

#[derive(Debug)]
enum Mode {
    /// Byte-level: the bytes of a character that is not complete.
    Bytes(Vec<u8>),
    /// Other decoders depend on neighbours: the ids behind the last piece and the ids since.
    Window(Window),
}

#[derive(Debug, Default)]
struct Window {
    ids: Vec<u32>,
    /// How many of `ids` are given already, and their text.
    given: usize,
    given_text: String,
}

impl<'t> Detokenizer<'t> {
    /// Starts a stream; `skip_special` leaves special tokens out.
    pub fn new(tokenizer: &'t Tokenizer, skip_special: bool) -> Self {
        let mode = match tokenizer.token_bytes() {
            Some(_) => Mode::Bytes(Vec::new()),
            None => Mode::Window(Window::default()),
        };
        Self { tokenizer, skip_special, kept: Vec::new(), mode, piece: String::new() }
    }

    /// Keeps these special tokens in the text all the same.
    #[must_use]
    pub fn keeping(mut self, kept: &[u32]) -> Self {
        self.kept = kept.to_vec();
        self
    }

    /// Takes the next id and gives the text it completes, if any.
    pub fn push(&mut self, id: u32) -> Result<Option<&str>> {
        self.piece.clear();
        if self.skip_special && self.tokenizer.is_special(id) && !self.kept.contains(&id) {
            return Ok(None);
        }
        match &mut self.mode {
            Mode::Bytes(pending) => {
                if let Some(table) = self.tokenizer.token_bytes() {
                    pending.extend_from_slice(table.get(id));
                    take_complete(pending, &mut self.piece);
                }
            }
            Mode::Window(window) => window.push(self.tokenizer, id, &mut self.piece)?,
        }
        Ok((!self.piece.is_empty()).then_some(&*self.piece))
    }

    /// Ends the stream and gives what was held back, an incomplete character as U+FFFD; a new stream begins.
    pub fn flush(&mut self) -> Result<Option<&str>> {
        self.piece.clear();
        match &mut self.mode {
            Mode::Bytes(pending) => {
                self.piece.push_str(&String::from_utf8_lossy(pending));
                pending.clear();
            }
            Mode::Window(window) => {
                let text = self.tokenizer.decode(&window.ids, false)?;
                self.piece.push_str(after(&text, &window.given_text));
                *window = Window::default();
            }
        }
        Ok((!self.piece.is_empty()).then_some(&*self.piece))
    }
}

impl Window {
    fn push(&mut self, tokenizer: &Tokenizer, id: u32, piece: &mut String) -> Result<()> {
        let Some(token) = tokenizer.id_to_token(id) else { return Ok(()) };
        self.ids.push(id);
        // A run of byte tokens is only known to be text, or not, when it ends.
        if tokenizer.has_byte_fallback() && is_byte_token(&token) {
            return Ok(());
        }
        let text = tokenizer.decode(&self.ids, false)?;
        let unfinished = text.ends_with(char::REPLACEMENT_CHARACTER) && !token.contains('\u{fffd}');
        if unfinished && self.ids.len() - self.given < MAX_HELD {
            return Ok(());
        }
        let new = after(&text, &self.given_text);
        if new.is_empty() {
            return Ok(());
        }
        piece.push_str(new);
        self.ids.drain(..self.given);
        self.given = self.ids.len();
        self.given_text = tokenizer.decode(&self.ids, false)?;
        Ok(())
    }
}

/// `text` behind its longest common beginning with `given`.
fn after<'a>(text: &'a str, given: &str) -> &'a str {
    text.strip_prefix(given).unwrap_or_else(|| {
        let same = text.char_indices().zip(given.chars()).find(|((_, a), b)| a != b);
        same.map_or("", |((at, _), _)| &text[at..])
    })
}

fn is_byte_token(token: &str) -> bool {
    let hex = token.strip_prefix("<0x").and_then(|t| t.strip_suffix('>'));
    hex.is_some_and(|h| h.len() == 2 && u8::from_str_radix(h, 16).is_ok())
}

/// Moves the complete characters of `pending` to `out`, and invalid bytes as U+FFFD.
fn take_complete(pending: &mut Vec<u8>, out: &mut String) {
    let mut done = 0;
    while done < pending.len() {
        match str::from_utf8(&pending[done..]) {
            Ok(text) => {
                out.push_str(text);
                done = pending.len();
            }
            Err(e) => {
                let valid = e.valid_up_to();
                out.push_str(&String::from_utf8_lossy(&pending[done..done + valid]));
                done += valid;
                let Some(invalid) = e.error_len() else { break };
                out.push(char::REPLACEMENT_CHARACTER);
                done += invalid;
            }
        }
    }
    pending.drain(..done);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokenizer(decoder: &str, vocab: &[&str]) -> Tokenizer {
        let vocab: serde_json::Map<_, _> =
            vocab.iter().enumerate().map(|(i, t)| ((*t).into(), i.into())).collect();
        let json = format!(
            r#"{{"version": "1.0", "added_tokens": [{{"id": 0, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}}],
            "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": {decoder},
            "model": {{"type": "BPE", "vocab": {}, "merges": []}}}}"#,
            serde_json::Value::Object(vocab)
        );
        Tokenizer::from_bytes(json.as_bytes(), None).unwrap()
    }

    fn pieces(tokenizer: &Tokenizer, ids: &[u32], skip: bool) -> Vec<String> {
        let mut stream = Detokenizer::new(tokenizer, skip);
        let mut pieces = Vec::new();
        for &id in ids {
            pieces.extend(stream.push(id).unwrap().map(str::to_owned));
        }
        pieces.extend(stream.flush().unwrap().map(str::to_owned));
        assert_eq!(pieces.concat(), tokenizer.decode(ids, skip).unwrap(), "{ids:?}");
        pieces
    }

    const BYTE_LEVEL: &str =
        r#"{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}"#;

    #[test]
    fn characters_wait_for_their_bytes() {
        // é is c3 a9, 日 is e6 97 a5; spelled in the byte-level alphabet.
        let t = tokenizer(BYTE_LEVEL, &["<s>", "Ã", "©", "æ", "Ĺ", "¥", "a"]);
        assert_eq!(pieces(&t, &[6, 1, 2, 6], true), ["a", "é", "a"]);
        assert_eq!(pieces(&t, &[3, 4, 5], true), ["日"]);
        assert_eq!(pieces(&t, &[3, 4], true), ["\u{fffd}"]);
        assert_eq!(pieces(&t, &[3, 4, 6], true), ["\u{fffd}a"]);
        assert_eq!(pieces(&t, &[3, 3, 4, 5, 2], true), ["\u{fffd}", "日", "\u{fffd}"]);
        assert_eq!(pieces(&t, &[0, 6, 99, 6], false), ["<s>", "a", "a"]);
        let mut keeping = Detokenizer::new(&t, true).keeping(&[0]);
        assert_eq!(keeping.push(0).unwrap(), Some("<s>"));
        // A skipped special token inside a character does not break it.
        assert_eq!(pieces(&t, &[1, 0, 2], true), ["é"]);
    }

    #[test]
    fn byte_fallback_runs_wait_for_their_end() {
        let decoder = r#"{"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}"#;
        let t = tokenizer(decoder, &["<s>", "▁a", "<0xC3>", "<0xA9>", "b", "▁"]);
        assert_eq!(pieces(&t, &[1, 2, 3, 4], true), ["a", "éb"]);
        assert_eq!(pieces(&t, &[1, 2, 3], true), ["a", "é"]);
        assert_eq!(pieces(&t, &[2, 4], true), ["\u{fffd}b"]);
        assert_eq!(pieces(&t, &[2, 3, 2, 1], true).concat(), "\u{fffd}\u{fffd}\u{fffd} a");
        assert_eq!(pieces(&t, &[0, 1, 0, 1, 5, 1, 0], true), ["a", " a", " ", " a"]);
        assert_eq!(pieces(&t, &[5, 5, 1, 0, 1], false).concat(), "  a<s> a");
        for n in 0..6u32.pow(5) {
            let ids: Vec<u32> = (0..5).map(|i| n / 6u32.pow(i) % 6).collect();
            pieces(&t, &ids, n % 2 == 0);
        }
    }

    #[test]
    fn word_pieces_join() {
        let decoder = r###"{"type": "WordPiece", "prefix": "##", "cleanup": true}"###;
        let t = tokenizer(decoder, &["<s>", "play", "##ing", ".", "[UNK]"]);
        assert_eq!(pieces(&t, &[1, 2, 3, 1], true), ["play", "ing", ".", " play"]);
    }

    #[test]
    fn long_streams_stay_linear() {
        let t = tokenizer(BYTE_LEVEL, &["<s>", "Ã", "©"]);
        let mut stream = Detokenizer::new(&t, true);
        for _ in 0..100_000 {
            stream.push(1).unwrap();
            if let Mode::Bytes(pending) = &stream.mode {
                assert!(pending.len() < 4);
            }
        }
    }
}
