//! Batches without HTTP for `benches/serve/overhead.py`: the engine, threads and weights of the server beside it, asked by lines on stdin.

use std::io::{BufRead as _, Write as _};
use std::ops::ControlFlow;
use std::time::Instant;

use anemone_session::{
    Batch, BatchOptions, GenerateOptions, Job, Progress, SamplingParams, Together, Tokenizer,
};
use anyhow::{Context, Result, anyhow};
use serde_json::{Value, json};

/// Starts a thread that answers lines of stdin (`{"prompts": [texts], "max_tokens": N}`, all at once as requests that came together), each
/// with one line on stdout, until stdin ends.
///
/// The server is to be left alone meanwhile: both use the same threads.
pub(super) fn start<E: Together + Send + 'static>(
    engine: E,
    tokenizer: Tokenizer,
    defaults: GenerateOptions,
    batch: BatchOptions,
) -> Result<()> {
    let run = move || {
        let mut batch = Batch::new(engine, &tokenizer, batch);
        for line in std::io::stdin().lock().lines() {
            let told = line
                .context("stdin")
                .and_then(|line| answer(&mut batch, &tokenizer, &defaults, &line))
                .unwrap_or_else(|error| json!({"error": format!("{error:#}")}));
            if writeln!(std::io::stdout(), "{told}").and_then(|()| std::io::stdout().flush()).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("direct".to_owned()).spawn(run).context("cannot start a thread")?;
    Ok(())
}

fn answer<E: Together>(
    batch: &mut Batch<'_, E>,
    tokenizer: &Tokenizer,
    defaults: &GenerateOptions,
    line: &str,
) -> Result<Value> {
    let asked: Value = serde_json::from_str(line)?;
    let prompts = asked["prompts"].as_array().context("`prompts` must be a list of texts")?;
    let prompts: Vec<Vec<u32>> = prompts
        .iter()
        .map(|prompt| Ok(tokenizer.encode(prompt.as_str().unwrap_or_default(), true)?))
        .collect::<Result<_>>()?;
    let max_tokens = asked["max_tokens"].as_u64().context("`max_tokens` must be a number")?;
    let options = GenerateOptions {
        sampling: SamplingParams { temperature: 0.0, ..defaults.sampling.clone() },
        max_new_tokens: Some(usize::try_from(max_tokens)?),
        ignore_eos: true,
        ..defaults.clone()
    };
    // From here on it is what the engine does for requests, and nothing of what is done to receive and to answer them.
    let start = Instant::now();
    let mut ids = Vec::new();
    for prompt in prompts {
        ids.extend(batch.submit(Job { prompt, continuations: vec![(options.clone(), None)] })?);
    }
    let mut texts = vec![String::new(); ids.len()];
    let (mut tokens, mut failed) = (0, None);
    while batch.step(&mut |id, progress| {
        match progress {
            Progress::Finished(generation) => {
                tokens += generation.usage.completion_tokens;
                if let Some(at) = ids.iter().position(|known| *known == id) {
                    texts[at] = generation.text;
                }
            }
            Progress::Failed(error) => failed = Some(error),
            Progress::Event(_) => {}
        }
        ControlFlow::Continue(())
    }) {}
    let seconds = start.elapsed().as_secs_f64();
    match failed {
        Some(error) => Err(anyhow!(error)),
        None => Ok(json!({"seconds": seconds, "completion_tokens": tokens, "texts": texts})),
    }
}
