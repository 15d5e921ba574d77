//! A converted decision model: the host's part around a program of fixed length.

use std::collections::BTreeMap;
use std::fmt;

use anemone_ane::{MASKED, OPTION_SLOTS};
use anemone_bundle::{DecisionBundle, DecisionFunction};
use anemone_checkpoint::DecisionCheckpoint;
use anemone_cpu::{ActionReadout, Row, Scores};
use anemone_mil::{Array, Executable, Executor, Signature, States, TensorType};
use anemone_models::Laya;
use anemone_tensor::Tensor;

use crate::scorer::Scorer;
use crate::{Error, Result};

/// A bundle's functions over an [`Executor`], each row by the shortest that holds it.
///
/// Embedding rows, masks, type vectors and markers are made here, and the action head runs here in f32.
pub struct GraphScorer {
    bundle: DecisionBundle,
    executor: Box<dyn Executor>,
    laya: Laya,
    embedding: Tensor,
    /// `[kinds, hidden]`.
    kinds: Vec<f32>,
    action: ActionReadout,
    pad: u32,
    /// How far a query of layers with a window sees.
    radius: usize,
    /// Shortest first.
    buckets: Vec<Bucket>,
}

struct Bucket {
    function: DecisionFunction,
    /// Once it was needed.
    loaded: Option<Box<dyn Executable>>,
}

impl GraphScorer {
    /// Compares every file of a bundle with its hash and its functions with the model; no function is loaded before a row needs it.
    ///
    /// `checkpoint` is the bundle's own, `pad` the token that fills rows up.
    pub fn open(
        bundle: DecisionBundle,
        checkpoint: &DecisionCheckpoint,
        mut executor: Box<dyn Executor>,
        pad: u32,
    ) -> Result<Self> {
        bundle.verify_hashes()?;
        let weights = checkpoint.weights();
        let laya = Laya::load(checkpoint.agent_config(), checkpoint.encoder_config(), &*weights)?;
        let unfit = |problem: String| Error::Bundle { bundle: bundle.dir().display().to_string(), problem };
        let manifest = bundle.manifest();
        if manifest.options.option_slots != OPTION_SLOTS {
            let problem = format!(
                "`options.option_slots` is {}, this version runs {OPTION_SLOTS}",
                manifest.options.option_slots
            );
            return Err(unfit(problem));
        }
        if pad as usize >= laya.encoder.vocab_size {
            return Err(unfit(format!("the padding token {pad} is outside the model's vocabulary")));
        }
        let package = bundle.package();
        let signatures = executor
            .signatures(&package)
            .map_err(|source| Error::Executor { what: package.display().to_string(), source })?;
        for function in &manifest.functions {
            let found = signatures.get(&function.name);
            let found =
                found.ok_or_else(|| unfit(format!("the package has no function `{}`", function.name)))?;
            if let Some(problem) = difference(found, laya.encoder.hidden_size, function.length) {
                return Err(unfit(format!("function `{}` {problem}", function.name)));
            }
        }
        let buckets = manifest.functions.iter().cloned();
        let buckets = buckets.map(|function| Bucket { function, loaded: None }).collect();
        let mut radii: Vec<usize> = laya.encoder.layers.iter().filter_map(|l| l.attention.radius).collect();
        radii.dedup();
        let widen = |weight: &anemone_models::WeightRef| {
            let tensor_error = |source| anemone_models::Error::Tensor { name: weight.name.clone(), source };
            weight.load(&*weights)?.to_f32().map_err(tensor_error)
        };
        Ok(Self {
            embedding: laya.encoder.embedding.load(&*weights)?,
            kinds: widen(&laya.kind_embedding)?,
            action: ActionReadout::load(&laya, &*weights)?,
            // A model without windows ignores the mask.
            radius: radii.first().copied().unwrap_or(0),
            pad,
            buckets,
            laya,
            bundle,
            executor,
        })
    }

    /// Tokens of the longest rows it takes.
    pub fn longest(&self) -> usize {
        self.buckets.last().map_or(0, |b| b.function.length)
    }

    fn run(&mut self, place: usize, row: &Row<'_>) -> Result<Scores> {
        let wrong = |problem| Error::Engine(anemone_cpu::Error::Row { row: place, problem });
        row.check(&self.laya).map_err(wrong)?;
        if row.parallel.is_some() {
            return Err(wrong("has options side by side, which no bundle knows; use the CPU engine".into()));
        }
        self.admits(row.ids.len(), row.markers.len()).map_err(wrong)?;
        let fits = |b: &Bucket| b.function.length >= row.ids.len();
        let Some(at) = self.buckets.iter().position(fits) else {
            return Err(wrong("fits no function".into()));
        };
        let length = self.buckets[at].function.length;
        let inputs = self.inputs(row, length)?;
        let inputs: Vec<(&str, &Array)> = inputs.iter().map(|(name, array)| (*name, array)).collect();
        let name = self.buckets[at].function.name.clone();
        let failed = |source| Error::Executor { what: format!("function `{name}`"), source };
        let executable = match &mut self.buckets[at].loaded {
            Some(loaded) => loaded,
            empty => {
                let loaded = self.executor.load(&self.bundle.package(), &name).map_err(failed)?;
                if let Some(problem) = difference(loaded.signature(), self.laya.encoder.hidden_size, length) {
                    let bundle = self.bundle.dir().display().to_string();
                    return Err(Error::Bundle { bundle, problem: format!("function `{name}` {problem}") });
                }
                empty.insert(loaded)
            }
        };
        let names: Vec<String> = executable.signature().outputs.iter().map(|(n, _)| n.clone()).collect();
        let outputs = executable.predict(&inputs, &mut States::new()).map_err(failed)?;
        let outputs: BTreeMap<String, Array> = names.into_iter().zip(outputs).collect();
        let logits = outputs["logits"].data[..row.markers.len()].to_vec();
        let first = &outputs["cls"].data;
        let action_logits = self.action.score(first, &logits);
        let mut numbers = logits.iter().chain(first).chain(&action_logits);
        if numbers.any(|v| !v.is_finite()) {
            return Err(Error::NotFinite { row: place, function: name });
        }
        Ok(Scores { logits, action_logits })
    }

    /// The inputs of a function of `length` tokens for a checked row that fits.
    fn inputs(&self, row: &Row<'_>, length: usize) -> Result<Vec<(&'static str, Array)>> {
        let (hidden, valid) = (self.laya.encoder.hidden_size, row.ids.len());
        let mut embeddings = Array::zeros(&[1, hidden, 1, length]);
        let vector = |id: u32| -> std::result::Result<Vec<f32>, anemone_tensor::TensorError> {
            self.embedding.rows(id as usize, id as usize + 1)?.to_f32()
        };
        let failed = |source| {
            let name = self.laya.encoder.embedding.name.clone();
            Error::Model(anemone_models::Error::Tensor { name, source })
        };
        let padding = vector(self.pad).map_err(failed)?;
        for i in 0..length {
            let known = row.ids.get(i).map(|id| vector(*id)).transpose().map_err(failed)?;
            for (c, v) in known.as_ref().unwrap_or(&padding).iter().enumerate() {
                embeddings.data[c * length + i] = *v;
            }
        }
        let mask = |sees: &dyn Fn(usize, usize) -> bool| {
            let entry = |i: usize| if sees(i / length, i % length) { 0.0 } else { MASKED };
            Array { shape: vec![1, length, 1, length], data: (0..length * length).map(entry).collect() }
        };
        // Padding that asks sees every token, so that no softmax is empty.
        let near = |k: usize, q: usize| q >= valid || k.abs_diff(q) <= self.radius;
        let kinds = self.kinds[row.kind * hidden..(row.kind + 1) * hidden].to_vec();
        let mut markers = Array::zeros(&[1, length, 1, OPTION_SLOTS]);
        for (slot, at) in row.markers.iter().enumerate() {
            markers.data[at * OPTION_SLOTS + slot] = 1.0;
        }
        Ok(vec![
            ("embeddings", embeddings),
            ("full_mask", mask(&|k, _| k < valid)),
            ("local_mask", mask(&|k, q| k < valid && near(k, q))),
            ("type_vectors", Array { shape: vec![1, hidden, 1, 1], data: kinds }),
            ("marker_map", markers),
        ])
    }
}

impl Scorer for GraphScorer {
    fn laya(&self) -> &Laya {
        &self.laya
    }

    fn admits(&self, tokens: usize, options: usize) -> std::result::Result<(), String> {
        let longest = self.longest();
        if tokens > longest {
            return Err(format!(
                "has {tokens} tokens with its state, and the bundle's longest function holds {longest}; convert with a longer \
                 --length, allow cutting the state with --max-len {longest}, or run the checkpoint on the CPU engine"
            ));
        }
        if options > OPTION_SLOTS {
            return Err(format!(
                "has {options} options, and a bundle's functions hold {OPTION_SLOTS}; ask with fewer, or run the checkpoint on \
                 the CPU engine"
            ));
        }
        Ok(())
    }

    fn score(&mut self, rows: &[Row<'_>]) -> Result<Vec<Scores>> {
        rows.iter().enumerate().map(|(place, row)| self.run(place, row)).collect()
    }

    fn embed(&mut self, _: &[&[u32]]) -> Result<Vec<Vec<f32>>> {
        let problem = "gives no encoder outputs, which shortlists need; run the checkpoint on the CPU engine";
        Err(Error::Bundle { bundle: self.bundle.dir().display().to_string(), problem: problem.to_owned() })
    }
}

/// How a function is not the one of a length; `None` when it is.
fn difference(found: &Signature, hidden: usize, length: usize) -> Option<String> {
    let inputs = [
        ("embeddings", [1, hidden, 1, length]),
        ("full_mask", [1, length, 1, length]),
        ("local_mask", [1, length, 1, length]),
        ("type_vectors", [1, hidden, 1, 1]),
        ("marker_map", [1, length, 1, OPTION_SLOTS]),
    ];
    let outputs = [("logits", [1, 1, 1, OPTION_SLOTS]), ("cls", [1, hidden, 1, 1])];
    let side = |side: &str, expected: &[(&str, [usize; 4])], found: &[(String, TensorType)]| {
        for (name, shape) in expected {
            match found.iter().find(|(found, _)| found == name) {
                None => return Some(format!("has no {side} `{name}`")),
                Some((_, ty)) if ty.shape != shape => {
                    return Some(format!("has {side} `{name}` of {:?}, expected {shape:?}", ty.shape));
                }
                Some(_) => {}
            }
        }
        let (has, asked) = (found.len(), expected.len());
        (has > asked).then(|| format!("has {has} {side}s, expected {asked}"))
    };
    let states = || (!found.states.is_empty()).then(|| "has states, expected none".to_owned());
    side("input", &inputs, &found.inputs).or_else(|| side("output", &outputs, &found.outputs)).or_else(states)
}

impl fmt::Debug for GraphScorer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GraphScorer({}, {} functions)", self.bundle.dir().display(), self.buckets.len())
    }
}
