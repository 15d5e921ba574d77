use std::fmt;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use subtle::ConstantTimeEq;

use crate::{Error, Result};

/// The key clients show as `Authorization: Bearer KEY`, or as `x-api-key: KEY`.
#[derive(Clone)]
pub struct Key(Vec<u8>);

impl Key {
    /// A key of printable ASCII without spaces, at least one character.
    pub fn new(text: &str) -> Result<Self> {
        if text.is_empty() {
            return Err(Error::Key("is empty"));
        }
        if !text.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(Error::Key("has a space or a character that no header carries"));
        }
        Ok(Self(text.as_bytes().to_vec()))
    }

    /// Whether a request shows it. The time it takes says nothing about how much of it is right.
    pub(crate) fn is_shown(&self, headers: &HeaderMap) -> bool {
        if let Some(given) = headers.get("x-api-key") {
            return bool::from(given.as_bytes().ct_eq(&self.0));
        }
        let Some(value) = headers.get(AUTHORIZATION) else { return false };
        let Some((scheme, given)) = value.as_bytes().split_at_checked(b"Bearer ".len()) else { return false };
        scheme.eq_ignore_ascii_case(b"Bearer ") && bool::from(given.trim_ascii().ct_eq(&self.0))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_key_counts() {
        let key = Key::new("sesame").unwrap();
        let shown = |value: &[u8]| {
            let value = axum::http::HeaderValue::from_bytes(value).unwrap();
            key.is_shown(&HeaderMap::from_iter([(AUTHORIZATION, value)]))
        };
        assert!(shown(b"Bearer sesame") && shown(b"bearer  sesame "));
        for wrong in [
            &b"Bearer sesam"[..],
            b"Bearer sesame1",
            b"Basic sesame",
            b"Bearer",
            b"",
            b"Bearer \xff",
            b"sesame",
        ] {
            assert!(!shown(wrong), "{wrong:?}");
        }
        assert!(!key.is_shown(&HeaderMap::new()));
        let own = |value: &'static str| {
            key.is_shown(&HeaderMap::from_iter([("x-api-key".parse().unwrap(), value.parse().unwrap())]))
        };
        assert!(own("sesame") && !own("sesam") && !own("sesame1"));
        assert!(Key::new("").is_err() && Key::new("a b").is_err() && Key::new("é").is_err());
        assert_eq!(format!("{key:?}"), "Key(..)");
    }
}
