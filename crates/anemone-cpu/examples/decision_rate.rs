//! The anemone arm of `benches/decisions`: `decision_rate CHECKPOINT THREADS [bf16]`.
//!
//! Each line of standard input is lengths of rows, separated by commas; it answers with the seconds of one call that scores them
//! and their logits. `memory` answers with the resident memory in KiB.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a tool of a benchmark, not of the product")]

use std::io::{self, BufRead};
use std::sync::Arc;
use std::time::Instant;

use anemone_checkpoint::DecisionCheckpoint;
use anemone_cpu::{LayaEngine, LayaModel, LayaOptions, Row};
use anemone_models::Laya;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let checkpoint = DecisionCheckpoint::open(args[1].as_ref()).unwrap();
    let weights = checkpoint.weights();
    let laya = Laya::load(checkpoint.agent_config(), checkpoint.encoder_config(), &*weights).unwrap();
    let model = Arc::new(LayaModel::load(laya, &*weights).unwrap());
    let options = LayaOptions { threads: args[2].parse().unwrap(), reduced: args.len() > 3 };
    let mut engine = LayaEngine::new(model, options);
    println!("ready");
    for line in io::stdin().lock().lines().map(Result::unwrap) {
        if line == "memory" {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let resident = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap();
            println!("{}", resident.trim().trim_end_matches(" kB"));
            continue;
        }
        let ids: Vec<Vec<u32>> = (line.split(',').enumerate())
            .map(|(row, len)| (0..len.parse::<u32>().unwrap()).map(|i| id(row as u32, i)).collect())
            .collect();
        let rows: Vec<Row<'_>> =
            ids.iter().map(|ids| Row { ids, markers: &[5, 9, 12], kind: 0, parallel: None }).collect();
        let start = Instant::now();
        let scores = engine.score(&rows).unwrap();
        let seconds = start.elapsed().as_secs_f64();
        let logits: Vec<String> = scores.iter().flat_map(|s| &s.logits).map(|v| format!("{v:.6}")).collect();
        println!("{seconds:.6} {}", logits.join(","));
    }
}

/// The token at a place of a row; `arms.py` has the same.
fn id(row: u32, i: u32) -> u32 {
    (i * 37 + row * 101 + 3) % 8000
}
