mod store;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anemone_models::Stack;
use anemone_session::{EMBEDDING, Engine as _, FINAL_NORM, Traced as _};
use anemone_tensor::argmax;
use anyhow::{Context, Result, anyhow, ensure};
use clap::ArgGroup;
use serde_json::{Map, Value, json};

use crate::args::{BundleArg, EngineArgs, ModelArgs};
use crate::cli::Shell;
use crate::engine::Engine;
use crate::model::{self, Loaded};
use crate::{files, output};
use store::Store;

/// Tokens run at once, which bounds the logits held.
const PART: usize = 256;
/// Rows of the table.
const SHOWN: usize = 10;

/// Run tokens through the model and show raw logits and hidden states
///
/// JSON has the keys `tokens`, `last_logits`, `argmax` (one id per position), `greedy_ids` with --greedy, and `layers`
/// with --taps: the last position's residual stream by module path.
#[derive(Debug, clap::Args)]
#[command(
    group = ArgGroup::new("input").required(true).args(["tokens", "text"]),
    after_help = "Example:\n  anemone forward --text 'once upon a time'\n  \
                        anemone forward --model ./LFM2-350M --tokens 1,5,9 --exact --taps --json --out states.safetensors")]
pub(crate) struct Args {
    /// Token ids, separated by commas
    #[arg(long, value_name = "IDS", allow_hyphen_values = true)]
    tokens: Option<String>,
    /// Text to encode
    #[arg(long, value_name = "TEXT")]
    text: Option<String>,
    /// Encode the text without the special tokens the tokenizer adds
    #[arg(long, requires = "text")]
    no_special: bool,
    /// Continue with the N most likely tokens, one after the other
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        hide_default_value = true,
        allow_negative_numbers = true
    )]
    greedy: usize,
    /// Show the residual stream after the embedding, each layer and the final norm
    #[arg(long)]
    taps: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Write all positions as f32 safetensors: `logits` [n, vocab] and, with --taps, each module path [n, hidden]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    bundle: BundleArg,
    #[command(flatten)]
    engine: EngineArgs,
}

/// What a pass over the tokens gave.
#[derive(Debug, Default)]
struct Pass {
    argmax: Vec<u32>,
    last_logits: Vec<f32>,
    greedy: Vec<u32>,
    /// Module path and last position's values, in the order of the pass.
    layers: Vec<(String, Vec<f32>)>,
}

pub(crate) fn run(args: &Args, shell: &Shell) -> Result<ExitCode> {
    let given = args.tokens.as_deref().map(parse_tokens).transpose()?;
    let needed = given.as_ref().map_or(0, Vec::len).saturating_add(args.greedy);
    let mut loaded =
        Loaded::new(&args.model.or_bundle(&args.bundle)?, &args.engine, needed, args.taps, shell)?;
    let tokens = match (given, &args.text) {
        (Some(tokens), _) => tokens,
        (None, Some(text)) => model::tokenizer(&loaded.checkpoint)?.encode(text, !args.no_special)?,
        (None, None) => Vec::new(),
    };
    check(args, &tokens, &loaded)?;
    let pass = match &args.out {
        None => forward(args, &mut loaded, &tokens, None)?,
        Some(path) => {
            let mut pass = Pass::default();
            files::write_whole("--out", path, |file| {
                let shapes = shapes(loaded.stack(), tokens.len(), args.taps);
                let mut store = Store::new(file, &shapes)?;
                pass = forward(args, &mut loaded, &tokens, Some(&mut store))?;
                store.finish()
            })?;
            pass
        }
    };
    if args.json {
        output::json(&report(args, &tokens, &pass))?;
    } else if args.out.is_none() {
        output::data(&table(&loaded, &tokens, &pass))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn parse_tokens(text: &str) -> Result<Vec<u32>> {
    let ids = text.split(',').enumerate().map(|(i, id)| {
        let id = id.trim();
        id.parse().map_err(|_| anyhow!("--tokens: item {} is {id:?}; write ids as in 1,5,9", i + 1))
    });
    ids.collect()
}

fn check(args: &Args, tokens: &[u32], loaded: &Loaded) -> Result<()> {
    let flag = if args.tokens.is_some() { "--tokens" } else { "--text" };
    let vocab = loaded.stack().vocab_size;
    ensure!(!tokens.is_empty(), "{flag}: no tokens; give at least one");
    if let Some(&id) = tokens.iter().find(|&&id| id as usize >= vocab) {
        return Err(anyhow!(
            "{flag}: token id {id} is outside the vocabulary; the model has ids 0 to {}",
            vocab - 1
        ));
    }
    let (needed, context) = (tokens.len().saturating_add(args.greedy), loaded.engine.context_len());
    ensure!(
        needed <= context,
        "{flag}: {needed} tokens{} do not fit the context of {context}; {}",
        if args.greedy > 0 { format!(", {} of --greedy among them,", args.greedy) } else { String::new() },
        if loaded.has_longest_context() {
            "that is the model's limit: ask for fewer".to_owned()
        } else {
            format!("ask for fewer or {}", loaded.longer_context())
        }
    );
    Ok(())
}

/// Name and shape of all that `--out` holds.
fn shapes(stack: &Stack, n: usize, taps: bool) -> Vec<(String, [usize; 2])> {
    let mut shapes = vec![("logits".to_owned(), [n, stack.vocab_size])];
    if taps {
        let blocks = stack.blocks.iter().map(|b| b.path.as_str());
        let paths = std::iter::once(EMBEDDING).chain(blocks).chain([FINAL_NORM]);
        shapes.extend(paths.map(|path| (path.to_owned(), [n, stack.hidden_size])));
    }
    shapes
}

fn forward(
    args: &Args,
    loaded: &mut Loaded,
    tokens: &[u32],
    mut store: Option<&mut Store<'_>>,
) -> Result<Pass> {
    let (vocab, hidden) = (loaded.stack().vocab_size, loaded.stack().hidden_size);
    let mut pass = Pass::default();
    for part in tokens.chunks(PART) {
        let mut tapped: Vec<(String, Vec<f32>)> = Vec::new();
        let mut tap = |path: &str, values: &[f32]| match tapped.iter_mut().find(|(p, _)| p == path) {
            Some((_, all)) => all.extend_from_slice(values),
            None => tapped.push((path.to_owned(), values.to_vec())),
        };
        let logits = if args.taps {
            loaded.engine.feed_traced(part, &mut tap)?
        } else {
            loaded.engine.feed_all(part)?
        };
        for row in logits.chunks_exact(vocab) {
            pass.argmax.push(best(row)?);
        }
        pass.last_logits = logits[logits.len() - vocab..].to_vec();
        if let Some(store) = &mut store {
            store.append("logits", logits)?;
            for (path, values) in &tapped {
                store.append(path, values)?;
            }
        }
        pass.layers = tapped
            .into_iter()
            .map(|(path, values)| (path, values[values.len() - hidden..].to_vec()))
            .collect();
    }
    pass.greedy = greedy(&mut loaded.engine, &pass.last_logits, args.greedy)?;
    Ok(pass)
}

fn greedy(engine: &mut Engine, logits: &[f32], count: usize) -> Result<Vec<u32>> {
    let mut ids = Vec::with_capacity(count.min(1 << 16));
    if count == 0 {
        return Ok(ids);
    }
    ids.push(best(logits)?);
    while ids.len() < count {
        let last = ids[ids.len() - 1];
        ids.push(best(engine.feed(&[last])?)?);
    }
    Ok(ids)
}

fn best(logits: &[f32]) -> Result<u32> {
    let at = argmax(logits).context("the model gave no logits")?;
    Ok(u32::try_from(at)?)
}

fn report(args: &Args, tokens: &[u32], pass: &Pass) -> Value {
    let mut report = Map::new();
    report.insert("tokens".into(), json!(tokens));
    report.insert("last_logits".into(), json!(pass.last_logits));
    report.insert("argmax".into(), json!(pass.argmax));
    if args.greedy > 0 {
        report.insert("greedy_ids".into(), json!(pass.greedy));
    }
    if args.taps {
        let layers: Map<String, Value> =
            pass.layers.iter().map(|(path, values)| (path.clone(), json!(values))).collect();
        report.insert("layers".into(), Value::Object(layers));
    }
    Value::Object(report)
}

/// The most likely next tokens, for people.
fn table(loaded: &Loaded, tokens: &[u32], pass: &Pass) -> String {
    let tokenizer = model::tokenizer(&loaded.checkpoint).ok();
    let text = |id: u32| {
        let text = tokenizer.as_ref().and_then(|t| t.decode(&[id], false).ok());
        text.map(|text| format!("{text:?}")).unwrap_or_default()
    };
    let logits = &pass.last_logits;
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&l| f64::from(l - max).exp()).sum();
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    let mut table = format!("{} tokens; after the last one:\n\n", tokens.len());
    let _ = writeln!(table, "{:>8} {:>12} {:>9}  token", "id", "logit", "share");
    for &id in order.iter().take(SHOWN) {
        let share = 100.0 * f64::from(logits[id] - max).exp() / sum;
        let _ = writeln!(table, "{id:>8} {:>12.5} {share:>8.3}%  {}", logits[id], text(id as u32));
    }
    if !pass.greedy.is_empty() {
        let text = tokenizer.and_then(|t| t.decode(&pass.greedy, false).ok()).unwrap_or_default();
        let _ = writeln!(table, "\ngreedy: {:?}\n{text}", pass.greedy);
    }
    for (path, values) in &pass.layers {
        let norm = values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
        let head: Vec<String> = values.iter().take(4).map(|v| format!("{v:.5}")).collect();
        let _ = writeln!(table, "{path}: norm {norm:.4}, [{}, ...]", head.join(", "));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_lists() {
        assert_eq!(parse_tokens("1, 5,9").unwrap(), [1, 5, 9]);
        for (bad, item) in
            [("", "item 1 is \"\""), ("1,,2", "item 2"), ("1,-2", "\"-2\""), ("4294967296", "item 1")]
        {
            let error = parse_tokens(bad).unwrap_err().to_string();
            assert!(error.contains(item) && error.starts_with("--tokens: "), "{error}");
        }
    }
}
