//! A converted decision model: the host's part around a program of fixed length.

mod contract;
mod inputs;
mod packing;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;

use anemone_ane::{LayaFunctions, OPTION_SLOTS};
use anemone_bundle::DecisionBundle;
use anemone_checkpoint::DecisionCheckpoint;
use anemone_cpu::{ActionReadout, Row, Scores};
use anemone_mil::{Array, Executable, Executor, States};
use anemone_models::Laya;

use crate::scorer::Scorer;
use crate::{Error, Result};
use contract::Contract;
use inputs::{Host, round_tables};
use packing::{Size, passes};

/// A bundle's functions over an [`Executor`], each row by the shortest that holds it, or several rows together.
///
/// Embedding rows, masks, type vectors and markers are made here, and the action head runs here in f32.
pub struct GraphScorer {
    bundle: DecisionBundle,
    executor: Box<dyn Executor>,
    laya: Laya,
    host: Host,
    action: ActionReadout,
    /// Whether rows share passes.
    pack: bool,
    /// Functions of each length, shortest first.
    buckets: Vec<LayaFunctions>,
    /// Functions that were needed, by name.
    loaded: BTreeMap<String, Box<dyn Executable>>,
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
        for of in &manifest.functions {
            for (name, packed) in [(Some(&of.name), false), (of.packed.as_ref(), true)] {
                let Some(name) = name else { continue };
                let found = signatures.get(name);
                let found = found.ok_or_else(|| unfit(format!("the package has no function `{name}`")))?;
                if let Some(problem) = Contract::new(&laya, of.length, packed).difference(found) {
                    return Err(unfit(format!("function `{name}` {problem}")));
                }
            }
        }
        let widen = |weight: &anemone_models::WeightRef| {
            let tensor_error = |source| anemone_models::Error::Tensor { name: weight.name.clone(), source };
            weight.load(&*weights)?.to_f32().map_err(tensor_error)
        };
        let host = Host {
            embedding: laya.encoder.embedding.load(&*weights)?,
            kinds: widen(&laya.kind_embedding)?,
            pad,
            // All windows of a model are one; a model without any ignores the mask.
            radius: laya.encoder.layers.iter().find_map(|l| l.attention.radius).unwrap_or(0),
        };
        let action = ActionReadout::load(&laya, &*weights)?;
        let (buckets, loaded) = (manifest.functions.clone(), BTreeMap::new());
        Ok(Self { bundle, executor, laya, host, action, pack: false, buckets, loaded })
    }

    /// Tokens of the longest rows it takes.
    pub fn longest(&self) -> usize {
        self.buckets.last().map_or(0, |b| b.length)
    }

    /// Runs every function once over rows of made-up tokens: what a recording of its calls is made of.
    pub fn run_each(&mut self) -> Result<()> {
        let vocab = self.laya.encoder.vocab_size;
        for bucket in self.buckets.clone() {
            let ids: Vec<u32> = (1..=bucket.length).map(|i| (i * i * 31 % vocab) as u32).collect();
            let row = |ids, markers| Row { ids, markers, kind: 0, parallel: None };
            self.run(&[0], &[row(&ids[..], &[1, 3])])?;
            if bucket.packed.is_some() {
                let (first, second) = ids.split_at(bucket.length / 2);
                self.run(&[0, 1], &[row(first, &[1, 3]), row(second, &[2])])?;
            }
        }
        Ok(())
    }

    fn check(&self, row: &Row<'_>) -> std::result::Result<(), String> {
        row.check(&self.laya)?;
        if row.parallel.is_some() {
            return Err("has options side by side, which no bundle knows; use the CPU engine".into());
        }
        self.admits(row.ids.len(), row.markers.len())
    }

    /// Scores of checked rows that fit a function together; `places` are theirs in the call.
    fn run(&mut self, places: &[usize], rows: &[Row<'_>]) -> Result<Vec<Scores>> {
        let tokens: usize = rows.iter().map(|row| row.ids.len()).sum();
        let bucket = self.buckets.iter().find(|b| b.length >= tokens);
        let function =
            bucket.and_then(|b| Some((b.length, if rows.len() > 1 { b.packed.as_ref()? } else { &b.name })));
        let Some((length, name)) = function.map(|(length, name)| (length, name.clone())) else {
            let problem = "fits no function".to_owned();
            return Err(Error::Engine(anemone_cpu::Error::Row { row: places[0], problem }));
        };
        let packed = rows.len() > 1;
        let failed = |source| Error::Executor { what: format!("function `{name}`"), source };
        let mut inputs = self.host.inputs(&self.laya, rows, length, packed)?;
        let executable = match self.loaded.entry(name.clone()) {
            Entry::Occupied(loaded) => loaded.into_mut(),
            Entry::Vacant(empty) => {
                let loaded = self.executor.load(&self.bundle.package(), &name).map_err(failed)?;
                let contract = Contract::new(&self.laya, length, packed);
                if let Some(problem) = contract.difference(loaded.signature()) {
                    let bundle = self.bundle.dir().display().to_string();
                    return Err(Error::Bundle { bundle, problem: format!("function `{name}` {problem}") });
                }
                empty.insert(loaded)
            }
        };
        round_tables(&mut inputs, executable.signature());
        let inputs: Vec<(&str, &Array)> = inputs.iter().map(|(name, array)| (name.as_str(), array)).collect();
        let names: Vec<String> = executable.signature().outputs.iter().map(|(n, _)| n.clone()).collect();
        let outputs = executable.predict(&inputs, &mut States::new()).map_err(failed)?;
        let outputs: BTreeMap<String, Array> = names.into_iter().zip(outputs).collect();
        let (logits, cls) = (&outputs["logits"].data, &outputs["cls"].data);
        let firsts = cls.len() / self.laya.encoder.hidden_size;
        let (mut scores, mut slot) = (Vec::with_capacity(rows.len()), 0);
        for (i, row) in rows.iter().enumerate() {
            let logits = logits[slot..slot + row.markers.len()].to_vec();
            slot += row.markers.len();
            let first: Vec<f32> = cls.iter().skip(i).step_by(firsts).copied().collect();
            let action_logits = self.action.score(&first, &logits);
            let mut numbers = logits.iter().chain(&first).chain(&action_logits);
            if numbers.any(|v| !v.is_finite()) {
                return Err(Error::NotFinite { row: places[i], function: name });
            }
            scores.push(Scores { logits, action_logits });
        }
        Ok(scores)
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
        for (row, checked) in rows.iter().map(|row| self.check(row)).enumerate() {
            checked.map_err(|problem| Error::Engine(anemone_cpu::Error::Row { row, problem }))?;
        }
        let sizes: Vec<Size> =
            (rows.iter()).map(|row| Size { tokens: row.ids.len(), options: row.markers.len() }).collect();
        let lengths: Vec<usize> = self.buckets.iter().map(|b| b.length).collect();
        let mut scores: Vec<(usize, Scores)> = Vec::with_capacity(rows.len());
        for pass in passes(&sizes, &lengths, OPTION_SLOTS, self.pack) {
            let of: Vec<Row<'_>> = pass.rows.iter().map(|i| rows[*i]).collect();
            let found = match self.run(&pass.rows, &of) {
                // One question's overflow may have reached the others, so each shows alone what it is.
                Err(Error::NotFinite { .. }) if of.len() > 1 => (pass.rows.iter().zip(&of))
                    .map(|(place, row)| Ok(self.run(&[*place], &[*row])?.remove(0)))
                    .collect::<Result<Vec<Scores>>>()?,
                found => found?,
            };
            scores.extend(pass.rows.into_iter().zip(found));
        }
        scores.sort_by_key(|(place, _)| *place);
        Ok(scores.into_iter().map(|(_, scores)| scores).collect())
    }

    fn pack(&mut self) -> Result<()> {
        if self.buckets.iter().any(|b| b.packed.is_none()) {
            let problem = "has no functions for several questions in a row; convert the checkpoint again with --pack, or leave \
                           --pack out here";
            return Err(Error::Bundle {
                bundle: self.bundle.dir().display().to_string(),
                problem: problem.to_owned(),
            });
        }
        self.pack = true;
        Ok(())
    }

    fn embed(&mut self, _: &[&[u32]]) -> Result<Vec<Vec<f32>>> {
        let problem = "gives no encoder outputs, which shortlists need; run the checkpoint on the CPU engine";
        Err(Error::Bundle { bundle: self.bundle.dir().display().to_string(), problem: problem.to_owned() })
    }
}

impl fmt::Debug for GraphScorer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GraphScorer({}, {} functions)", self.bundle.dir().display(), self.buckets.len())
    }
}
