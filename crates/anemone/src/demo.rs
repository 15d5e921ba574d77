pub(crate) mod decision;

use anemone_checkpoint::{Checkpoint, Error};

/// Name of the built-in model.
pub(crate) const NAME: &str = "stories-lfm2";

/// What the built-in model is asked when there is no prompt.
pub(crate) const PROMPT: &str = "tell me a story about a little fox.";

/// Ids of "once upon a time, there was a little fox".
pub(crate) const TEST_PROMPT: [u32; 11] = [1, 416, 440, 272, 391, 25, 385, 294, 272, 384, 1368];

/// How the reference continues [`TEST_PROMPT`], always taking the best token.
pub(crate) const TEST_ANSWER: [u32; 16] =
    [27, 283, 294, 396, 1044, 280, 516, 281, 852, 27, 443, 360, 25, 283, 606, 281];

/// Aligned as a mapped file would be, so that weights are read in place.
#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

static WEIGHTS: &Aligned<[u8]> = &Aligned(*include_bytes!("../assets/stories-lfm2/model.safetensors"));

macro_rules! file {
    ($name:literal) => {
        ($name, include_bytes!(concat!("../assets/stories-lfm2/", $name)) as &[u8])
    };
}

/// SHA-256 of the built-in model's weights and config, by file name.
pub(crate) fn sha256() -> std::collections::BTreeMap<String, String> {
    let config: &[u8] = include_bytes!("../assets/stories-lfm2/config.json");
    let files = [("config.json", config), ("model.safetensors", &WEIGHTS.0[..])];
    files.map(|(name, bytes)| (name.to_string(), anemone_bundle::sha256(bytes))).into()
}

/// The built-in model.
pub(crate) fn open() -> Result<Checkpoint, Error> {
    let files = [
        file!("config.json"),
        file!("generation_config.json"),
        file!("tokenizer.json"),
        file!("tokenizer_config.json"),
        file!("chat_template.jinja"),
        ("model.safetensors", &WEIGHTS.0),
    ];
    Checkpoint::from_static(NAME, &files)
}
