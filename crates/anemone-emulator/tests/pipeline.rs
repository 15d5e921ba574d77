//! Converted checkpoints through the graph pipeline, against recorded outputs and the CPU engine.

#![allow(clippy::unwrap_used, reason = "a failed expectation is a failed test")]

mod support;

use std::path::Path;
use std::sync::Arc;

use anemone_ane::{CacheKind, Options, Pass, Rules, Silu};
use anemone_bundle::{Bundle, BundleWeights};
use anemone_checkpoint::{Checkpoint, Weights};
use anemone_cpu::{Arithmetic, Layout, LogitsOf, Model};
use anemone_emulator::{Emulator, Profile};
use anemone_session::{Engine, GraphEngine, Traced};
use anemone_tensor::{argmax, cosine, max_abs_diff};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde_json::Value;

use support::{convert, fixture};

const DENSE: [&str; 4] =
    ["lfm2-tiny-tied", "lfm2-tiny-untied-sharded", "lfm3-tiny", "lfm3-tiny-options-sharded"];

/// Logits of std 2. Only constants, which the program holds in fp16, differ from the reference.
const F32_TOLERANCE: f64 = 2e-3;
/// Every operation rounds to 11 bits; the least measured after a prompt is 0.99996.
const FP16_COSINE: f64 = 0.9999;
/// The same at any later step, where a flat row of logits may come up; the least measured is 0.99985.
const FP16_STEP_COSINE: f64 = 0.9997;

const PREFILL: usize = 8;
const DRAFTS: usize = 3;

/// What the conversions of these tests have in common.
fn options(ring: bool, cache: CacheKind) -> Options {
    Options {
        ctx: 256,
        passes: vec![Pass::Decode, Pass::Prefill(PREFILL), Pass::Verify(DRAFTS + 1)],
        ring,
        cache,
        layers_per_chunk: Some(3),
        head_slices: Some(2),
        ..Options::default()
    }
}

fn engine(bundle: &Bundle, profile: Profile) -> GraphEngine {
    GraphEngine::new(bundle.clone(), Box::new(Emulator::new(profile, 2))).unwrap()
}

/// The CPU engine, in f32, on the weights of the bundle.
fn cpu(dir: &Path, bundle: &Bundle) -> anemone_cpu::Engine {
    cpu_on(dir, &BundleWeights::open(bundle).unwrap())
}

/// The CPU engine, in f32, on the checkpoint itself.
fn checkpoint(dir: &Path) -> anemone_cpu::Engine {
    cpu_on(dir, &*Checkpoint::open(dir).unwrap().weights())
}

fn cpu_on(dir: &Path, weights: &dyn Weights) -> anemone_cpu::Engine {
    let checkpoint = Checkpoint::open(dir).unwrap();
    let stack = anemone_models::load(checkpoint.config(), weights).unwrap();
    let model = Arc::new(Model::load(stack, weights, Layout::Mapped).unwrap());
    let options = anemone_cpu::Options {
        threads: 2,
        arithmetic: Arithmetic::Exact,
        context_len: Some(256),
        ..anemone_cpu::Options::default()
    };
    anemone_cpu::Engine::new(model, options).unwrap()
}

fn ids(v: &Value) -> Vec<u32> {
    v.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

fn floats(v: &Value) -> Vec<f32> {
    v.as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect()
}

fn prompts(dir: &Path) -> Vec<Value> {
    let goldens: Value = serde_json::from_slice(&std::fs::read(dir.join("goldens.json")).unwrap()).unwrap();
    goldens["prompts"].as_array().unwrap().clone()
}

fn margin(logits: &[f32]) -> f64 {
    let best = argmax(logits).unwrap();
    let others = logits.iter().enumerate().filter(|(i, _)| *i != best);
    f64::from(logits[best] - others.map(|(_, v)| *v).fold(f32::NEG_INFINITY, f32::max))
}

#[test]
fn logits_and_greedy_ids_match_the_reference() {
    for name in DENSE {
        let Some(dir) = fixture(name) else { return };
        let place = tempfile::tempdir().unwrap();
        // bf16 is held by fp16 exactly. The f32 checkpoints lose bits in the conversion, which moves logits by up to 5e-2: their
        // bundles are held to the CPU engine on the bundle's own weights, and to the recordings by cosine.
        let exact_weights = name.ends_with("sharded");
        for ring in [true, false] {
            let bundle =
                convert(&dir, &place.path().join(format!("{ring}.bundle")), &options(ring, CacheKind::Io));
            let (mut cpu, mut original) = (cpu(&dir, &bundle), checkpoint(&dir));
            let (mut wide, mut half) = (engine(&bundle, Profile::f32()), engine(&bundle, Profile::fp16()));
            for prompt in prompts(&dir) {
                let what = format!("{name} ring {ring} prompt {}", prompt["name"]);
                let (tokens, recorded) = (ids(&prompt["token_ids"]), floats(&prompt["last_logits"]));
                wide.reset();
                half.reset();
                cpu.reset();
                original.reset();
                let mut expected = cpu.feed(&tokens, LogitsOf::Last).unwrap().to_vec();
                let mut reference = original.feed(&tokens, LogitsOf::Last).unwrap().to_vec();
                let mut logits = wide.feed(&tokens).unwrap().to_vec();
                let mut rounded = half.feed(&tokens).unwrap().to_vec();
                let off = max_abs_diff(&logits, &recorded);
                assert!(!exact_weights || off <= F32_TOLERANCE, "{what}: f32 is off by {off:e}");
                for (logits, profile) in [(&logits, "f32"), (&rounded, "fp16")] {
                    let similar = cosine(logits, &recorded);
                    assert!(similar >= FP16_COSINE, "{what}: {profile} cosine {similar}");
                }
                let steps = if ring { 32 } else { 4 };
                for (step, id) in ids(&prompt["greedy_ids"]).into_iter().take(steps).enumerate() {
                    let what = format!("{what} step {step}");
                    let off = max_abs_diff(&logits, &expected);
                    assert!(off <= F32_TOLERANCE, "{what}: f32 is off by {off:e}");
                    assert_eq!(argmax(&reference), Some(id as usize), "{what}: the recording");
                    let similar = cosine(&rounded, &logits);
                    assert!(similar >= FP16_STEP_COSINE, "{what}: fp16 cosine {similar}");
                    for (logits, profile) in [(&logits, "f32"), (&rounded, "fp16")] {
                        let chosen = argmax(logits).unwrap();
                        assert!(!exact_weights || profile == "fp16" || chosen == id as usize, "{what}: f32");
                        // Another token only where the reference holds the best two for closer than the measured error.
                        let (margin, error) = (margin(&reference), max_abs_diff(logits, &reference));
                        let same = chosen == id as usize;
                        assert!(same || margin <= error, "{what}: {profile} margin {margin}, error {error}");
                    }
                    expected = cpu.feed(&[id], LogitsOf::Last).unwrap().to_vec();
                    reference = original.feed(&[id], LogitsOf::Last).unwrap().to_vec();
                    logits = wide.feed(&[id]).unwrap().to_vec();
                    rounded = half.feed(&[id]).unwrap().to_vec();
                }
            }
        }
    }
}

#[test]
fn any_length_of_prompt_gives_the_logits_of_the_cpu_engine() {
    for name in DENSE {
        let Some(dir) = fixture(name) else { return };
        let place = tempfile::tempdir().unwrap();
        let bundle = convert(&dir, &place.path().join("bundle"), &options(true, CacheKind::State));
        let mut cpu = cpu(&dir, &bundle);
        let mut graph = engine(&bundle, Profile::f32());
        let long = prompts(&dir).iter().map(|p| ids(&p["token_ids"])).max_by_key(Vec::len).unwrap();
        let full: Vec<u32> = long.iter().cycle().take(256).copied().collect();
        for n in [1, PREFILL - 1, PREFILL, PREFILL + 1, 3 * PREFILL + 5, 256] {
            cpu.reset();
            let expected = cpu.feed(&full[..n], LogitsOf::All).unwrap().to_vec();
            graph.reset();
            let vocab = graph.vocab_size();
            let last = graph.feed(&full[..n]).unwrap();
            let off = max_abs_diff(last, &expected[(n - 1) * vocab..]);
            assert!(off <= F32_TOLERANCE, "{name}: the last of {n} tokens is off by {off:e}");
            graph.reset();
            let off = max_abs_diff(graph.feed_all(&full[..n]).unwrap(), &expected);
            assert!(off <= F32_TOLERANCE, "{name}: {n} tokens are off by {off:e}");
        }
    }
}

/// Arithmetic rules, each switched on at the width of tiny models.
fn rules() -> [(&'static str, Rules); 7] {
    let none = Rules::none();
    [
        ("split", Rules { split_wide: Some(24), split_head: Some(20), ..none }),
        ("scaled", Rules { scale_wide: Some((16, 4)), ..none }),
        ("split and scaled", Rules { split_wide: Some(40), scale_wide: Some((16, 3)), ..none }),
        ("exact silu", Rules { silu: Silu::Exact, ..none }),
        ("tanh silu", Rules { silu: Silu::Tanh, ..none }),
        ("default", Rules::default()),
        ("none", none),
    ]
}

#[test]
fn rules_change_neither_the_numbers_nor_the_weights_that_are_read_back() {
    for name in DENSE {
        let Some(dir) = fixture(name) else { return };
        let place = tempfile::tempdir().unwrap();
        let tokens = long_prompt(&dir, 2 * PREFILL + 3);
        let mut stored = None;
        for (what, rules) in rules() {
            let options = Options { rules, ..options(true, CacheKind::Io) };
            let bundle = convert(&dir, &place.path().join(what), &options);
            let weights = BundleWeights::open(&bundle).unwrap();
            let tensors: Vec<_> =
                weights.names().iter().map(|n| weights.tensor(n).unwrap().bytes().to_vec()).collect();
            // What was cut is put together again, and powers of two take nothing away from bf16; f32 is rounded twice.
            let stored = stored.get_or_insert_with(|| tensors.clone());
            let exact = name.ends_with("sharded") || rules.scale_wide.is_none();
            assert!(!exact || *stored == tensors, "{name}, {what}: weights differ");
            let expected = cpu(&dir, &bundle).feed(&tokens, LogitsOf::All).unwrap().to_vec();
            let off = max_abs_diff(engine(&bundle, Profile::f32()).feed_all(&tokens).unwrap(), &expected);
            assert!(off <= F32_TOLERANCE, "{name}, {what}: f32 is off by {off:e}");
            let mut half = engine(&bundle, Profile::fp16());
            let similar = cosine(half.feed_all(&tokens).unwrap(), &expected);
            assert!(similar >= FP16_COSINE, "{name}, {what}: fp16 cosine {similar}");
        }
    }
}

/// Every way to keep the caches: rings or not, with the host or in states.
const CACHES: [(bool, CacheKind); 4] =
    [(true, CacheKind::Io), (false, CacheKind::Io), (true, CacheKind::State), (false, CacheKind::State)];

/// Long enough for rings to wrap many times, a state's of 32 rows too.
const CTX: usize = 96;

/// Logits after each of `tokens`, decoded one by one.
fn decoded(graph: &mut GraphEngine, tokens: &[u32]) -> Vec<f32> {
    graph.reset();
    tokens.iter().flat_map(|t| graph.feed(&[*t]).unwrap().to_vec()).collect()
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|v| v.to_bits()).collect()
}

fn long_prompt(dir: &Path, n: usize) -> Vec<u32> {
    let longest = prompts(dir).iter().map(|p| ids(&p["token_ids"])).max_by_key(Vec::len).unwrap();
    longest.iter().cycle().take(n).copied().collect()
}

#[test]
fn passes_steps_back_and_caches_change_no_bit() {
    for name in DENSE {
        let Some(dir) = fixture(name) else { return };
        let place = tempfile::tempdir().unwrap();
        let bundles = CACHES.map(|(ring, cache)| {
            let options = Options { ctx: CTX, ..options(ring, cache) };
            convert(&dir, &place.path().join(format!("{ring}-{cache:?}.bundle")), &options)
        });
        let tokens = long_prompt(&dir, CTX);
        for profile in ["f32", "fp16", "m1", "m4"].map(|p| p.parse::<Profile>().unwrap()) {
            // Rows go into a state by a product with 0 and 1, which the sums of these round or drop like any other.
            let rounds = ["m1", "m4"].contains(&profile.name());
            if rounds && name != "lfm3-tiny" {
                continue;
            }
            let plain = bits(&decoded(&mut engine(&bundles[0], profile.clone()), &tokens));
            for (bundle, (ring, cache)) in bundles.iter().zip(CACHES) {
                if rounds && cache == CacheKind::State {
                    continue;
                }
                let what = format!("{name} {profile} ring {ring} {cache:?}");
                let mut graph = engine(bundle, profile.clone());
                let vocab = graph.vocab_size();
                let expected = |from: usize, to: usize| &plain[from * vocab..to * vocab];
                assert!(bits(&decoded(&mut graph, &tokens)) == plain, "{what}: decoded one by one");
                for n in [1, PREFILL - 1, PREFILL, PREFILL + 1, 3 * PREFILL + 5, CTX] {
                    graph.reset();
                    let all = bits(graph.feed_all(&tokens[..n]).unwrap());
                    assert!(all == expected(0, n), "{what}: a prompt of {n}");
                    for (at, id) in tokens.iter().enumerate().skip(n).take(4) {
                        let next = bits(graph.feed(&[*id]).unwrap());
                        assert!(next == expected(at, at + 1), "{what}: token {at} after a prompt of {n}");
                    }
                }
                graph.reset();
                let mut at = 21;
                graph.feed(&tokens[..at]).unwrap();
                while at + DRAFTS + 1 < CTX {
                    // The right tokens, then wrong drafts, all in one pass.
                    let kept = 1 + at * 7 % (DRAFTS + 1);
                    let mut drafts = tokens[at..at + kept].to_vec();
                    drafts.resize(DRAFTS + 1, 5);
                    let verified = bits(&graph.feed_all(&drafts).unwrap()[..kept * vocab]);
                    assert!(verified == expected(at, at + kept), "{what}: {kept} verified from {at}");
                    at += kept;
                    assert_eq!(graph.nearest(at), at);
                    graph.rewind(at).unwrap();
                    let next = bits(graph.feed(&tokens[at..=at]).unwrap());
                    assert!(next == expected(at, at + 1), "{what}: token {at} after a verification");
                    at += 1;
                }
            }
        }
    }
}

#[test]
fn a_ring_in_a_state_says_how_far_back_it_goes() {
    let Some(dir) = fixture("lfm3-tiny") else { return };
    let place = tempfile::tempdir().unwrap();
    let passes = vec![Pass::Decode, Pass::Prefill(48)];
    let options = Options { ctx: CTX, passes, ..options(true, CacheKind::State) };
    let bundle = convert(&dir, &place.path().join("bundle"), &options);
    let states = bundle.manifest().plan.chunks.iter().flat_map(|c| &c.states);
    let mut shapes: Vec<_> = states.map(|s| (s.rows, s.ring)).collect();
    shapes.sort_unstable();
    shapes.dedup();
    assert_eq!(shapes, [(32, true), (96, false)]);
    let tokens = long_prompt(&dir, CTX);
    let mut graph = engine(&bundle, Profile::fp16());
    let plain = bits(&decoded(&mut graph, &tokens));
    graph.reset();
    graph.feed(&tokens[..48]).unwrap();
    // The window of 8 at position 23 needs row 16, the oldest of the last 32.
    assert_eq!((graph.nearest(22), graph.nearest(23), graph.nearest(40)), (0, 23, 40));
    let error = graph.rewind(22).unwrap_err().to_string();
    assert_eq!(
        error,
        "cannot go back to 22; the latest pass can be cut from 23 to 48, and before it 0 can be restored"
    );
    graph.rewind(23).unwrap();
    let vocab = graph.vocab_size();
    assert!(bits(graph.feed_all(&tokens[23..80]).unwrap()) == plain[23 * vocab..80 * vocab]);
}

/// Random feeds, verifications and steps back, always on with other tokens, so that what was overwritten or left behind by a step
/// back is wrong wherever it is read.
#[test]
fn any_walk_forth_and_back_gives_the_bits_of_what_is_kept() {
    let Some(dir) = fixture("lfm3-tiny") else { return };
    let place = tempfile::tempdir().unwrap();
    let passes = vec![Pass::Decode, Pass::Prefill(24), Pass::Verify(DRAFTS + 1)];
    let options = |ring, cache| Options { ctx: 160, passes: passes.clone(), ..options(ring, cache) };
    let plain = convert(&dir, &place.path().join("plain"), &options(false, CacheKind::Io));
    let mut plain = engine(&plain, Profile::f32());
    let vocab = plain.vocab_size();
    for cache in [CacheKind::State, CacheKind::Io] {
        let bundle = convert(&dir, &place.path().join(format!("{cache:?}")), &options(true, cache));
        let mut graph = engine(&bundle, Profile::f32());
        let mut wrapped = [0, 0];
        for seed in 0..8 {
            let mut random = ChaCha8Rng::seed_from_u64(seed);
            let mut below = |n: usize| (random.next_u64() % n as u64) as usize;
            let mut kept: Vec<u32> = Vec::new();
            graph.reset();
            for step in 0..60 {
                let what = format!("{cache:?} seed {seed} step {step} at {}", kept.len());
                let n = [1, 2 + below(40), DRAFTS + 1, 1][below(4)];
                if below(3) == 0 || kept.len() + n > 160 {
                    let far = [6, 25, 60][below(3)].min(kept.len());
                    let target = kept.len() - below(far + 1);
                    let to = graph.nearest(target);
                    assert!(to <= target, "{what}: {to} is beyond {target}");
                    let later = (to + 1..=target).find(|p| graph.nearest(*p) > to);
                    assert_eq!(later, None, "{what}: {to} is not the nearest to {target}");
                    if target > to {
                        assert!(graph.rewind(target).is_err(), "{what}: {target} after all");
                    }
                    if to == 0 && kept.len() + n <= 160 {
                        continue;
                    }
                    // A ring of 32 has turned once; a step goes back by a few drafts or by more.
                    wrapped[usize::from(kept.len() - to > DRAFTS)] += usize::from(to > 40 && to < kept.len());
                    graph.rewind(to).unwrap();
                    kept.truncate(to);
                    continue;
                }
                let from = kept.len();
                kept.extend((0..n).map(|_| below(vocab) as u32));
                let found = bits(graph.feed_all(&kept[from..]).unwrap());
                plain.reset();
                let expected = bits(&plain.feed_all(&kept).unwrap()[from * vocab..]);
                assert!(found == expected, "{what}: {n} tokens");
            }
        }
        assert!(wrapped.iter().all(|n| *n >= 5), "{cache:?}: {wrapped:?} steps back behind the wrap");
    }
}

#[test]
fn a_context_that_is_no_multiple_of_32_fills_to_its_end() {
    let Some(dir) = fixture("lfm2-tiny-tied") else { return };
    let place = tempfile::tempdir().unwrap();
    let options = Options { ctx: 45, ..options(true, CacheKind::State) };
    let bundle = convert(&dir, &place.path().join("bundle"), &options);
    assert_eq!(bundle.manifest().plan.chunks.iter().flat_map(|c| &c.states).next().unwrap().rows, 64);
    let tokens = long_prompt(&dir, 46);
    let mut graph = engine(&bundle, Profile::fp16());
    let plain = bits(&decoded(&mut graph, &tokens[..45]));
    graph.reset();
    assert!(bits(graph.feed_all(&tokens[..45]).unwrap()) == plain);
    assert!(graph.feed(&tokens[45..]).unwrap_err().to_string().contains("context of 45"));
}

#[test]
fn going_back_to_the_end_of_an_earlier_call_restores_the_bits() {
    for name in DENSE {
        let Some(dir) = fixture(name) else { return };
        let place = tempfile::tempdir().unwrap();
        let bundle = convert(&dir, &place.path().join("bundle"), &options(true, CacheKind::Io));
        let long = prompts(&dir).iter().map(|p| ids(&p["token_ids"])).max_by_key(Vec::len).unwrap();
        let mut graph = engine(&bundle, Profile::fp16());
        // Two calls with several tokens and one at a time beyond every window, so that the rings are overwritten.
        graph.feed(&long[..11]).unwrap();
        let first = graph.feed(&long[11..12]).unwrap().to_vec();
        graph.feed(&long[12..30]).unwrap();
        let second = graph.feed(&long[30..31]).unwrap().to_vec();
        for token in &long[31..60] {
            graph.feed(std::slice::from_ref(token)).unwrap();
        }
        assert_eq!([29, 30, 45, 59, 60, 99].map(|p| graph.nearest(p)), [11, 30, 30, 59, 60, 60], "{name}");
        let error = graph.rewind(29).unwrap_err().to_string();
        assert!(error.contains("cannot go back to 29") && error.contains("11 can be restored"), "{error}");
        assert!(graph.rewind(61).is_err());
        assert_eq!(graph.position(), 60, "an error changes nothing");
        graph.rewind(30).unwrap();
        assert_eq!(graph.feed(&long[30..31]).unwrap(), second, "{name}");
        graph.rewind(11).unwrap();
        assert_eq!((graph.position(), graph.nearest(30)), (11, 11), "{name}");
        assert_eq!(graph.feed(&long[11..12]).unwrap(), first, "{name}");
        graph.reset();
        assert_eq!(graph.nearest(11), 0, "{name}");
    }
}

#[test]
fn a_prompt_takes_the_largest_passes_and_pads_its_rest() {
    let Some(dir) = fixture(DENSE[0]) else { return };
    let place = tempfile::tempdir().unwrap();
    let tokens = long_prompt(&dir, 64);
    let cut = |passes: &[Pass], n: usize| {
        let options = Options { ctx: 64, passes: passes.to_vec(), ..options(true, CacheKind::Io) };
        let out = place.path().join(format!("{n} {}", passes.len()));
        let mut graph = engine(&convert(&dir, &out, &options), Profile::f32());
        let mut widths = Vec::new();
        let mut tap = |path: &str, values: &[f32]| {
            if path == anemone_session::EMBEDDING {
                widths.push(values.len() / 48);
            }
        };
        graph.feed_traced(&tokens[..n], &mut tap).unwrap();
        widths
    };
    let all = [Pass::Decode, Pass::Prefill(4), Pass::Prefill(16)];
    assert_eq!(cut(&all, 1), [1]);
    assert_eq!(cut(&all, 3), [3], "padded to 4");
    assert_eq!(cut(&all, 15), [4, 4, 4, 3]);
    assert_eq!(cut(&all, 55), [16, 16, 16, 4, 3]);
    let two = [Pass::Decode, Pass::Prefill(16)];
    assert_eq!(cut(&two, 55), [16, 16, 16, 7], "no step for each token");
    assert_eq!(cut(&two, 33), [16, 16, 1]);
    assert_eq!(cut(&[Pass::Prefill(16)], 33), [16, 16, 1]);
    assert_eq!(cut(&[Pass::Decode], 3), [1, 1, 1]);
}

#[test]
fn a_single_kind_of_pass_is_used_when_asked_for() {
    let Some(dir) = fixture(DENSE[3]) else { return };
    let place = tempfile::tempdir().unwrap();
    let bundle = convert(&dir, &place.path().join("bundle"), &options(true, CacheKind::Io));
    let tokens = prompts(&dir).iter().map(|p| ids(&p["token_ids"])).max_by_key(Vec::len).unwrap();
    let mut graph = engine(&bundle, Profile::f32());
    let expected = graph.feed_all(&tokens[..21]).unwrap().to_vec();
    let passes = graph.passes().to_vec();
    assert_eq!(passes, [Pass::Decode, Pass::Verify(DRAFTS + 1), Pass::Prefill(PREFILL)]);
    for pass in passes {
        graph.restrict(Some(pass)).unwrap();
        graph.reset();
        let mut widths = Vec::new();
        let mut tap = |path: &str, values: &[f32]| {
            if path == anemone_session::EMBEDDING {
                widths.push(values.len() / 48);
            }
        };
        let found = graph.feed_traced(&tokens[..21], &mut tap).unwrap().to_vec();
        assert!(max_abs_diff(&found, &expected) <= 1e-4, "{}", pass.name());
        let chunks: Vec<usize> = tokens[..21].chunks(pass.tokens()).map(<[u32]>::len).collect();
        assert_eq!(widths, chunks, "{}", pass.name());
    }
    assert!(graph.restrict(Some(Pass::Prefill(9))).unwrap_err().to_string().contains("`prefill_9`"));
}
