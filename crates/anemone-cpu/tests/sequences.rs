//! Small random models, made here: the same sequence must give the same bits however it was reached and however its
//! weights are stored.

#![allow(clippy::unwrap_used, reason = "a failed expectation is a failed test")]

mod random;

use std::sync::Arc;

use anemone_cpu::{Arithmetic, Engine, LogitsOf, Model, Options, Part, Snapshot, feed_together};
use anemone_tensor::Tensor;
use serde_json::{Map, Value};

use random::{EXPERT_WIDTH, EXPERTS, HIDDEN, Memory, VOCAB, below, bits, lfm3, load, moe, options};

/// Logits after a whole sequence fed at once to a new engine.
fn whole(model: &Arc<Model>, arithmetic: Arithmetic, tokens: &[u32]) -> Vec<u32> {
    let mut engine = Engine::new(model.clone(), options(arithmetic, 256, 0)).unwrap();
    bits(engine.feed(tokens, LogitsOf::Last).unwrap())
}

/// Feeds, steps back and restores at random; after every feed the logits are those of the whole sequence fed at once.
fn wander(model: &Arc<Model>, options: Options, seed: u64) {
    let mut random = seed;
    let mut engine = Engine::new(model.clone(), options).unwrap();
    let mut held: Vec<u32> = Vec::new();
    // The furthest position since the beginning, from which the promised distance counts.
    let mut furthest = 0;
    let mut kept: Option<(Snapshot, Vec<u32>, usize)> = None;
    for step in 0..60 {
        match below(&mut random, 8) {
            0..5 => {
                let room = 256 - held.len();
                let n = [1, 1, 2, 9, 40][below(&mut random, 5)].min(room);
                if n == 0 {
                    engine.reset();
                    held.clear();
                    furthest = 0;
                    continue;
                }
                let tokens: Vec<u32> = (0..n).map(|_| below(&mut random, VOCAB) as u32).collect();
                held.extend(&tokens);
                furthest = furthest.max(held.len());
                let logits = bits(engine.feed(&tokens, LogitsOf::Last).unwrap());
                let expected = whole(model, options.arithmetic, &held);
                assert!(logits == expected, "{options:?} seed {seed} step {step} at {}", held.len());
            }
            5 | 6 => {
                let wish = if below(&mut random, 2) == 0 {
                    held.len().saturating_sub(below(&mut random, options.rewind + 1))
                } else {
                    below(&mut random, held.len() + 1)
                };
                let at = engine.nearest(wish);
                assert!(at <= wish);
                if wish + options.rewind >= furthest {
                    assert_eq!(at, wish, "{options:?} seed {seed} step {step}: within the promised distance");
                }
                assert_eq!(engine.rewind(wish).is_ok(), at == wish);
                engine.rewind(at).unwrap();
                held.truncate(at);
            }
            _ => match kept.take() {
                Some((snapshot, tokens, reached)) => {
                    engine.restore(&snapshot).unwrap();
                    (held, furthest) = (tokens, reached);
                }
                None => kept = Some((engine.snapshot(), held.clone(), furthest)),
            },
        }
        assert_eq!(engine.position(), held.len());
    }
}

#[test]
fn any_walk_through_a_sequence_gives_its_bits() {
    // Windows shorter than a block, longer than one, and beyond the context; filters of one tap, whose history is empty.
    for (taps, window) in [(7, 5), (3, 33), (1, 16), (4, 1), (2, 1000)] {
        let (config, weights) = lfm3(taps, window);
        let model = load(&config, &weights);
        for (chunk, rewind) in [(32, 20), (1, 3), (7, 0), (300, 64)] {
            for (seed, arithmetic) in [(1, Arithmetic::Exact), (2, Arithmetic::Fast)] {
                wander(&model, options(arithmetic, chunk, rewind), seed + taps as u64);
            }
        }
    }
    let (config, weights) = moe();
    let model = load(&config, &weights);
    for arithmetic in [Arithmetic::Exact, Arithmetic::Fast] {
        wander(&model, options(arithmetic, 5, 8), 3);
    }
}

/// Several sequences run together, each at its own pace; every row of logits is that of the sequence run alone.
fn together(model: &Arc<Model>, options: Options, seed: u64) {
    let mut random = seed;
    let first = Engine::new(model.clone(), options).unwrap();
    let mut engines: Vec<Engine> = (0..4).map(|_| first.sibling()).collect();
    engines.push(first);
    let mut alone: Vec<Engine> = (0..5).map(|_| Engine::new(model.clone(), options).unwrap()).collect();
    for step in 0..25 {
        let mut fed = Vec::new();
        for (engine, alone) in engines.iter_mut().zip(&mut alone) {
            if engine.position() > 200 {
                engine.reset();
                alone.reset();
            }
            let back = engine.position().saturating_sub(below(&mut random, options.rewind + 1));
            if below(&mut random, 4) == 0 && engine.nearest(back) == back {
                engine.rewind(back).unwrap();
                alone.rewind(back).unwrap();
            }
            let n = [1, 1, 1, 3, 12, 40][below(&mut random, 6)];
            let tokens: Vec<u32> = (0..n).map(|_| below(&mut random, VOCAB) as u32).collect();
            fed.push((tokens, [LogitsOf::None, LogitsOf::Last, LogitsOf::All][below(&mut random, 3)]));
        }
        let mut shown: Vec<Vec<(usize, Vec<u32>)>> = vec![Vec::new(); 5];
        let mut parts: Vec<Part<'_>> = engines
            .iter_mut()
            .zip(&fed)
            .map(|(engine, (tokens, want))| Part { engine, tokens, want: *want })
            .collect();
        let results =
            feed_together(&mut parts, &mut |part, token, logits| shown[part].push((token, bits(logits))));
        assert!(results.iter().all(Result::is_ok));
        for (index, ((tokens, want), alone)) in fed.iter().zip(&mut alone).enumerate() {
            let logits = bits(alone.feed(tokens, *want).unwrap());
            let first = tokens.len() - logits.len() / VOCAB;
            let rows = logits.chunks_exact(VOCAB).enumerate().map(|(i, row)| (first + i, row.to_vec()));
            assert!(
                shown[index].iter().cloned().eq(rows),
                "{options:?} seed {seed} step {step} part {index}"
            );
            assert_eq!(engines[index].position(), alone.position());
        }
    }
}

#[test]
fn sequences_run_together_get_the_bits_they_get_alone() {
    let (lfm3, moe) = (lfm3(3, 33), moe());
    for (model, chunks) in [(load(&lfm3.0, &lfm3.1), [300, 16, 1]), (load(&moe.0, &moe.1), [64, 7, 3])] {
        for chunk in chunks {
            for arithmetic in [Arithmetic::Exact, Arithmetic::Fast] {
                together(&model, options(arithmetic, chunk, 8), chunk as u64);
            }
        }
    }
}

#[test]
fn a_refused_part_disturbs_no_other() {
    let (config, weights) = lfm3(3, 5);
    let model = load(&config, &weights);
    let mut first = Engine::new(model.clone(), options(Arithmetic::Exact, 16, 8)).unwrap();
    let mut second = first.sibling();
    let mut foreign = Engine::new(model.clone(), options(Arithmetic::Exact, 16, 8)).unwrap();
    let mut last = None;
    let mut parts = [
        Part { engine: &mut first, tokens: &[1, VOCAB as u32], want: LogitsOf::Last },
        Part { engine: &mut foreign, tokens: &[1], want: LogitsOf::Last },
        Part { engine: &mut second, tokens: &[1, 2, 3], want: LogitsOf::Last },
    ];
    let results = feed_together(&mut parts, &mut |part, _, logits| last = Some((part, bits(logits))));
    assert!(matches!(results[0], Err(anemone_cpu::Error::TokenOutOfRange { id: 40, .. })));
    assert!(matches!(results[1], Err(anemone_cpu::Error::NotSiblings)));
    assert!(results[2].is_ok());
    assert_eq!(last, Some((2, whole(&model, Arithmetic::Exact, &[1, 2, 3]))));
    assert_eq!((first.position(), foreign.position(), second.position()), (0, 0, 3));
    assert!(feed_together(&mut [], &mut |_, _, _| ()).is_empty());
}

#[test]
fn a_snapshot_of_other_options_is_refused() {
    let (config, weights) = lfm3(3, 5);
    let model = load(&config, &weights);
    let mut small = Engine::new(model.clone(), options(Arithmetic::Exact, 4, 8)).unwrap();
    small.feed(&[1, 2, 3], LogitsOf::None).unwrap();
    // Its ring is too short for the passes of the other.
    let mut large = Engine::new(model, options(Arithmetic::Exact, 200, 8)).unwrap();
    assert!(large.restore(&small.snapshot()).is_err());
    large.feed(&[1; 200], LogitsOf::Last).unwrap();
}

#[test]
fn every_storage_of_the_weights_gives_the_same_bits() {
    let tokens: Vec<u32> = (0..30).map(|i| i * 7 % VOCAB as u32).collect();
    let (config, weights) = moe();
    let expected = whole(&load(&config, &weights), Arithmetic::Exact, &tokens);
    let check = |config: &Map<String, Value>, weights: &Memory, what: &str| {
        let found = whole(&load(config, weights), Arithmetic::Exact, &tokens);
        assert_eq!(found, expected, "{what}");
    };
    for prefix in ["model.language_model.", "language_model.model.", "lfm.", ""] {
        let renamed = weights.renamed(|name| name.replacen("model.", prefix, 1));
        check(&config, &renamed, prefix);
        let mut tower = renamed.clone();
        tower.add("vision_tower.layers.0.weight", [3, 3]);
        if prefix.is_empty() {
            assert!(
                anemone_models::load(&config, &tower).is_err(),
                "without a prefix it is an unknown tensor"
            );
        } else {
            check(&config, &tower, "a tower beside the text model");
        }
    }

    let mut mlx = weights.clone();
    for tensor in mlx.0.iter_mut().filter(|(name, _)| name.ends_with("conv.conv.weight")).map(|(_, t)| t) {
        *tensor = tensor.reshape([HIDDEN, 3, 1]).unwrap();
    }
    check(&config, &mlx, "MLX kernels");

    let mut fused = weights.clone();
    for layer in ["model.layers.1.feed_forward.experts", "model.layers.2.feed_forward.experts"] {
        let all = |parts: &[&str]| -> Vec<f32> {
            let names =
                (0..EXPERTS).flat_map(|e| parts.iter().map(move |part| format!("{layer}.{e}.{part}.weight")));
            names.flat_map(|name| weights.values(&name)).collect()
        };
        let (gate_up, down) = (all(&["w1", "w3"]), all(&["w2"]));
        fused.0.retain(|name, _| !name.starts_with(layer));
        let mut put = |name: &str, shape: [usize; 3], values: &[f32]| {
            fused.0.insert(format!("{layer}.{name}"), Tensor::from_f32(shape, values).unwrap());
        };
        put("gate_up_proj", [EXPERTS, 2 * EXPERT_WIDTH, HIDDEN], &gate_up);
        put("down_proj", [EXPERTS, HIDDEN, EXPERT_WIDTH], &down);
    }
    check(&config, &fused, "fused experts");

    // A head of its own, the same one stored though tied, and another one though tied.
    let mut stored = weights.clone();
    stored.0.insert("lm_head.weight".into(), weights.0["model.embed_tokens.weight"].clone());
    check(&config, &stored, "tied and stored");
    let mut untied = config.clone();
    untied.insert("tie_embedding".into(), false.into());
    check(&untied, &stored, "untied");
    stored.add("lm_head.weight", [VOCAB, HIDDEN]);
    let error = anemone_models::load(&config, &stored).unwrap_err().to_string();
    assert!(error.contains("`lm_head.weight` differs"), "{error}");
    assert_ne!(whole(&load(&untied, &stored), Arithmetic::Exact, &tokens), expected);
}

#[test]
fn an_overflow_is_reported_and_leaves_nothing_behind() {
    let (config, mut weights) = lfm3(3, 5);
    // Token 7 alone has a channel, and a value that overflows: its cached values are infinite.
    let mut embedding = weights.values("model.embed_tokens.weight");
    for (token, row) in embedding.chunks_exact_mut(HIDDEN).enumerate() {
        row[0] = if token == 7 { 1e4 } else { 0.0 };
    }
    let mut down = weights.values("model.layers.0.feed_forward.w2.weight");
    down[..20].fill(0.0);
    let mut out = weights.values("model.layers.0.conv.out_proj.weight");
    out[..HIDDEN].fill(0.0);
    let mut values = weights.values("model.layers.1.self_attn.v_proj.weight");
    values.chunks_exact_mut(HIDDEN).for_each(|row| row[0] = 3e38);
    for (name, shape, values) in [
        ("model.embed_tokens.weight", [VOCAB, HIDDEN], embedding),
        ("model.layers.0.feed_forward.w2.weight", [HIDDEN, 20], down),
        ("model.layers.0.conv.out_proj.weight", [HIDDEN, HIDDEN], out),
        ("model.layers.1.self_attn.v_proj.weight", [12, HIDDEN], values),
    ] {
        weights.0.insert(name.into(), Tensor::from_f32(shape, &values).unwrap());
    }
    let model = load(&config, &weights);
    let expected = whole(&model, Arithmetic::Exact, &[1, 2, 3]);
    let mut engine = Engine::new(model, options(Arithmetic::Exact, 32, 8)).unwrap();
    for bad in [&[1, 7][..], &[1, 2, 7, 4, 5, 6, 8, 9, 1, 1, 1, 1, 1, 1, 1, 7, 7, 7, 7, 7]] {
        let error = engine.feed(bad, LogitsOf::Last).unwrap_err().to_string();
        assert!(error.contains("not finite although every weight is"), "{error}");
        assert_eq!(engine.position(), 0);
        for (i, token) in [1, 2, 3].into_iter().enumerate() {
            let logits = engine.feed(&[token], LogitsOf::Last).unwrap();
            if i == 2 {
                assert_eq!(bits(logits), expected);
            }
        }
        // Stepping back over such a token, which nobody asked the logits of, forgets it as well.
        engine.feed(&[7], LogitsOf::None).unwrap();
        engine.rewind(2).unwrap();
        assert_eq!(bits(engine.feed(&[3], LogitsOf::Last).unwrap()), expected);
    }
    // In company it is emptied, and the others go on.
    let (mut first, mut second) = (engine.sibling(), engine.sibling());
    let mut last = None;
    let mut parts = [
        Part { engine: &mut first, tokens: &[1, 2, 7], want: LogitsOf::Last },
        Part { engine: &mut second, tokens: &[1, 2, 3], want: LogitsOf::Last },
    ];
    let results = feed_together(&mut parts, &mut |part, _, logits| last = Some((part, bits(logits))));
    let error = results[0].as_ref().unwrap_err().to_string();
    assert!(error.contains("not finite although every weight is"), "{error}");
    assert!(results[1].is_ok() && last == Some((1, expected.clone())));
    assert_eq!((first.position(), second.position()), (0, 3));
    assert_eq!(bits(first.feed(&[1, 2, 3], LogitsOf::Last).unwrap()), expected);
}
