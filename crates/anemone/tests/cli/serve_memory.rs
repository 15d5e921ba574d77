use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::serve::Server;
use crate::support::{assets, read_json};

const MIB: u64 = 1 << 20;
/// Width of the feed-forward layers, which are most of the model.
const WIDTH: usize = 8192;

/// The demo model with much wider feed-forward layers, of numbers that follow from a seed; the bytes of its weights.
fn write_wide(dir: &Path) -> u64 {
    for name in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        std::fs::copy(assets().join(name), dir.join(name)).unwrap();
    }
    let mut config = read_json(&assets().join("config.json"));
    config["intermediate_size"] = WIDTH.into();
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    let whole = std::fs::read(assets().join("model.safetensors")).unwrap();
    let (length, rest) = whole.split_at(8);
    let (head, data) = rest.split_at(u64::from_le_bytes(length.try_into().unwrap()) as usize);
    let mut head: serde_json::Map<String, Value> = serde_json::from_slice(head).unwrap();
    let (mut bytes, mut seed) = (Vec::new(), 7u64);
    for (name, entry) in head.iter_mut().filter(|(name, _)| *name != "__metadata__") {
        let start = bytes.len();
        if name.contains("feed_forward.w") {
            let hidden = config["hidden_size"].as_u64().unwrap() as usize;
            entry["shape"] =
                if name.contains(".w2.") { json!([hidden, WIDTH]) } else { json!([WIDTH, hidden]) };
            bytes.extend((0..hidden * WIDTH).flat_map(|_| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                // bf16 of 2^-7 to 2^-6, of both signs.
                (0x3c00 | ((seed >> 40) as u16 & 0x807f)).to_le_bytes()
            }));
        } else {
            let at = |i: usize| entry["data_offsets"][i].as_u64().unwrap() as usize;
            bytes.extend_from_slice(&data[at(0)..at(1)]);
        }
        entry["data_offsets"] = json!([start, bytes.len()]);
    }
    let head = serde_json::to_vec(&head).unwrap();
    let whole = [&(head.len() as u64).to_le_bytes()[..], &head, &bytes].concat();
    std::fs::write(dir.join("model.safetensors"), whole).unwrap();
    bytes.len() as u64
}

#[test]
fn unloading_gives_the_memory_back() {
    let dir = tempfile::tempdir().unwrap();
    let weights = write_wide(dir.path());
    assert!(weights > 64 * MIB);
    let model = format!("wide={}", dir.path().display());
    let server = Server::start(&["-m", &model, "--on-demand", "--idle-unload", "1"]);
    let before = server.memory("VmRSS");
    // Caches and beginnings that are kept are memory, too: the prompt has some hundred tokens.
    let body =
        json!({"prompt": "once upon a time ".repeat(80), "max_tokens": 2, "ignore_eos": true}).to_string();
    for round in 0..3 {
        let (status, answer) = server.request("POST", "/v1/completions", "", &body);
        assert_eq!(status, 200, "{answer}");
        // Its most: it may be on its way out already.
        let loaded = server.memory("VmHWM");
        let start = Instant::now();
        while server.request("GET", "/v1/models", "", "").1["data"][0]["loaded"] == true {
            assert!(start.elapsed() < Duration::from_mins(1), "it stays");
            std::thread::sleep(Duration::from_millis(50));
        }
        // It is told of as gone before its thread has ended.
        let mut after = server.memory("VmRSS");
        while after > before + 16 * MIB && start.elapsed() < Duration::from_mins(1) {
            std::thread::sleep(Duration::from_millis(50));
            after = server.memory("VmRSS");
        }
        let told = [before, loaded, after].map(|bytes| bytes / MIB);
        let _ = writeln!(std::io::stderr(), "round {round}: MiB before, loaded, after: {told:?}");
        assert!(loaded > before + weights * 9 / 10, "{before} {loaded}: it was not loaded");
        assert!(after < before + 16 * MIB, "{before} {loaded} {after}: memory stays");
    }
    server.end("-TERM").ok();
}
