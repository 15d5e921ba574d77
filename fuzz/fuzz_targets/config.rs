//! Arbitrary bytes as each of a snapshot's text files in turn: opening it must not panic.
#![no_main]

use anemone_checkpoint::Checkpoint;
use anemone_tensor::Bytes;
use libfuzzer_sys::fuzz_target;

/// A header of no tensors.
const WEIGHTS: &[u8] = b"\x08\0\0\0\0\0\0\0{}      ";
const FILES: [&str; 7] = [
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "model.safetensors.index.json",
    "tokenizer.json",
];

fuzz_target!(|data: &[u8]| {
    let Some((&choice, content)) = data.split_first() else { return };
    let fuzzed = FILES[usize::from(choice) % FILES.len()];
    let mut files = vec![(fuzzed.to_owned(), Bytes::from(content.to_vec()))];
    if fuzzed != "config.json" {
        files.push(("config.json".to_owned(), Bytes::from_static(b"{}")));
    }
    files.push(("model.safetensors".to_owned(), Bytes::from_static(WEIGHTS)));
    if let Ok(checkpoint) = Checkpoint::from_bytes("fuzz", files) {
        let _ = (checkpoint.eos_token_ids(), checkpoint.chat_template(), checkpoint.tokenizer_json().is_ok());
    }
});
