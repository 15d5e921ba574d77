use anemone_checkpoint::{Checkpoint, parse_safetensors};
use anemone_tensor::Bytes;
use proptest::prelude::*;

use crate::support::{CONFIG, weights};

/// Every tensor of a file that parses must be readable and inside it.
fn check(bytes: Vec<u8>) {
    let length = bytes.len();
    let Ok(file) = parse_safetensors(Bytes::from(bytes)) else { return };
    for stored in file.tensors() {
        assert!(stored.start <= stored.end && stored.end <= length, "{stored:?}");
        if let Ok(tensor) = file.tensor(&stored.name) {
            assert_eq!(tensor.bytes().len(), stored.end - stored.start);
            assert_eq!(
                Some(tensor.bytes().len()),
                tensor.shape().checked_numel().map(|n| n * tensor.dtype().size())
            );
        }
    }
}

/// Bytes that matter to the header's grammar are tried more often than chance would.
fn byte() -> impl Strategy<Value = u8> {
    prop_oneof![any::<u8>(), proptest::sample::select(b"0123456789[]{}\",:-.eFUBI".to_vec())]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutated_files_never_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), byte()), 1..6),
        cut in prop::option::weighted(0.2, any::<prop::sample::Index>()),
    ) {
        let mut bytes = weights(&[("model.a", 6), ("model.b", 3), ("c", 0)]);
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        check(bytes);
    }

    #[test]
    fn arbitrary_json_never_panics(config in "\\PC{0,60}", index in "\\PC{0,60}") {
        let bytes = |text: String| Bytes::from(text.into_bytes());
        let files = vec![
            ("config.json".to_owned(), bytes(config)),
            ("model.safetensors.index.json".to_owned(), bytes(index)),
            ("model.safetensors".to_owned(), Bytes::from(weights(&[("a", 1)]))),
        ];
        let _ = Checkpoint::from_bytes("m", files);
    }
}

#[test]
fn every_prefix_of_a_file_is_refused() {
    let bytes = weights(&[("a", 3), ("b", 2)]);
    for cut in 0..bytes.len() {
        assert!(parse_safetensors(Bytes::from(bytes[..cut].to_vec())).is_err(), "{cut}");
    }
    let files = vec![
        ("config.json".to_owned(), Bytes::from(CONFIG.as_bytes().to_vec())),
        ("model.safetensors".to_owned(), Bytes::from(bytes)),
    ];
    assert!(Checkpoint::from_bytes("m", files).is_ok());
}
