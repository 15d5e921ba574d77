//! Every tiny checkpoint lowers to packages that read back, in every combination of passes and caches.

#![allow(clippy::print_stderr, reason = "a skipped test says so")]
#![allow(clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use std::path::PathBuf;

use anemone_ane::{
    CacheKind, CachePlan, LayaOptions, LocalAttention, Options, Pass, Rules, Silu, lower_chunk, lower_head,
    lower_laya, plan,
};
use anemone_checkpoint::{Checkpoint, DecisionCheckpoint};
use anemone_mil::{DataType, Type, print_program, read_package, write_package};
use anemone_models::{Ffn, Laya, Mixer, Stack};
use anemone_tensor::Shape;

const DENSE: [&str; 4] =
    ["lfm2-tiny-tied", "lfm2-tiny-untied-sharded", "lfm3-tiny", "lfm3-tiny-options-sharded"];

fn checkpoint(name: &str) -> Option<Checkpoint> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/fixtures/lfm-tiny").join(name);
    if !dir.exists() {
        eprintln!("skipped: shared/fixtures/lfm-tiny/{name} is not present");
        return None;
    }
    Some(Checkpoint::open(&dir).unwrap())
}

fn keep() -> Option<PathBuf> {
    #[allow(clippy::disallowed_methods, reason = "lets the validator look at the packages")]
    std::env::var_os("ANEMONE_KEEP").map(PathBuf::from)
}

#[test]
fn every_dense_checkpoint_lowers_and_reads_back() {
    for name in DENSE {
        let Some(checkpoint) = checkpoint(name) else { continue };
        let weights = checkpoint.weights();
        let stack = anemone_models::load(checkpoint.config(), &*weights).unwrap();
        for (ring, cache) in [true, false].map(|r| [(r, CacheKind::Io), (r, CacheKind::State)]).concat() {
            for (kind, passes) in [
                ("all", vec![Pass::Decode, Pass::Prefill(4), Pass::Prefill(16), Pass::Verify(3)]),
                ("decode", vec![Pass::Decode]),
                ("prefill", vec![Pass::Prefill(8)]),
                ("verify", vec![Pass::Verify(3)]),
            ] {
                let options = Options {
                    ctx: 64,
                    passes: passes.clone(),
                    ring,
                    cache,
                    layers_per_chunk: Some(3),
                    ..Options::default()
                };
                let plan = plan(&stack, &options).unwrap();
                let rows = if ring { "ring" } else { "full" };
                let dir = tempfile::tempdir().unwrap();
                let dir = keep()
                    .map_or(dir.path().to_path_buf(), |k| k.join(format!("{name}-{rows}-{cache:?}-{kind}")));
                std::fs::create_dir_all(&dir).unwrap();
                for (i, chunk) in plan.chunks.iter().enumerate() {
                    let (program, records) =
                        lower_chunk(&stack, &|w| w.load(&*weights), chunk, &options).unwrap();
                    assert_eq!(records.len(), program.weights.len());
                    assert_eq!(program.functions.len(), passes.len());
                    let path = dir.join(format!("chunk_{i}.mlpackage"));
                    write_package(&program, &path).unwrap();
                    assert_eq!(
                        print_program(&read_package(&path).unwrap()).lines().count(),
                        print_program(&program).lines().count()
                    );
                }
                for (i, rows) in plan.head.iter().enumerate() {
                    let (program, _) =
                        lower_head(&stack, &|w| w.load(&*weights), rows.clone(), &options).unwrap();
                    write_package(&program, &dir.join(format!("head_{i}.mlpackage"))).unwrap();
                }
            }
        }
    }
}

#[test]
fn decision_models_lower_and_read_back() {
    let shared = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    for (name, dir) in [
        ("english", "fixtures/laya-tiny/english"),
        ("multilingual", "fixtures/laya-tiny/multilingual"),
        ("demo", "models/laya-demo"),
    ] {
        if !shared.join(dir).exists() {
            eprintln!("skipped: shared/{dir} is not present");
            continue;
        }
        let checkpoint = DecisionCheckpoint::open(&shared.join(dir)).unwrap();
        let weights = checkpoint.weights();
        let laya = Laya::load(checkpoint.agent_config(), checkpoint.encoder_config(), &*weights).unwrap();
        for (kind, lengths, local, pack) in [
            ("one", vec![96], LocalAttention::Dense, false),
            ("lengths", vec![64, 96, 256], LocalAttention::Dense, false),
            ("tiled", vec![64, 256], LocalAttention::Tiled(64), false),
            ("packed", vec![64, 96], LocalAttention::Dense, true),
            ("packed-tiled", vec![256], LocalAttention::Tiled(64), true),
        ] {
            let options = LayaOptions {
                lengths: lengths.clone(),
                spec_version: 9,
                local,
                precision: DataType::Float16,
                pack,
            };
            let (program, records) = lower_laya(&laya, &|w| w.load(&*weights), &options).unwrap();
            assert_eq!(records.len(), program.weights.len());
            let dir = tempfile::tempdir().unwrap();
            let dir = keep().unwrap_or_else(|| dir.path().to_path_buf());
            let path = dir.join(format!("laya-{name}-{kind}.mlpackage"));
            let report = write_package(&program, &path).unwrap();
            // All lengths share every weight but the rotary tables.
            let parameters: usize = laya.parameters() - laya.encoder.embedding.shape.numel();
            let tables = 2 * lengths.iter().sum::<usize>() * laya.encoder.layers[0].attention.head_dim * 2;
            let most = 2 * parameters + tables + 128 * program.weights.len() + 64;
            assert!(report.weight_bytes <= most as u64, "{name} {kind}: {} {most}", report.weight_bytes);
            assert_eq!(
                print_program(&read_package(&path).unwrap()).lines().count(),
                print_program(&program).lines().count()
            );
        }
    }
}

#[test]
fn lengths_that_cannot_be_are_refused() {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/fixtures/laya-tiny/english");
    if !dir.exists() {
        eprintln!("skipped: shared/fixtures/laya-tiny is not present");
        return;
    }
    let checkpoint = DecisionCheckpoint::open(&dir).unwrap();
    let weights = checkpoint.weights();
    let laya = Laya::load(checkpoint.agent_config(), checkpoint.encoder_config(), &*weights).unwrap();
    for (lengths, spec_version, tile, expected) in [
        (vec![], 9, 64, "--length asks for 0 lengths"),
        (vec![16], 9, 64, "--length is 16"),
        (vec![1 << 20], 9, 64, "--length is 1048576"),
        (vec![64, 64], 9, 64, "asks for 64 twice"),
        (vec![64], 9, 0, "--tile is 0"),
        (vec![64, 96], 8, 64, "--target before macOS 15"),
    ] {
        let local = LocalAttention::Tiled(tile);
        let options = LayaOptions { lengths, spec_version, local, precision: DataType::Float16, pack: false };
        let error = lower_laya(&laya, &|w| w.load(&*weights), &options).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn sliding_layers_keep_a_ring_only_when_asked() {
    let Some(checkpoint) = checkpoint("lfm3-tiny") else { return };
    let stack = anemone_models::load(checkpoint.config(), &*checkpoint.weights()).unwrap();
    let rows = |ring| {
        let options = Options { ctx: 64, ring, ..Options::default() };
        let plan = plan(&stack, &options).unwrap();
        let caches = plan.chunks.into_iter().flat_map(|c| c.caches);
        caches
            .filter_map(|c| if let CachePlan::Attention { rows, .. } = c { Some(rows) } else { None })
            .collect::<Vec<_>>()
    };
    assert_eq!(rows(true), [64, 8, 64]);
    assert_eq!(rows(false), [64, 64, 64]);
}

#[test]
fn states_are_few_and_as_wide_as_the_engine_asks() {
    let Some(checkpoint) = checkpoint("lfm3-tiny") else { return };
    let weights = checkpoint.weights();
    let stack = anemone_models::load(checkpoint.config(), &*weights).unwrap();
    let passes = vec![Pass::Decode, Pass::Verify(30)];
    let options = Options { ctx: 70, passes, cache: CacheKind::State, ..Options::default() };
    let plan = plan(&stack, &options).unwrap();
    let [chunk] = &plan.chunks[..] else { panic!("one chunk") };
    let states: Vec<_> =
        chunk.states.iter().map(|s| (s.name.as_str(), s.layers.len(), s.rows, s.ring)).collect();
    // 8 - 1 + 30 rows of the ring and 70 of the context, rounded up.
    assert_eq!(states, [("cache_0", 2, 96, false), ("cache_1", 1, 64, true)]);
    let (program, _) = lower_chunk(&stack, &|w| w.load(&*weights), chunk, &options).unwrap();
    for function in program.functions.values() {
        let counts = function.op_counts();
        assert_eq!((counts["read_state"], counts["write_state"]), (2, 2));
        let states =
            function.inputs.iter().map(|i| &function.var(*i).ty).filter(|t| matches!(t, Type::State(_)));
        for state in states {
            assert_eq!(state.tensor().shape[3] % 32, 0);
        }
        // No integers, no writing at computed places: those leave the engine.
        assert!(!counts.contains_key("slice_update") && !counts.contains_key("gather"));
        let names: Vec<_> = function.outputs.iter().map(|o| function.var(*o).name.as_str()).collect();
        assert!(names.iter().all(|n| *n == "hidden_out" || n.ends_with("_window")), "{names:?}");
    }
    let early = Options { spec_version: 8, passes: vec![Pass::Decode], ..options };
    assert!(
        anemone_ane::plan(&stack, &early).unwrap_err().to_string().contains("--cache state needs --target")
    );
}

#[test]
fn chunks_states_and_head_slices_stay_within_their_limits() {
    let Some(checkpoint) = checkpoint("lfm3-tiny") else { return };
    let tiny = anemone_models::load(checkpoint.config(), &*checkpoint.weights()).unwrap();
    let mut stack = tiny.clone();
    // 300 MiB of fp16 weights in each layer's feed-forward part, and what the mixer adds.
    for block in &mut stack.blocks {
        let Ffn::Gated(ffn) = &mut block.ffn else { panic!("gated") };
        for linear in [&mut ffn.gate, &mut ffn.up, &mut ffn.down] {
            linear.weight.shape = Shape::new([100, 1 << 19]);
        }
    }
    let plan = |stack: &Stack, options: Options| anemone_ane::plan(stack, &options);
    let options = Options { ctx: 64, ..Options::default() };
    let chunks = plan(&stack, options.clone()).unwrap().chunks;
    let layers: Vec<_> = chunks.iter().map(|c| c.layers.clone()).collect();
    // Three layers fit a chunk, so eight take three of them; where the cuts are is the planner's affair.
    assert_eq!(layers.len(), 3, "{layers:?}");
    assert!(layers[0].start == 0 && layers.windows(2).all(|w| w[0].end == w[1].start) && layers[2].end == 8);
    assert!(
        chunks.iter().all(|c| c.weight_bytes > c.layers.len() * (300 << 20) && c.weight_bytes <= 1 << 30)
    );
    // All of a tiny model's matrices, attention gates included, and no vectors.
    let [chunk] = &plan(&tiny, options.clone()).unwrap().chunks[..] else { panic!("one chunk") };
    let matrices = tiny.weights().into_iter().filter(|w| w.shape.len() > 1 && w.name.contains(".layers."));
    assert_eq!(chunk.weight_bytes, 2 * matrices.map(|w| w.shape.numel()).sum::<usize>());
    // The head: 128 MiB of a wide model, the longest axis of a narrow one.
    for (hidden, vocab, rows) in [(2048, 65_536, 16_384), (8192, 65_536, 8192), (64, 40_000, 13_376)] {
        stack.hidden_size = hidden;
        stack.vocab_size = vocab;
        let head = plan(&stack, options.clone()).unwrap().head;
        assert_eq!(head[0], 0..rows, "{hidden} channels");
        assert!(head.windows(2).all(|w| w[0].end == w[1].start) && head.last().unwrap().end == vocab);
    }
    let few = plan(&stack, Options { head_slices: Some(2), ..options.clone() }).unwrap_err().to_string();
    assert!(few.contains("--head-chunks is 2") && few.contains("16384 at most"), "{few}");
    // Two layers of 4096 channels each way fill the axis.
    let mut stack = tiny;
    for block in &mut stack.blocks {
        if let Mixer::Attention(a) = &mut block.mixer {
            (a.kv_heads, a.head_dim) = (32, 128);
        }
    }
    let states = plan(&stack, Options { cache: CacheKind::State, ring: false, ..options })
        .unwrap()
        .chunks
        .remove(0)
        .states;
    assert_eq!(
        states.iter().map(|s| (s.layers.len(), s.channels)).collect::<Vec<_>>(),
        [(2, 16_384), (1, 8192)]
    );
}

#[test]
fn rules_change_the_operations_they_name() {
    let Some(checkpoint) = checkpoint("lfm3-tiny") else { return };
    let weights = checkpoint.weights();
    let stack = anemone_models::load(checkpoint.config(), &*weights).unwrap();
    let counts = |rules| {
        let options = Options { ctx: 64, passes: vec![Pass::Decode], rules, ..Options::default() };
        let plan = plan(&stack, &options).unwrap();
        let (program, _) = lower_chunk(&stack, &|w| w.load(&*weights), &plan.chunks[0], &options).unwrap();
        move |op: &str| program.functions["main"].op_counts().get(op).copied().unwrap_or(0)
    };
    let none = counts(Rules::none());
    assert_eq!((none("silu"), none("sigmoid"), none("exp")), (8, 3, 0));
    let exact = counts(Rules { silu: Silu::Exact, ..Rules::none() });
    assert_eq!((exact("silu"), exact("sigmoid"), exact("exp"), exact("real_div")), (0, 0, 11, 11));
    let tanh = counts(Rules { silu: Silu::Tanh, ..Rules::none() });
    assert_eq!(tanh("tanh"), 8);
    // The feed-forward width of 96 in two parts: one more convolution for each layer's last map.
    let split = counts(Rules { split_wide: Some(48), ..Rules::none() });
    assert_eq!(split("conv"), none("conv") + 8);
    let scaled = counts(Rules { scale_wide: Some((64, 4)), ..Rules::none() });
    assert_eq!(scaled("mul"), none("mul") + 8);
}

#[test]
fn experts_are_refused_by_name() {
    let Some(checkpoint) = checkpoint("lfm2-moe-tiny") else { return };
    let stack = anemone_models::load(checkpoint.config(), &*checkpoint.weights()).unwrap();
    let error = plan(&stack, &Options { ctx: 64, ..Options::default() }).unwrap_err().to_string();
    assert!(
        error.contains("model.layers.2.feed_forward: a mixture of experts cannot be converted"),
        "{error}"
    );
}

#[test]
fn options_out_of_range_name_their_flag() {
    let Some(checkpoint) = checkpoint("lfm2-tiny-tied") else { return };
    let stack = anemone_models::load(checkpoint.config(), &*checkpoint.weights()).unwrap();
    let say = |options| plan(&stack, &options).unwrap_err().to_string();
    assert!(say(Options { ctx: 0, ..Options::default() }).contains("--ctx is 0"));
    assert!(say(Options { ctx: 1 << 30, ..Options::default() }).contains("--ctx"));
    assert!(say(Options { passes: vec![], ..Options::default() }).contains("no function"));
    assert!(
        say(Options { passes: vec![Pass::Prefill(9), Pass::Prefill(9)], ..Options::default() })
            .contains("prefill_9")
    );
    let many = (2..34).map(Pass::Prefill).chain([Pass::Decode]).collect();
    let many = say(Options { ctx: 64, passes: many, ..Options::default() });
    assert!(many.contains("--prefill and the other functions are 33") && many.contains("fewer"), "{many}");
    let most = Options { ctx: 64, passes: (2..34).map(Pass::Prefill).collect(), ..Options::default() };
    assert!(plan(&stack, &most).is_ok());
    assert!(
        say(Options { ctx: 64, passes: vec![Pass::Prefill(65)], ..Options::default() }).contains("65 tokens")
    );
    assert!(
        say(Options { ctx: 64, passes: vec![Pass::Decode], head_slices: Some(0), ..Options::default() })
            .contains("--head-chunks")
    );
}
