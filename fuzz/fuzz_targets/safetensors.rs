//! Arbitrary bytes as a safetensors file: no panic, and every tensor of a file that opens lies within it.
#![no_main]

use anemone_checkpoint::{parse_safetensors, scan_non_finite};
use anemone_tensor::Bytes;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(file) = parse_safetensors(Bytes::from(data.to_vec())) else { return };
    for stored in file.tensors() {
        assert!(stored.start <= stored.end && stored.end <= data.len());
        if let Ok(tensor) = file.tensor(&stored.name) {
            assert_eq!(**tensor.bytes(), data[stored.start..stored.end]);
            let _ = scan_non_finite(&tensor);
        }
    }
});
