use anemone_ane::Pass;
use anemone_session::{EngineError, Traced};
use anemone_tensor::argmax;

use crate::Error;
use crate::recording::{Recording, Streams};
use crate::report::{Divergence, Place, Report, Skipped};
use crate::tally::Tally;

/// What passes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    /// The least cosine of the logits at every position.
    pub min_cos: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self { min_cos: 0.999 }
    }
}

/// Compares an engine with recordings: the prompts in every kind of pass, then the continuation as a user would run it.
///
/// Passes that verify drafts are given wrong ones after the right tokens and stepped back. `progress` is told what begins.
/// Recordings longer than the engine's context are skipped and listed.
pub fn verify(
    engine: &mut dyn Traced,
    recordings: &mut dyn Iterator<Item = Result<Recording, Error>>,
    options: Options,
    progress: &mut dyn FnMut(&str),
) -> Result<Report, Error> {
    let kinds: Vec<Option<Pass>> = match engine.passes() {
        passes if passes.is_empty() => vec![None],
        passes => passes.into_iter().map(Some).collect(),
    };
    let name = |kind: &Option<Pass>| kind.map_or_else(|| "all".to_owned(), Pass::name);
    let mut run = Run {
        passes: kinds.iter().map(|kind| Tally::new(name(kind))).collect(),
        generation: Tally::new("generation"),
        divergences: Vec::new(),
        skipped: Vec::new(),
        generated: 0,
    };
    for recording in recordings {
        let recording = recording?;
        if let Some(skipped) = unfit(engine, &recording)? {
            run.skipped.push(skipped);
            continue;
        }
        for (at, kind) in kinds.iter().enumerate() {
            progress(&format!("{}: {}", recording.name, run.passes[at].name));
            let failed =
                |source| Error::Engine { during: format!("`{}`, {}", recording.name, name(kind)), source };
            engine.restrict(*kind).map_err(failed)?;
            let outcome = run.prompt(engine, at, *kind, &recording);
            engine.restrict(None).map_err(failed)?;
            outcome.map_err(failed)?;
        }
        progress(&format!("{}: generation", recording.name));
        run.generate(engine, &recording).map_err(|source| Error::Engine {
            during: format!("`{}`, generation", recording.name),
            source,
        })?;
    }
    run.finish(options)
}

/// Why a recording cannot be compared with this engine; errors when it is of another model.
fn unfit(engine: &dyn Traced, r: &Recording) -> Result<Option<Skipped>, Error> {
    let vocab = engine.vocab_size();
    let wrong = |problem: String| Err(Error::Recording { name: r.name.clone(), problem });
    let other = "it was recorded from another model: give the recordings or the checkpoint of this one";
    if r.tokens.is_empty() {
        return wrong("it has no tokens; give a text with at least one".into());
    }
    if let Some(id) = r.tokens.iter().chain(r.greedy.iter().map(|c| &c.id)).find(|id| **id as usize >= vocab)
    {
        return wrong(format!("token id {id} is outside the vocabulary of {vocab} rows; {other}"));
    }
    let logits = r.logits.iter().map(|(_, row)| row).chain(r.greedy.iter().filter_map(|c| c.logits.as_ref()));
    for row in logits {
        if row.len() != vocab {
            return wrong(format!("{} logits for a vocabulary of {vocab} rows; {other}", row.len()));
        }
    }
    let positions = r
        .logits
        .iter()
        .map(|(at, _)| *at)
        .chain(r.layers.iter().flat_map(|(_, rows)| rows.iter().map(|(at, _)| *at)));
    if let Some(at) = positions.max().filter(|at| *at >= r.tokens.len()) {
        return wrong(format!("it records position {at} of {} tokens; record it again", r.tokens.len()));
    }
    let context = engine.context_len();
    Ok((r.tokens.len() > context).then(|| Skipped {
        prompt: r.name.clone(),
        reason: format!(
            "{} tokens do not fit the context of {context}; convert with a larger --ctx",
            r.tokens.len()
        ),
    }))
}

struct Run {
    passes: Vec<Tally>,
    generation: Tally,
    divergences: Vec<Divergence>,
    skipped: Vec<Skipped>,
    generated: usize,
}

impl Run {
    /// Runs a prompt with one kind of pass and compares what is recorded.
    fn prompt(
        &mut self,
        engine: &mut dyn Traced,
        at: usize,
        kind: Option<Pass>,
        r: &Recording,
    ) -> Result<(), EngineError> {
        let vocab = engine.vocab_size();
        engine.reset();
        let mut streams = Streams::default();
        let logits = match kind {
            Some(Pass::Verify(width)) => draft(engine, width, &r.tokens, &mut streams)?,
            _ => engine.feed_traced(&r.tokens, &mut |path, values| streams.push(path, values))?.to_vec(),
        };
        let row = |position: usize| &logits[position * vocab..(position + 1) * vocab];
        let tally = &mut self.passes[at];
        let place = |position| Place { prompt: r.name.clone(), position };
        for (position, reference) in &r.logits {
            tally.logits(place(*position), reference, row(*position));
            let (expected, found) = (argmax(reference), argmax(row(*position)));
            if let (Some(expected), Some(found)) = (expected, found)
                && expected != found
            {
                let reference = Some(reference.as_slice());
                let found = divergence(r, *position, None, expected, row(*position), reference);
                self.divergences.push(Divergence { pass: tally.name.clone(), ..found });
            }
        }
        for (position, expected) in r.argmax.iter().flatten().enumerate().take(r.tokens.len()) {
            if r.logits.iter().any(|(p, _)| *p == position) {
                continue;
            }
            let equal = argmax(row(position)) == Some(*expected as usize);
            tally.argmax(equal);
            if !equal {
                let found = divergence(r, position, None, *expected as usize, row(position), None);
                self.divergences.push(Divergence { pass: tally.name.clone(), ..found });
            }
        }
        let found = streams.rows(r.tokens.len());
        for (path, rows) in &r.layers {
            let Some((_, seen)) = found.iter().find(|(p, _)| p == path) else {
                return Err(EngineError::new(format!(
                    "`{path}` is recorded and no layer of the engine; the recording is of another model"
                )));
            };
            for (position, reference) in rows {
                let Some((_, values)) = seen.get(*position) else { continue };
                if values.len() != reference.len() {
                    return Err(EngineError::new(format!(
                        "`{path}` has {} channels and the recording {}; it is of another model",
                        values.len(),
                        reference.len()
                    )));
                }
                tally.layer(path, position + 1 == r.tokens.len(), reference, values);
            }
        }
        Ok(())
    }

    /// Follows the recorded continuation, so that every choice is made after the same tokens.
    fn generate(&mut self, engine: &mut dyn Traced, r: &Recording) -> Result<(), EngineError> {
        let steps = r.greedy.len().min(engine.context_len() - r.tokens.len() + 1);
        if steps == 0 {
            return Ok(());
        }
        engine.reset();
        let mut logits = engine.feed(&r.tokens)?.to_vec();
        let last = r.tokens.len() - 1;
        for (step, choice) in r.greedy.iter().take(steps).enumerate() {
            let recorded = choice.logits.as_ref();
            let recorded = recorded
                .or_else(|| (r.logits.iter()).find(|(at, _)| step == 0 && *at == last).map(|(_, row)| row));
            match recorded {
                Some(reference) => {
                    let place = Place { prompt: r.name.clone(), position: last + step };
                    self.generation.logits(place, reference, &logits);
                }
                None => self.generation.argmax(argmax(&logits) == Some(choice.id as usize)),
            }
            if argmax(&logits) != Some(choice.id as usize) {
                let expected = choice.id as usize;
                let found =
                    divergence(r, last + step, Some(step), expected, &logits, recorded.map(Vec::as_slice));
                self.divergences.push(Divergence { pass: self.generation.name.clone(), ..found });
            }
            self.generated += 1;
            if step + 1 < steps {
                logits = engine.feed(&[choice.id])?.to_vec();
            }
        }
        Ok(())
    }

    fn finish(mut self, options: Options) -> Result<Report, Error> {
        if self.passes.iter().all(Tally::is_empty) {
            let reasons: Vec<String> =
                self.skipped.iter().map(|s| format!("`{}`: {}", s.prompt, s.reason)).collect();
            let none = "the recordings hold no logits, best tokens or hidden states";
            return Err(Error::Nothing(if reasons.is_empty() { none.into() } else { reasons.join("; ") }));
        }
        let error = self.passes.iter().map(Tally::max_abs).fold(0.0, f64::max);
        let measured = self.passes.iter().any(|p| p.positions() > 0);
        let passes = self.passes.into_iter().chain([self.generation]);
        let passes: Vec<_> = passes.filter(|p| !p.is_empty()).map(Tally::report).collect();
        let mut failures = Vec::new();
        for pass in &passes {
            if let (Some(cosine), Some(worst)) = (pass.cosine, &pass.worst)
                && (cosine < options.min_cos || cosine.is_nan())
            {
                failures.push(format!(
                    "{}: the cosine of the logits is {cosine:.6} at position {} of `{}`, below {}",
                    pass.name, worst.position, worst.prompt, options.min_cos
                ));
            }
        }
        for d in &mut self.divergences {
            // Without any logits to compare there is no error that could excuse a difference, and logits that are too far excuse none.
            d.tie = measured && failures.is_empty() && d.gap <= error;
        }
        if let Some(d) = self.divergences.iter().find(|d| !d.tie) {
            failures.push(format!(
                "position {} of `{}` goes on with token {} instead of {}; they are {:.4} apart, the logits' error is {error:.4}",
                d.position, d.prompt, d.found, d.expected, d.gap
            ));
        }
        Ok(Report {
            min_cos: options.min_cos,
            passes,
            error,
            generated: self.generated,
            divergences: self.divergences,
            skipped: self.skipped,
            failures,
        })
    }
}

/// Feeds tokens as speculation does: some right ones and wrong drafts in one pass, of which only the right ones are kept.
fn draft(
    engine: &mut dyn Traced,
    width: usize,
    tokens: &[u32],
    streams: &mut Streams,
) -> Result<Vec<f32>, EngineError> {
    let (vocab, context) = (engine.vocab_size(), engine.context_len());
    let mut logits = Vec::with_capacity(tokens.len() * vocab);
    let (mut at, mut round) = (0, 0);
    while at < tokens.len() {
        let kept = (1 + round % width).min(tokens.len() - at);
        let mut fed = tokens[at..at + kept].to_vec();
        let wrong = tokens.get(at + kept).map_or(0, |right| u32::from(*right == 0));
        fed.resize(width.min(context - at).max(kept), wrong);
        let mut seen = Streams::default();
        let rows = engine.feed_traced(&fed, &mut |path, values| seen.push(path, values))?;
        logits.extend_from_slice(&rows[..kept * vocab]);
        streams.append(&seen, kept, fed.len());
        at += kept;
        round += 1;
        if fed.len() > kept {
            engine.rewind(at)?;
        }
    }
    Ok(logits)
}

fn divergence(
    r: &Recording,
    position: usize,
    step: Option<usize>,
    expected: usize,
    logits: &[f32],
    reference: Option<&[f32]>,
) -> Divergence {
    let found = argmax(logits).unwrap_or(0);
    let apart = |row: &[f32], a: usize, b: usize| f64::from(row[a]) - f64::from(row[b]);
    let margin = reference.map(|row| {
        let second = row.iter().enumerate().filter(|(i, _)| *i != expected).map(|(_, v)| *v);
        f64::from(row[expected]) - f64::from(second.fold(f32::NEG_INFINITY, f32::max))
    });
    let gap = match reference {
        Some(row) => apart(row, expected, found),
        // The least margin of a recorded continuation bounds this one's from below.
        None => apart(logits, found, expected).max(r.min_margin.filter(|_| step.is_some()).unwrap_or(0.0)),
    };
    Divergence {
        pass: String::new(),
        prompt: r.name.clone(),
        position,
        step,
        expected: u32::try_from(expected).unwrap_or(u32::MAX),
        found: u32::try_from(found).unwrap_or(u32::MAX),
        margin,
        gap,
        tie: false,
    }
}

#[cfg(test)]
mod tests;
