//! Runs one function of a package on tensors of a file, for comparison with other implementations.
//!
//! `run_package PACKAGE FUNCTION IN.safetensors OUT.safetensors [--profile f32|fp16] [--repeat N] [--taps]`
//!
//! Inputs and outputs are f32 whatever the program declares. States are tensors named `state:NAME` on both sides. With
//! `--taps` the output holds every result under `tap:NAME` too. With `--repeat` the function runs N more times and the mean time of a run is printed.

#![allow(clippy::print_stdout, reason = "a command-line program")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anemone_emulator::{Emulator, Profile};
use anemone_mil::{Array, Executor, States};
use anyhow::{Context, Result, anyhow, bail};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

fn main() -> Result<()> {
    let mut positional = Vec::new();
    let (mut profile, mut repeat, mut taps) = (Profile::fp16(), 0usize, false);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--profile" => profile = args.next().context("--profile needs f32 or fp16")?.parse()?,
            "--repeat" => repeat = args.next().context("--repeat needs a number")?.parse()?,
            "--taps" => taps = true,
            _ => positional.push(arg),
        }
    }
    let [package, function, input, output] = &positional[..] else {
        bail!(
            "usage: run_package PACKAGE FUNCTION IN.safetensors OUT.safetensors [--profile f32|fp16] [--repeat N]"
        );
    };
    let threads = std::thread::available_parallelism()?.get();
    let mut emulator = Emulator::new(profile, threads);
    let seen: Arc<Mutex<BTreeMap<String, Array>>> = Arc::default();
    if taps {
        let seen = Arc::clone(&seen);
        emulator = emulator.with_tap(Arc::new(move |o| {
            let array = Array { shape: o.ty.shape.clone(), data: o.values.to_vec() };
            seen.lock().unwrap_or_else(PoisonError::into_inner).insert(format!("tap:{}", o.name), array);
        }));
    }
    let mut function = emulator.load(Path::new(package), function).map_err(|e| anyhow!(e))?;

    let bytes = std::fs::read(input).with_context(|| input.clone())?;
    let mut inputs = BTreeMap::new();
    let mut states = States::new();
    for (name, view) in SafeTensors::deserialize(&bytes)?.iter() {
        if view.dtype() != Dtype::F32 {
            bail!("{input}: tensor `{name}` is {:?}, expected F32", view.dtype());
        }
        let data =
            view.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        let array = Array { shape: view.shape().to_vec(), data };
        match name.strip_prefix("state:") {
            Some(state) => drop(states.insert(state.to_string(), array)),
            None => drop(inputs.insert(name.to_string(), array)),
        }
    }
    let inputs: Vec<(&str, &Array)> = inputs.iter().map(|(n, a)| (n.as_str(), a)).collect();
    let before = states.clone();
    let outputs = function.predict(&inputs, &mut states).map_err(|e| anyhow!(e))?;
    if repeat > 0 {
        let start = Instant::now();
        for _ in 0..repeat {
            function.predict(&inputs, &mut before.clone()).map_err(|e| anyhow!(e))?;
        }
        println!("{:.6} s per run", start.elapsed().as_secs_f64() / repeat as f64);
    }
    let names = function.signature().outputs.iter().map(|(name, _)| name.clone());
    let seen = std::mem::take(&mut *seen.lock().unwrap_or_else(PoisonError::into_inner));
    let results = seen
        .into_iter()
        .chain(names.zip(outputs))
        .chain(states.into_iter().map(|(n, a)| (format!("state:{n}"), a)));
    let results: Vec<(String, Vec<usize>, Vec<u8>)> = results
        .map(|(name, a)| (name, a.shape, a.data.iter().flat_map(|v| v.to_le_bytes()).collect()))
        .collect();
    let mut views = BTreeMap::new();
    for (name, shape, bytes) in &results {
        views.insert(name.clone(), TensorView::new(Dtype::F32, shape.clone(), bytes)?);
    }
    safetensors::serialize_to_file(&views, None, Path::new(output))?;
    Ok(())
}
