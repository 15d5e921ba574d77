use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use llguidance::ParserFactory;
use llguidance::toktrie::{INVALID_TOKEN, TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};

use crate::{Error, Result, Tokenizer};

/// Longest token a text may be matched with; longer ones are never allowed.
const LONGEST_TOKEN: usize = 512;
/// Most ids the matching library's trie can hold.
const MOST_IDS: usize = 1 << 20;

/// A tokenizer's tokens as constraints match them; made once for a model, and cheap to clone.
#[derive(Clone)]
pub struct ConstraintVocabulary {
    pub(super) factory: Arc<ParserFactory>,
    pub(super) tokens: Arc<Tokens>,
}

/// What is known of the tokens beside their trie.
pub(super) struct Tokens {
    env: TokEnv,
    /// Ids of white space alone.
    pub(super) space: Vec<u32>,
    /// Ids in which something but white space follows a `>`.
    pub(super) closing: Vec<u32>,
}

impl ConstraintVocabulary {
    /// Lays out the tokens; `stop_ids` are what may end a text, see [`Tokenizer::stop_ids`].
    ///
    /// Errors for tokenizers whose tokens do not stand for bytes, and for more than a million tokens.
    pub fn new(tokenizer: &Tokenizer, stop_ids: &[u32]) -> Result<Self> {
        let size = tokenizer.vocab_size();
        if size > MOST_IDS {
            return Err(error(format!("the tokenizer has {size} ids and at most {MOST_IDS} are supported")));
        }
        let words = (0..size as u32).map(|id| word(tokenizer, id)).collect::<Result<Vec<_>>>()?;
        let stops: Vec<u32> = stop_ids.iter().copied().filter(|&id| (id as usize) < size).collect();
        let info = TokRxInfo::new(size as u32, stops.first().copied().unwrap_or(INVALID_TOKEN));
        let failed = |_| error("the tokens cannot be laid out as a trie".into());
        let trie = catch_unwind(|| {
            let trie = TokTrie::from(&info, &words);
            if stops.is_empty() { trie } else { trie.with_eos_tokens(&stops) }
        })
        .map_err(failed)?;
        let special = tokenizer.special_ids().iter().filter_map(|&id| tokenizer.id_to_token(id)).collect();
        let env: TokEnv = Arc::new(Env { trie, text: tokenizer.text_only(), special });
        let factory = catch_unwind(AssertUnwindSafe(|| ParserFactory::new_simple(&env)))
            .map_err(failed)?
            .map_err(|e| error(e.to_string()))?;
        let mut factory = factory;
        factory.quiet();
        super::grammar::limit(factory.limits_mut());
        let ids = |keep: fn(&[u8]) -> bool| {
            (0..size as u32).filter(|&id| keep(&words[id as usize])).collect::<Vec<u32>>()
        };
        let space = ids(|word| !word.is_empty() && word.iter().all(u8::is_ascii_whitespace));
        let closing = ids(|word| {
            let end = word.iter().position(|&b| b == b'>');
            end.is_some_and(|at| !word[at + 1..].iter().all(u8::is_ascii_whitespace))
        });
        Ok(Self { factory: Arc::new(factory), tokens: Arc::new(Tokens { env, space, closing }) })
    }

    /// How many ids masks are over.
    pub fn vocab_size(&self) -> usize {
        self.tokens.trie().vocab_size()
    }
}

impl fmt::Debug for ConstraintVocabulary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConstraintVocabulary").field("vocab_size", &self.vocab_size()).finish_non_exhaustive()
    }
}

impl Tokens {
    pub(super) fn trie(&self) -> &TokTrie {
        self.env.tok_trie()
    }

    /// The text of a token, that of a special token included.
    pub(super) fn bytes(&self, id: u32) -> &[u8] {
        if id as usize >= self.trie().vocab_size() {
            return &[];
        }
        let bytes = self.trie().token(id);
        bytes.strip_prefix(&[TokTrie::SPECIAL_TOKEN_MARKER]).filter(|name| !name.is_empty()).unwrap_or(bytes)
    }

    pub(super) fn is_stop(&self, id: u32) -> bool {
        self.stops().any(|stop| stop == id)
    }

    /// Ids that end a text.
    pub(super) fn stops(&self) -> impl Iterator<Item = u32> {
        self.trie().eos_tokens().iter().copied()
    }

    /// Whether a mark is one special token, which grammars name in another way than text.
    pub(super) fn is_special(&self, mark: &str) -> bool {
        self.trie().get_special_token(mark).is_some()
    }
}

fn error(problem: String) -> Error {
    Error::Grammar { what: "constraint", problem }
}

/// The bytes a token is matched as; special tokens are marked, so that no text matches them.
fn word(tokenizer: &Tokenizer, id: u32) -> Result<Vec<u8>> {
    let Some(text) = tokenizer.id_to_token(id) else { return Ok(Vec::new()) };
    let bytes = if tokenizer.is_special(id) {
        [&[TokTrie::SPECIAL_TOKEN_MARKER], text.as_bytes()].concat()
    } else if let Some(table) = tokenizer.token_bytes() {
        table.get(id).to_vec()
    } else if tokenizer.has_byte_fallback() {
        let hex = text.strip_prefix("<0x").and_then(|t| t.strip_suffix('>'));
        match hex.and_then(|h| u8::from_str_radix(h, 16).ok()) {
            Some(byte) => vec![byte],
            None => text.replace('\u{2581}', " ").into_bytes(),
        }
    } else {
        let problem = "this tokenizer's tokens do not stand for bytes; only byte-level tokenizers and those with byte \
                       fallback can be constrained";
        return Err(error(problem.into()));
    };
    Ok(if bytes.len() > LONGEST_TOKEN { Vec::new() } else { bytes })
}

struct Env {
    trie: TokTrie,
    text: Arc<tokenizers::Tokenizer>,
    special: Vec<String>,
}

impl TokenizerEnv for Env {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.trie.tokenize_with_greedy_fallback(bytes, |text| {
            // The name of a special token in a text is no special token.
            if self.special.iter().any(|name| text.contains(name.as_str())) {
                return self.trie.greedy_tokenize(text.as_bytes());
            }
            match self.text.encode_fast(text, false) {
                Ok(encoding) => encoding.get_ids().to_vec(),
                Err(_) => self.trie.greedy_tokenize(text.as_bytes()),
            }
        })
    }
}
