use std::path::PathBuf;
use std::process::ExitCode;

use anemone_session::{Engine as _, Tokenizer};
use anyhow::{Result, bail, ensure};
use clap::builder::RangedU64ValueParser;
use serde_json::json;

use crate::args::{BundleArg, EngineArgs, ModelArgs};
use crate::cli::Shell;
use crate::model::{self, Loaded};
use crate::{files, output};

/// Measure how well the model predicts a text
///
/// With --separator the text is cut there and each part is scored alone, up to --window tokens. Without it the whole
/// text is scored in consecutive windows. Each begins with the bos token if there is one; all tokens but a window's
/// first are predicted, and the perplexity is the exponential of the mean negative log likelihood.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  anemone perplexity --file stories.txt --separator '\\n\\n\\n' --append-eos 2 --exact --json"
)]
pub(crate) struct Args {
    /// The text
    #[arg(long, short = 'f', value_name = "TEXT")]
    file: PathBuf,
    /// Where parts are cut; \n, \r, \t and \\ are understood
    #[arg(long, value_name = "S")]
    separator: Option<String>,
    /// Tokens scored in one go, bos and eos included
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = RangedU64ValueParser::<usize>::new().range(2..=1 << 24), allow_negative_numbers = true)]
    window: usize,
    /// Begin with the bos token [default: if the tokenizer has one]
    #[arg(long, conflicts_with = "no_bos")]
    bos: bool,
    /// Do not begin with the bos token
    #[arg(long)]
    no_bos: bool,
    /// Put this token after each part's text
    #[arg(long, value_name = "ID")]
    append_eos: Option<u32>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    bundle: BundleArg,
    #[command(flatten)]
    engine: EngineArgs,
}

/// Windows of ids, and how many ids fell off their ends.
#[derive(Debug, Default, PartialEq, Eq)]
struct Windows {
    windows: Vec<Vec<u32>>,
    dropped: usize,
}

pub(crate) fn run(args: &Args, shell: &Shell) -> Result<ExitCode> {
    let text = files::read_text("--file", &args.file)?;
    let mut loaded =
        Loaded::new(&args.model.or_bundle(&args.bundle)?, &args.engine, args.window, false, shell)?;
    let (vocab, context) = (loaded.stack().vocab_size, loaded.engine.context_len());
    ensure!(
        args.window <= context,
        "--window {} is longer than the context of {context}; lower it or {}",
        args.window,
        loaded.longer_context()
    );
    if let Some(id) = args.append_eos.filter(|&id| id as usize >= vocab) {
        bail!("--append-eos: token id {id} is outside the vocabulary; the model has ids 0 to {}", vocab - 1);
    }
    let tokenizer = model::tokenizer(&loaded.checkpoint)?;
    let Windows { windows, dropped } = windows(args, &text, &tokenizer)?;
    let bar = indicatif::ProgressBar::new(windows.len() as u64);
    if shell.quiet {
        bar.set_draw_target(indicatif::ProgressDrawTarget::hidden());
    }
    let (mut sum, mut tokens) = (0.0f64, 0usize);
    for ids in &windows {
        loaded.engine.reset();
        let mut bad = None;
        loaded.engine.feed_each(ids, &mut |at, logits| {
            let Some(&next) = ids.get(at + 1) else { return };
            let nll = nll(logits, next as usize);
            if !nll.is_finite() {
                bad.get_or_insert(at);
            }
            sum += nll;
            tokens += 1;
        })?;
        if let Some(position) = bad {
            return Err(loaded.non_finite(position));
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    ensure!(tokens > 0, "--file {}: no token to predict; give a longer text", args.file.display());
    let mean = sum / tokens as f64;
    if args.json {
        output::json(&json!({
            "perplexity": mean.exp(),
            "tokens": tokens,
            "nll": mean,
            "windows": windows.len(),
            "dropped_tokens": dropped,
            "model": loaded.checkpoint.name(),
            "engine": loaded.engine.name(),
            "arithmetic": loaded.engine.arithmetic(&args.engine),
        }))?;
    } else {
        output::data(&format!(
            "perplexity {:.4} over {tokens} tokens in {} windows\n",
            mean.exp(),
            windows.len()
        ))?;
    }
    if dropped > 0 && !shell.quiet {
        output::note(&format!("{dropped} tokens lie beyond --window {} of their part", args.window));
    }
    Ok(ExitCode::SUCCESS)
}

fn windows(args: &Args, text: &str, tokenizer: &Tokenizer) -> Result<Windows> {
    let bos = match (args.no_bos, tokenizer.bos()) {
        (false, None) if args.bos => bail!("--bos: the tokenizer names no bos token; use --no-bos"),
        (false, Some(token)) => Some(token.id),
        _ => None,
    };
    let mut encode = |part: &str| -> Result<Vec<u32>> {
        let mut ids = tokenizer.encode(part, false)?;
        ids.extend(args.append_eos);
        Ok(ids)
    };
    match args.separator.as_deref() {
        Some("") => bail!("--separator is empty; leave it out to score the whole text"),
        Some(separator) => {
            let separator = unescape(separator)?;
            // The newline at the end of a file belongs to the file, not to its last part.
            let text = text.strip_suffix('\n').unwrap_or(text);
            let parts = text.split(separator.as_str()).filter(|part| !part.trim().is_empty());
            let parts = parts.map(&mut encode).collect::<Result<Vec<_>>>()?;
            Ok(cut(parts, bos, args.window))
        }
        None => Ok(consecutive(&encode(text)?, bos, args.window)),
    }
}

fn unescape(separator: &str) -> Result<String> {
    let mut text = String::new();
    let mut chars = separator.chars();
    while let Some(c) = chars.next() {
        text.push(match (c, if c == '\\' { chars.next() } else { None }) {
            ('\\', Some('n')) => '\n',
            ('\\', Some('r')) => '\r',
            ('\\', Some('t')) => '\t',
            ('\\', Some('\\')) => '\\',
            ('\\', _) => {
                bail!("--separator {separator:?}: a \\ without n, r, t or \\ after it; write \\\\ for one \\")
            }
            (c, _) => c,
        });
    }
    Ok(text)
}

/// Each part's first `window` tokens.
fn cut(parts: Vec<Vec<u32>>, bos: Option<u32>, window: usize) -> Windows {
    let mut all = Windows::default();
    for part in parts {
        let mut ids: Vec<u32> = bos.into_iter().chain(part).collect();
        all.dropped += ids.len().saturating_sub(window);
        ids.truncate(window);
        all.windows.push(ids);
    }
    all
}

/// All of the ids, in windows that follow each other.
fn consecutive(ids: &[u32], bos: Option<u32>, window: usize) -> Windows {
    let size = window - usize::from(bos.is_some());
    let windows = ids.chunks(size).map(|chunk| bos.into_iter().chain(chunk.iter().copied()).collect());
    Windows { windows: windows.collect(), dropped: 0 }
}

/// Negative log likelihood of a token.
fn nll(logits: &[f32], token: usize) -> f64 {
    // `max` passes over NaN, the sum does not.
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&l| (f64::from(l) - max).exp()).sum();
    max + sum.ln() - f64::from(logits[token])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_hold_bos_and_their_share() {
        let parts = cut(vec![vec![5, 6, 7, 8], vec![9]], Some(1), 3);
        assert_eq!(parts, Windows { windows: vec![vec![1, 5, 6], vec![1, 9]], dropped: 2 });
        let all = consecutive(&[5, 6, 7, 8, 9], Some(1), 3);
        assert_eq!(all.windows, [vec![1, 5, 6], vec![1, 7, 8], vec![1, 9]]);
        assert_eq!(consecutive(&[5, 6, 7], None, 2).windows, [vec![5, 6], vec![7]]);
    }

    #[test]
    fn separators_are_unescaped_or_refused() {
        assert_eq!(unescape(r"\n\t\r\\n-é").unwrap(), "\n\t\r\\n-é");
        assert!(unescape(r"\q").unwrap_err().to_string().contains(r"write \\"));
        assert!(unescape(r"a\").is_err());
    }

    #[test]
    fn likelihood_of_even_odds() {
        assert!((nll(&[3.0; 4], 2) - 4.0f64.ln()).abs() < 1e-12);
        assert!((nll(&[1000.0, 0.0], 0)).abs() < 1e-12);
        assert!(!nll(&[f32::NAN, 0.0], 1).is_finite());
    }
}
