//! Arbitrary bytes as a GGUF file: no panic, and whatever names and shapes say, reads stay within the file.
#![no_main]

use anemone_checkpoint::Checkpoint;
use anemone_checkpoint::gguf::GgufFile;
use anemone_tensor::Bytes;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let bytes = Bytes::from(data.to_vec());
    if let Ok(file) = GgufFile::parse("fuzz.gguf", &bytes) {
        let metadata = file.metadata();
        for key in metadata.keys() {
            let _ = (metadata.get(key), metadata.texts(key), metadata.ints(key));
        }
    }
    // Bounds of the file hold whatever the names and shapes say.
    let Ok(checkpoint) = Checkpoint::from_gguf("fuzz.gguf", &bytes) else { return };
    let weights = checkpoint.weights();
    for name in weights.names() {
        if let Ok(tensor) = weights.tensor(&name) {
            let _ = tensor.to_f32();
        }
        let _ = weights.blocks(&name);
    }
    let _ = anemone_models::load(checkpoint.config(), &*weights);
});
