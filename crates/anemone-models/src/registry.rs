use anemone_checkpoint::Weights;
use serde_json::{Map, Value};

use crate::parts::Names;
use crate::{Config, Error, Stack, check, lfm2, lfm2_moe, lfm3};

type Describe = fn(&Config<'_>, &Names<'_>) -> Result<Stack, Error>;

/// Supported models: `model_type`, accepted `architectures`, and the file that describes them.
const MODELS: &[(&str, &[&str], Describe)] = &[
    ("lfm2", &["Lfm2ForCausalLM", "LFM2ForCausalLM"], lfm2::stack),
    ("lfm2_moe", &["Lfm2MoeForCausalLM"], lfm2_moe::stack),
    ("lfm3", &["Lfm3ForCausalLM"], lfm3::stack),
];

/// The supported `model_type` names.
pub fn supported() -> impl Iterator<Item = &'static str> {
    MODELS.iter().map(|(name, _, _)| *name)
}

/// Describes the model of a checkpoint and checks that its weights are all there, with the right shapes.
pub fn load(config: &Map<String, Value>, weights: &dyn Weights) -> Result<Stack, Error> {
    let config = Config::new(config);
    let describe = find(&config)?;
    let names = Names::find(weights)?;
    let stack = describe(&config, &names)?;
    check(&stack, weights, names.prefix())?;
    Ok(stack)
}

fn find(config: &Config<'_>) -> Result<Describe, Error> {
    let unsupported = |found: String| {
        let supported = MODELS.iter().flat_map(|(t, a, _)| std::iter::once(*t).chain(a.iter().copied()));
        Error::Unsupported { found, supported: supported.collect::<Vec<_>>().join(", ") }
    };
    let architectures = config.texts("architectures")?.unwrap_or_default();
    let model_type = config.text("model_type")?;
    if let Some(&name) = architectures.first() {
        let model = MODELS.iter().find(|(_, accepted, _)| accepted.contains(&name));
        return model.map(|m| m.2).ok_or_else(|| unsupported(format!("architecture `{name}`")));
    }
    let Some(name) = model_type else {
        return Err(unsupported("a config without `architectures` and `model_type`".into()));
    };
    let model = MODELS.iter().find(|(model_type, _, _)| *model_type == name);
    model.map(|m| m.2).ok_or_else(|| unsupported(format!("model_type `{name}`")))
}
