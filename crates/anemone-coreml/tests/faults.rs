//! Everything that can go wrong between a package and a token, and what comes of it: an error that says so, never another text.

#![allow(clippy::unwrap_used, reason = "a failed expectation is a failed test")]

#[path = "../../anemone-emulator/tests/support/mod.rs"]
#[allow(dead_code, reason = "fixtures are for other tests")]
mod support;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anemone_ane::{Options as Lowering, Pass};
use anemone_bundle::Bundle;
use anemone_coreml::simulated::{Fault, Simulated};
use anemone_coreml::{CompiledModels, ComputeUnits, CoreMl, Loadings, Options};
use anemone_emulator::{Emulator, Profile};
use anemone_mil::{Calls, Recording};
use anemone_session::{Engine, EngineError, GraphEngine, Traced};

const PROMPT: [u32; 9] = [1, 300, 17, 44, 900, 5, 23, 61, 8];
const TOKENS: usize = 12;

/// A bundle of the built-in model in a place of its own.
struct Place {
    dir: tempfile::TempDir,
    bundle: Bundle,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../anemone/assets/stories-lfm2");
        let options = Lowering {
            ctx: 64,
            passes: vec![Pass::Decode, Pass::Prefill(8)],
            layers_per_chunk: Some(3),
            ..Lowering::default()
        };
        let bundle = support::convert(&model, &dir.path().join("m.bundle"), &options);
        Self { dir, bundle }
    }

    fn cache(&self) -> PathBuf {
        self.dir.path().join("compiled")
    }

    fn options(&self, canaries: &Calls) -> Options {
        let options = Options::new(CompiledModels::new(self.cache()));
        Options {
            canaries: canaries.clone(),
            recheck: Some(4),
            predict_timeout: Duration::from_secs(5),
            ..options
        }
    }

    fn engine(&self, options: Options, faults: &[Fault]) -> Result<(GraphEngine, Loadings), EngineError> {
        let faults = faults.to_vec();
        let executor = CoreMl::new(options, move || Ok(Simulated::new(emulator(), &faults)));
        let executor = executor.map_err(EngineError::new)?;
        let loadings = executor.loadings();
        Ok((GraphEngine::new(self.bundle.clone(), Box::new(executor))?, loadings))
    }
}

fn emulator() -> Emulator {
    Emulator::new("fp16".parse::<Profile>().unwrap(), 2)
}

/// The most likely tokens after the prompt.
fn text(engine: &mut dyn Engine) -> Result<Vec<u32>, EngineError> {
    let best = |logits: &[f32]| {
        let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap();
        best as u32
    };
    let mut tokens = vec![best(engine.feed(&PROMPT)?)];
    while tokens.len() < TOKENS {
        let next = best(engine.feed(&[tokens[tokens.len() - 1]])?);
        tokens.push(next);
    }
    Ok(tokens)
}

/// The text of the emulator alone, and a call of every function.
fn expected(place: &Place) -> (Vec<u32>, Calls) {
    let executor = Recording::new(emulator());
    let recorded = executor.recorded();
    let mut engine = GraphEngine::new(place.bundle.clone(), Box::new(executor)).unwrap();
    for pass in [Pass::Decode, Pass::Prefill(8)] {
        engine.restrict(Some(pass)).unwrap();
        engine.feed(&PROMPT[..3]).unwrap();
        engine.reset();
    }
    engine.restrict(None).unwrap();
    (text(&mut engine).unwrap(), recorded.get())
}

/// What a fault must come to.
enum Outcome {
    /// The same text all the same.
    Text,
    /// An error with these words.
    Error(&'static [&'static str]),
}

#[test]
fn every_fault_ends_in_its_error_or_in_the_same_text() {
    use Outcome::{Error, Text};
    let place = Place::new();
    let (expected, canaries) = expected(&place);
    assert_eq!(
        canaries.len(),
        2 * place.bundle.manifest().packages.iter().filter(|p| p.file.starts_with("chunk")).count()
            + head_functions(&place)
    );
    let ms = Duration::from_millis;
    let table: Vec<(&str, Vec<Fault>, Outcome)> = vec![
        ("none", vec![], Text),
        ("slow compile", vec![Fault::SlowCompile(ms(100))], Text),
        (
            "compile fails without a reason",
            vec![Fault::CompileFails],
            Error(&["cannot compile", "no reason given", "--engine cpu"]),
        ),
        ("disk full", vec![Fault::DiskFull], Error(&["disk is full", "anemone cache gc"])),
        ("memory pressure", vec![Fault::MemoryPressure], Error(&["not enough memory", "smaller model"])),
        ("wrong outputs", vec![Fault::WrongOutputs], Error(&["not to be trusted", "cosine"])),
        ("NaN at once", vec![Fault::Nan { after: 0 }], Error(&["not to be trusted", "NaN at"])),
        ("NaN later", vec![Fault::Nan { after: 30 }], Error(&["not to be trusted", "NaN at"])),
        ("not repeatable", vec![Fault::Unsteady], Error(&["not to be trusted", "for the same inputs"])),
        ("drift at once", vec![Fault::Drift { after: 0 }], Error(&["not to be trusted", "cosine"])),
        (
            "error -14 at once",
            vec![Fault::Execution { after: 0 }],
            Error(&["Neural Engine could not run", "-14", "anemone cache gc"]),
        ),
        (
            "error -14 later",
            vec![Fault::Execution { after: 25 }],
            Error(&["Neural Engine could not run", "-14"]),
        ),
        (
            "hang",
            vec![Fault::Hang { after: 25 }],
            Error(&["did not come back from a prediction of", "start anemone again", "--engine cpu"]),
        ),
    ];
    for (name, faults, outcome) in table {
        let _ = std::fs::remove_dir_all(place.cache());
        let mut options = place.options(&canaries);
        if matches!(faults[..], [Fault::Hang { .. }]) {
            options.predict_timeout = ms(300);
        }
        let got = place.engine(options, &faults).and_then(|(mut engine, _)| text(&mut engine));
        match (got, outcome) {
            (Ok(tokens), Text) => assert_eq!(tokens, expected, "{name}"),
            (Err(error), Error(words)) => {
                let error = chain(&error);
                assert!(words.iter().all(|word| error.contains(word)), "{name}: {error}");
            }
            (Ok(tokens), Error(_)) => panic!("{name} goes unnoticed: {tokens:?}, expected {expected:?}"),
            (Err(error), Text) => panic!("{name}: {}", chain(&error)),
        }
    }
}

fn head_functions(place: &Place) -> usize {
    place.bundle.manifest().packages.iter().filter(|p| p.file.starts_with("head")).count()
}

fn chain(error: &EngineError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

#[test]
fn drift_is_found_at_the_next_trial() {
    let place = Place::new();
    let (_, canaries) = expected(&place);
    for after in [20, 24, 31] {
        let (mut engine, _) = place.engine(place.options(&canaries), &[Fault::Drift { after }]).unwrap();
        let error = chain(&text(&mut engine).unwrap_err());
        assert!(
            error.contains("not to be trusted") && error.contains("for the same inputs"),
            "{after}: {error}"
        );
    }
}

#[test]
fn what_must_run_on_the_neural_engine_and_does_not_is_refused() {
    let place = Place::new();
    let (expected, canaries) = expected(&place);
    let demand =
        |require: &str| Options { require: Some(require.parse().unwrap()), ..place.options(&canaries) };
    let (mut engine, loadings) = place.engine(demand("ane"), &[]).unwrap();
    assert_eq!(text(&mut engine).unwrap(), expected);
    let loaded = loadings.get();
    assert!(
        loaded.len() >= 4 && loaded.iter().all(|l| l.plan.as_ref().unwrap().summary().ane_share == Some(1.0))
    );
    let run = |options: Options, faults: &[Fault]| {
        place.engine(options, faults).and_then(|(mut engine, _)| text(&mut engine)).map_err(|e| chain(&e))
    };
    let error = run(demand("ane"), &[Fault::OnCpu]).unwrap_err();
    assert!(error.contains("--require") && error.contains("is on the cpu"), "{error}");
    assert_eq!(run(demand("ane=30"), &[Fault::OnCpu]).unwrap(), expected);
    let cpu = Options { units: ComputeUnits::CpuOnly, ..demand("ane=1") };
    assert!(run(cpu, &[]).unwrap_err().contains("0.0 % of it"), "nothing is there");
    // The plan says what it will, and the clock tells.
    let ratio = Options { most_ratio: Some(0.8), ..place.options(&canaries) };
    let error = run(ratio.clone(), &[Fault::SilentFallback]).unwrap_err();
    assert!(error.contains("of its time on the processor alone"), "{error}");
    assert_eq!(run(ratio.clone(), &[]).unwrap(), expected);
    let error = run(Options { canaries: Calls::new(), ..ratio }, &[]).unwrap_err();
    assert!(error.contains("no recorded call"), "{error}");
}

#[test]
fn a_package_is_compiled_once_and_a_broken_one_again() {
    let place = Place::new();
    let (expected, canaries) = expected(&place);
    let slow = [Fault::SlowCompile(Duration::from_millis(50))];
    let run = |faults: &[Fault]| {
        let start = Instant::now();
        let (mut engine, _) = place.engine(place.options(&canaries), faults).unwrap();
        assert_eq!(text(&mut engine).unwrap(), expected);
        start.elapsed()
    };
    run(&slow);
    let again = Options { compile_again: true, ..place.options(&canaries) };
    let failed = place.engine(again, &[Fault::CompileFails]).and_then(|(mut engine, _)| text(&mut engine));
    assert!(chain(&failed.unwrap_err()).contains("cannot compile"));
    run(&slow);
    // Whoever compiled them, they are found again; and where none could be made, none is.
    run(&[Fault::CompileFails]);
    let models = CompiledModels::new(place.cache()).list().unwrap();
    assert_eq!(models.len(), place.bundle.manifest().packages.len());
    for model in &models {
        let compiled = std::fs::read_dir(&model.path).unwrap().flatten().find(|e| e.path().is_dir()).unwrap();
        std::fs::remove_file(compiled.path().join("package")).unwrap();
    }
    run(&[]);
}
