use anemone_session::{EMBEDDING, Engine, Tap};
use anemone_tensor::compare;

use super::*;

const VOCAB: usize = 6;

/// Logits depend on the last token and its position; `wrong` may change them.
struct Fake {
    held: Vec<u32>,
    passes: Vec<Pass>,
    only: Option<Pass>,
    logits: Vec<f32>,
    context: usize,
    wrong: fn(&Fake, usize, &mut [f32]),
}

impl Fake {
    fn new(wrong: fn(&Fake, usize, &mut [f32])) -> Self {
        let passes = vec![Pass::Decode, Pass::Verify(3)];
        Self { held: Vec::new(), passes, only: None, logits: Vec::new(), context: 64, wrong }
    }

    fn row(&self, position: usize) -> Vec<f32> {
        let token = self.held[position] as usize;
        let mut row: Vec<f32> = (0..VOCAB).map(|v| ((v * 7 + token * 3 + position) % 11) as f32).collect();
        // The second best is close behind.
        let best = argmax(&row).unwrap();
        row[(best + 1) % VOCAB] = row[best] - 0.01;
        (self.wrong)(self, position, &mut row);
        row
    }
}

impl Engine for Fake {
    fn vocab_size(&self) -> usize {
        VOCAB
    }

    fn context_len(&self) -> usize {
        self.context
    }

    fn position(&self) -> usize {
        self.held.len()
    }

    fn feed(&mut self, tokens: &[u32]) -> Result<&[f32], EngineError> {
        self.held.extend(tokens);
        self.logits = self.row(self.held.len() - 1);
        Ok(&self.logits)
    }

    fn feed_all(&mut self, tokens: &[u32]) -> Result<&[f32], EngineError> {
        self.feed_traced(tokens, &mut |_, _| {})
    }

    fn rewind(&mut self, position: usize) -> Result<(), EngineError> {
        assert!(position < self.held.len());
        self.held.truncate(position);
        Ok(())
    }

    fn reset(&mut self) {
        self.held.clear();
    }
}

impl Traced for Fake {
    fn feed_traced(&mut self, tokens: &[u32], tap: Tap<'_>) -> Result<&[f32], EngineError> {
        if let Some(Pass::Verify(width)) = self.only {
            assert!(tokens.len() <= width, "{tokens:?}");
        }
        let start = self.held.len();
        self.held.extend(tokens);
        self.logits = (start..self.held.len()).flat_map(|p| self.row(p)).collect();
        for (i, token) in tokens.iter().enumerate() {
            tap(EMBEDDING, &[*token as f32, (start + i) as f32]);
        }
        Ok(&self.logits)
    }

    fn passes(&self) -> Vec<Pass> {
        self.passes.clone()
    }

    fn restrict(&mut self, pass: Option<Pass>) -> Result<(), EngineError> {
        self.only = pass;
        Ok(())
    }
}

const PROMPT: [u32; 7] = [1, 0, 2, 0, 0, 5, 3];

fn check(wrong: fn(&Fake, usize, &mut [f32])) -> Report {
    let recording = Recording::of(&mut Fake::new(|_, _, _| {}), "p", &PROMPT, 5).unwrap();
    let options = Options { min_cos: 0.99 };
    verify(&mut Fake::new(wrong), &mut [Ok(recording)].into_iter(), options, &mut |_| {}).unwrap()
}

#[test]
fn the_same_engine_agrees_everywhere() {
    let report = check(|_, _, _| {});
    assert!(report.passed(), "{:?}", report.failures);
    assert_eq!((report.max_abs(), report.generated), (0.0, 5));
    let names: Vec<&str> = report.passes.iter().map(|p| p.name.as_str()).collect();
    assert_eq!(names, ["decode", "verify_3", "generation"]);
    // Drafts that were not kept are not compared.
    assert_eq!(report.passes.iter().map(|p| p.positions).collect::<Vec<_>>(), [7, 7, 5]);
    assert!(report.layers()[0].cosine > 1.0 - 1e-12);
}

#[test]
fn only_what_is_closer_than_the_error_is_a_tie() {
    // In the prompts a logit is off by more than the best two are apart, and in the continuation the second wins.
    let tie = check(|_, position, row| {
        let best = argmax(row).unwrap();
        if position >= PROMPT.len() {
            row[(best + 1) % VOCAB] += 0.015;
        } else {
            row[(best + 2) % VOCAB] -= 0.02;
        }
    });
    assert!(tie.passed() && !tie.divergences.is_empty(), "{tie:?}");
    let first = tie.first_divergence().unwrap();
    assert!(first.tie && (first.gap - 0.01).abs() < 1e-5 && first.step == Some(1), "{first:?}");
    assert!((first.margin.unwrap() - 0.01).abs() < 1e-5);
    // The prompts are right to the bit, so the same flip is no tie; its cosine alone would pass.
    let wrong = check(|_, position, row| {
        let best = argmax(row).unwrap();
        if position >= PROMPT.len() {
            row[(best + 1) % VOCAB] += 0.015;
        }
    });
    assert!(wrong.cosine().unwrap() > 0.99 && !wrong.passed());
    assert!(wrong.failures.iter().all(|f| f.contains("instead of")), "{:?}", wrong.failures);
}

#[test]
fn one_kind_of_pass_that_is_wrong_is_named() {
    let report = check(|f, position, row| {
        if matches!(f.only, Some(Pass::Verify(_))) && position == 4 {
            row.reverse();
        }
    });
    assert!(!report.passed());
    assert!(report.failures[0].starts_with("verify_3: ") && report.failures[0].contains("position 4 of `p`"));
    assert!(report.passes[0].cosine > Some(1.0 - 1e-12));
    // The logits are off by more than the tokens are apart, and by too much to excuse anything.
    assert!(report.error >= report.divergences[0].gap, "{report:?}");
    assert!(report.divergences.iter().all(|d| !d.tie && d.pass == "verify_3"), "{report:?}");
    let nan = check(|f, _, row| {
        if f.only.is_some() {
            row[0] = f32::NAN;
        }
    });
    assert!(!nan.passed(), "{nan:?}");
}

#[test]
fn every_figure_is_measured() {
    let sound = Recording::of(&mut Fake::new(|_, _, _| {}), "p", &PROMPT, 0).unwrap();
    let told = |recording: &Recording| {
        let options = Options { min_cos: -1.0 };
        let mut recordings = [Ok(recording.clone())].into_iter();
        verify(&mut Fake::new(|_, _, _| {}), &mut recordings, options, &mut |_| {}).unwrap()
    };
    let mut other = sound.clone();
    other.logits[3].1.reverse();
    // Token 2 at position 2.
    assert_eq!(sound.layers[0].1[2], (2, vec![2.0, 2.0]));
    other.layers[0].1[2].1[1] = -2.0;
    let report = told(&other);
    let expected = compare(&other.logits[3].1, &sound.logits[3].1);
    assert!(!expected.argmax_equal && expected.kl > 0.1);
    for pass in &report.passes {
        assert_eq!(
            (pass.cosine, pass.max_abs, pass.kl),
            (Some(expected.cosine), expected.max_abs, expected.kl)
        );
        assert_eq!((pass.judged, pass.agreed, pass.worst.as_ref().unwrap().position), (7, 6, 3));
        assert_eq!((pass.layers[0].cosine, pass.layers[0].max_abs), (0.0, 4.0));
        // The last position is right.
        assert!(pass.layers[0].cosine_last > Some(1.0 - 1e-12));
    }
    // Best tokens alone.
    let best = |(_, row): &(usize, Vec<f32>)| argmax(row).unwrap() as u32;
    let mut argmax: Vec<u32> = sound.logits.iter().map(best).collect();
    argmax[4] = (argmax[4] + 1) % VOCAB as u32;
    let report = told(&Recording { logits: Vec::new(), layers: Vec::new(), argmax: Some(argmax), ..sound });
    assert_eq!(report.passes.iter().map(|p| (p.judged, p.agreed)).collect::<Vec<_>>(), [(7, 6); 2]);
    assert!(report.failures[0].contains("position 4 of `p`"), "{:?}", report.failures);
}

#[test]
fn recordings_that_do_not_fit_are_listed_or_refused() {
    let verify = |recordings: Vec<Recording>, context| {
        let mut engine = Fake::new(|_, _, _| {});
        engine.context = context;
        verify(&mut engine, &mut recordings.into_iter().map(Ok), Options::default(), &mut |_| {})
    };
    let recording = |steps| Recording::of(&mut Fake::new(|_, _, _| {}), "p", &PROMPT, steps).unwrap();
    let short = Recording {
        name: "short".into(),
        ..Recording::of(&mut Fake::new(|_, _, _| {}), "", &[1], 1).unwrap()
    };
    let report = verify(vec![recording(5), short], 5).unwrap();
    assert_eq!(report.skipped[0].prompt, "p");
    assert!(report.passed() && report.generated == 1);
    // A continuation ends where the context does.
    assert_eq!(verify(vec![recording(5)], 9).unwrap().generated, 3);
    let say = |r: Recording, context, expected: &str| {
        let error = verify(vec![r], context).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    say(recording(1), 5, "7 tokens do not fit the context of 5");
    say(Recording { tokens: vec![6], ..Recording::default() }, 64, "token id 6");
    say(Recording { logits: vec![(0, vec![0.0])], ..recording(0) }, 64, "1 logits for a vocabulary of 6");
    say(Recording { logits: vec![(7, vec![0.0; VOCAB])], ..recording(0) }, 64, "position 7 of 7 tokens");
    say(
        Recording { layers: vec![(EMBEDDING.into(), vec![(0, vec![0.0])])], ..recording(0) },
        64,
        "2 channels and the recording 1",
    );
    say(
        Recording { layers: vec![("model.layers.9".into(), vec![(0, vec![0.0])])], ..recording(0) },
        64,
        "`model.layers.9` is recorded and no layer",
    );
    say(Recording { tokens: vec![1], ..Recording::default() }, 64, "hold no logits");
}
