use anemone_checkpoint::{DecisionCheckpoint, Error};

use super::Aligned;

/// Name of the built-in decision model.
pub(crate) const NAME: &str = "laya-demo";

/// What the built-in decision model is asked when there is no state.
pub(crate) const STATE: &str = "please notify my bank that i am going to africa next tuesday";

/// The questions about it: kinds the model was trained on.
pub(crate) const QUESTIONS: &str = r#"{
    "intent": {"type": "choice", "instructions": "What does the user want?",
        "criteria": ["travel notification", "report a lost card", "directions", "order a cheque book"]},
    "abroad": {"type": "noul", "instructions": "The user's intent is travel notification."}}"#;

static WEIGHTS: &Aligned<[u8]> = &Aligned(*include_bytes!("../../assets/laya-demo/model.safetensors"));

macro_rules! file {
    ($name:literal) => {
        ($name, include_bytes!(concat!("../../assets/laya-demo/", $name)) as &[u8])
    };
}

/// SHA-256 of the built-in decision model's weights and configs, by file name.
pub(crate) fn sha256() -> std::collections::BTreeMap<String, String> {
    let files = [
        file!("rl_agent_config.json"),
        file!("encoder/config.json"),
        file!("tokenizer/tokenizer.json"),
        file!("tokenizer/tokenizer_config.json"),
        ("model.safetensors", &WEIGHTS.0),
    ];
    files.map(|(name, bytes)| (name.to_owned(), anemone_bundle::sha256(bytes))).into()
}

/// The built-in decision model.
pub(crate) fn open() -> Result<DecisionCheckpoint, Error> {
    let files = [
        file!("rl_agent_config.json"),
        file!("encoder/config.json"),
        file!("tokenizer/tokenizer.json"),
        file!("tokenizer/tokenizer_config.json"),
        ("model.safetensors", &WEIGHTS.0),
    ];
    DecisionCheckpoint::from_static(NAME, &files)
}
