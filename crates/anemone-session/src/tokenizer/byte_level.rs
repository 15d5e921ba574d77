/// The bytes of every token of a byte-level vocabulary, by id.
#[derive(Debug)]
pub(crate) struct TokenBytes {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl TokenBytes {
    pub(crate) fn new(vocab_size: usize, token: impl Fn(u32) -> Option<String>) -> Self {
        let alphabet = Alphabet::new();
        let mut table = Self { bytes: Vec::new(), ends: Vec::with_capacity(vocab_size) };
        for id in 0..vocab_size {
            if let Some(token) = token(id as u32) {
                alphabet.decode(&token, &mut table.bytes);
            }
            table.ends.push(table.bytes.len());
        }
        table
    }

    /// The bytes of a token, empty for an id without a string.
    pub(crate) fn get(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else { return &[] };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start..end]
    }
}

/// The one-to-one spelling of the 256 bytes as printable characters that byte-level BPE files use.
struct Alphabet {
    byte_of: Vec<Option<u8>>,
}

impl Alphabet {
    fn new() -> Self {
        let mut byte_of = vec![None; 512];
        let mut next = 256;
        for byte in 0..=u8::MAX {
            let itself = matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
            let code = if itself { usize::from(byte) } else { next };
            next += usize::from(!itself);
            byte_of[code] = Some(byte);
        }
        Self { byte_of }
    }

    /// Appends the bytes a token stands for; a token with a character outside the alphabet stands for itself.
    fn decode(&self, token: &str, out: &mut Vec<u8>) {
        let start = out.len();
        for c in token.chars() {
            let Some(byte) = self.byte_of.get(c as usize).copied().flatten() else {
                out.truncate(start);
                out.extend_from_slice(token.as_bytes());
                return;
            };
            out.push(byte);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alphabet_is_a_bijection_with_known_points() {
        let alphabet = Alphabet::new();
        let mut bytes: Vec<u8> = alphabet.byte_of.iter().copied().flatten().collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
        for (c, byte) in [('Ġ', b' '), ('Ċ', b'\n'), ('ĉ', b'\t'), ('A', b'A'), ('Ń', 0xad), ('é', 0xe9)]
        {
            assert_eq!(alphabet.byte_of[c as usize], Some(byte), "{c}");
        }
    }

    #[test]
    fn table_answers_any_id() {
        let names = ["Ġa", "日", "Ã©"];
        let table = TokenBytes::new(4, |id| names.get(id as usize).map(ToString::to_string));
        assert_eq!(table.get(0), b" a");
        assert_eq!(table.get(1), "日".as_bytes());
        assert_eq!(table.get(2), "é".as_bytes());
        assert_eq!(table.get(3), b"");
        assert_eq!(table.get(u32::MAX), b"");
    }
}
