//! Decision models against rows recorded from laya in f32.

#![allow(clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use anemone_checkpoint::DecisionCheckpoint;
use anemone_cpu::{LayaEngine, LayaModel, LayaOptions, Row, Scores};
use anemone_kernels::Level;
use anemone_models::Laya;
use anemone_tensor::max_abs_diff;
use serde_json::Value;

/// Two f32 implementations of one sum differ by their order of adding: laya's own f64 twin is 7e-6 away. Action logits reach 10.
const TOLERANCE: f64 = 2e-5;

fn shared(path: &str) -> Option<PathBuf> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared").join(path);
    if !dir.exists() {
        // Not `eprintln!`, which the test runner swallows.
        let _ = writeln!(std::io::stderr(), "skipped: shared/{path} is not present");
        return None;
    }
    Some(dir)
}

fn json(path: PathBuf) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn model(dir: &str) -> Option<Arc<LayaModel>> {
    let checkpoint = DecisionCheckpoint::open(&shared(dir)?).unwrap();
    let weights = checkpoint.weights();
    let laya = Laya::load(checkpoint.agent_config(), checkpoint.encoder_config(), &*weights).unwrap();
    Some(Arc::new(LayaModel::load(laya, &*weights).unwrap()))
}

fn engine(model: &Arc<LayaModel>, reduced: bool, level: Level) -> LayaEngine {
    LayaEngine::with_level(Arc::clone(model), LayaOptions { threads: 2, reduced }, level)
}

fn floats(v: &Value) -> Vec<f32> {
    v.as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect()
}

struct Recorded {
    ids: Vec<u32>,
    markers: Vec<usize>,
    kind: usize,
    scores: Scores,
}

impl Recorded {
    fn read(row: &Value) -> Self {
        let whole = |v: &Value| v.as_u64().unwrap() as usize;
        let list = |key: &str| row[key].as_array().unwrap().iter().map(whole).collect::<Vec<_>>();
        Self {
            ids: list("ids").into_iter().map(|id| id as u32).collect(),
            markers: list("markers"),
            kind: whole(&row["qtype"]),
            scores: Scores { logits: floats(&row["logits"]), action_logits: floats(&row["action_logits"]) },
        }
    }

    fn row(&self) -> Row<'_> {
        Row { ids: &self.ids, markers: &self.markers, kind: self.kind, parallel: None }
    }

    fn of(cases: &Value) -> Vec<Self> {
        let cases = cases.as_array().unwrap().iter();
        cases.filter_map(|case| case["rows"].as_array()).flatten().map(Self::read).collect()
    }

    /// Largest difference to what was recorded.
    fn error(&self, scores: &Scores) -> f64 {
        max_abs_diff(&scores.logits, &self.scores.logits)
            .max(max_abs_diff(&scores.action_logits, &self.scores.action_logits))
    }
}

fn softmax(logits: &[f32]) -> Vec<f32> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f32 = logits.iter().map(|v| (v - max).exp()).sum();
    logits.iter().map(|v| (v - max).exp() / sum).collect()
}

fn worst(recorded: &[Recorded], scores: &[Scores]) -> f64 {
    recorded.iter().zip(scores).map(|(r, s)| r.error(s)).fold(0.0, f64::max)
}

#[test]
fn recorded_rows_on_every_level() {
    let Some(path) = shared("fixtures/laya-tiny/goldens.json") else { return };
    let goldens = json(path);
    let mut count = 0;
    for name in ["english", "multilingual"] {
        let model = model(&format!("fixtures/laya-tiny/{name}")).unwrap();
        let recorded = Recorded::of(&goldens[name]);
        count += recorded.len();
        let rows: Vec<Row<'_>> = recorded.iter().map(Recorded::row).collect();
        for &level in Level::available() {
            // The scalar level is slow, and of one code with the others.
            let rows = if level == Level::Scalar { &rows[..20] } else { &rows[..] };
            let scores = engine(&model, false, level).score(rows).unwrap();
            let error = worst(&recorded, &scores);
            assert!(error < TOLERANCE, "{name} {level:?}: {error}");
        }
        let mut engine = engine(&model, false, Level::best());
        let together = engine.score(&rows).unwrap();
        for (row, together) in rows.iter().zip(&together) {
            assert_eq!(engine.score(&[*row]).unwrap()[0], *together, "company changes a row");
        }
    }
    assert_eq!(count, 132);
}

#[test]
fn the_shipped_model_in_both_arithmetics() {
    let Some(path) = shared("models/laya-demo/goldens.json") else { return };
    let model = model("models/laya-demo").unwrap();
    let recorded = Recorded::of(&json(path)["cases"]);
    assert!(recorded.len() >= 40);
    let rows: Vec<Row<'_>> = recorded.iter().map(Recorded::row).collect();
    let error = worst(&recorded, &engine(&model, false, Level::best()).score(&rows).unwrap());
    assert!(error < TOLERANCE, "{error}");
    let reduced = engine(&model, true, Level::best()).score(&rows).unwrap();
    for (recorded, ours) in recorded.iter().zip(&reduced) {
        // The bar laya's own reduced-precision exports are held to: probabilities within 0.02.
        let (theirs, ours) = (softmax(&recorded.scores.logits), softmax(&ours.logits));
        assert!(max_abs_diff(&theirs, &ours) < 0.02, "{theirs:?} {ours:?}");
    }
}

#[test]
fn stages_of_recorded_rows() {
    let Some(path) = shared("fixtures/laya-tiny/traces.json") else { return };
    let traces = json(path);
    let mut compared = 0;
    for name in ["english", "multilingual"] {
        let model = model(&format!("fixtures/laya-tiny/{name}")).unwrap();
        let hidden = model.laya().encoder.hidden_size;
        for trace in traces[name].as_array().unwrap() {
            let goldens = json(shared("fixtures/laya-tiny/goldens.json").unwrap());
            let row = (goldens[name].as_array().unwrap().iter())
                .filter(|case| case["name"] == trace["case"])
                .flat_map(|case| case["rows"].as_array().unwrap())
                .find(|row| row["question"] == trace["question"])
                .map(Recorded::read)
                .unwrap();
            let mut seen = BTreeMap::new();
            engine(&model, false, Level::best())
                .score_tapped(&[row.row()], &mut |stage, x| {
                    seen.insert(stage.to_owned(), x.to_vec());
                })
                .unwrap();
            let ids = row.row().ids.to_vec();
            let means = engine(&model, false, Level::best()).embed(&[&ids[..3], &ids]).unwrap();
            let last = &seen["encoder.final_norm"];
            for (i, mean) in means[1].iter().enumerate() {
                let sum: f32 = last.chunks_exact(hidden).map(|x| x[i]).sum();
                assert!((mean - sum / ids.len() as f32).abs() < 1e-5, "{i}");
            }
            assert_eq!((means.len(), means[0].len()), (2, hidden));
            for (stage, entries) in trace["stages"].as_object().unwrap() {
                let Some(x) = seen.get(stage) else {
                    assert!(
                        stage.starts_with("scorer") || stage.starts_with("act_head"),
                        "{stage} is not shown"
                    );
                    continue;
                };
                for entry in entries.as_array().unwrap() {
                    let at = entry["pos"].as_u64().unwrap() as usize * hidden;
                    let ours = &x[at..at + hidden];
                    let norm = ours.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
                    // A few roundings of values near 10 in a stream of length 45.
                    assert!(max_abs_diff(&ours[..8], &floats(&entry["first8"])) < 5e-5, "{stage}");
                    assert!((norm - entry["l2"].as_f64().unwrap()).abs() < 5e-4, "{stage}: {norm}");
                    compared += 1;
                }
            }
        }
    }
    assert!(compared > 200, "{compared}");
}
