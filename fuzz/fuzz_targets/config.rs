//! Arbitrary bytes as each of a snapshot's text files in turn: opening it and describing its model must not panic.
#![no_main]

use anemone_checkpoint::Checkpoint;
use anemone_tensor::Bytes;
use libfuzzer_sys::fuzz_target;

/// An embedding of 4 rows of 8, with which a config can be read to its end.
const HEADER: &[u8] = br#"{"model.embed_tokens.weight":{"dtype":"BF16","shape":[4,8],"data_offsets":[0,64]}}"#;
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
    // Half of the inputs are configs, which have the most to read.
    let fuzzed = FILES[usize::from(choice).saturating_sub(128) % FILES.len()];
    let mut files = vec![(fuzzed.to_owned(), Bytes::from(content.to_vec()))];
    if fuzzed != "config.json" {
        files.push(("config.json".to_owned(), Bytes::from_static(b"{}")));
    }
    let weights = [&(HEADER.len() as u64).to_le_bytes(), HEADER, &[0; 64]].concat();
    files.push(("model.safetensors".to_owned(), Bytes::from(weights)));
    if let Ok(checkpoint) = Checkpoint::from_bytes("fuzz", files) {
        let _ = (checkpoint.eos_token_ids(), checkpoint.chat_template(), checkpoint.tokenizer_json().is_ok());
        let _ = anemone_models::load(checkpoint.config(), &*checkpoint.weights());
    }
});
