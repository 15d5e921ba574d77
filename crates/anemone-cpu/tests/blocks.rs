//! Blocks of random models: what is put back goes on with the bits of the tokens it stands for.

#![allow(clippy::unwrap_used, reason = "a failed expectation is a failed test")]

mod random;

use anemone_cpu::{Arithmetic, BORDER, Block, Engine, LogitsOf, Options};

use random::{VOCAB, bits, lfm3, load, options};

/// What an engine exports of the tokens it holds.
fn blocks(engine: &Engine) -> Vec<Block> {
    (0..).map_while(|i| engine.export(i)).collect()
}

fn chain(blocks: &[Block]) -> Vec<(&[u8], bool)> {
    blocks.iter().map(|b| (b.bytes.as_slice(), b.complete)).collect()
}

#[test]
fn imported_blocks_go_on_with_the_bits_of_their_tokens() {
    // Windows within a block, longer than one, of one key, and beyond the context; filters of one tap, whose history is empty.
    for (taps, window) in [(7, 5), (3, 140), (1, 129), (4, 1), (2, 1000), (3, 250)] {
        let (config, weights) = lfm3(taps, window);
        let model = load(&config, &weights);
        for arithmetic in [Arithmetic::Exact, Arithmetic::Fast] {
            let case = format!("{taps} taps, window {window}, {arithmetic:?}");
            let tokens: Vec<u32> = (0..600).map(|i| (i * i + i / 7) % VOCAB as u32).collect();
            let options = |chunk| Options { context_len: Some(640), ..options(arithmetic, chunk, 9) };
            let mut fed = Engine::new(model.clone(), options(100)).unwrap();
            let mut expected = Vec::new();
            let mut kept: Vec<Block> = Vec::new();
            for part in tokens.chunks(75) {
                let logits = fed.feed(part, LogitsOf::All).unwrap();
                expected.extend(logits.chunks_exact(VOCAB).map(bits));
                // Exported soon, and again when much has come after.
                let again = blocks(&fed);
                assert!(kept.iter().zip(&again).all(|(a, b)| !b.complete || a == b), "{case}");
                kept.extend_from_slice(&again[kept.len()..]);
            }
            assert_eq!(kept.len(), 4);
            assert!(kept.iter().all(|b| b.complete && b.bytes.len() == fed.block_bytes()), "{case}");
            // Another length of passes makes another ring.
            let mut other = Engine::new(model.clone(), options(64)).unwrap();
            assert_eq!(other.block_format(), fed.block_format());
            for count in [4, 1, 3, 2] {
                other.reset();
                other.feed(&[3; 70], LogitsOf::None).unwrap();
                other.import(&chain(&kept[..count])).unwrap();
                let at = count * BORDER;
                assert_eq!(other.position(), at);
                assert_eq!(blocks(&other).len(), count);
                assert_eq!(other.export(count - 1), Some(kept[count - 1].clone()), "{case}");
                for part in tokens[at..].chunks(37) {
                    let first = other.position();
                    let logits = other.feed(part, LogitsOf::All).unwrap();
                    for (i, row) in logits.chunks_exact(VOCAB).enumerate() {
                        assert!(bits(row) == expected[first + i], "{case}, {count} blocks, {}", first + i);
                    }
                }
                // A step back to the border, and to earlier ones as far as windows reach.
                for border in (1..=count).rev().map(|i| i * BORDER) {
                    let at = other.nearest(border);
                    assert!(at == border || window < 1000, "{case}: {border} {at}");
                    if at > 0 {
                        other.rewind(at).unwrap();
                        let logits = bits(other.feed(&tokens[at..=at], LogitsOf::Last).unwrap());
                        assert!(logits == expected[at], "{case}, back to {at}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_pass_longer_than_a_ring_leaves_blocks_one_cannot_stop_at() {
    let (config, weights) = lfm3(3, 20);
    let model = load(&config, &weights);
    let options = Options { context_len: Some(640), ..options(Arithmetic::Fast, 32, 8) };
    let tokens: Vec<u32> = (0..513).map(|i| i % VOCAB as u32).collect();
    let mut fed = Engine::new(model.clone(), options).unwrap();
    fed.feed(&tokens[..512], LogitsOf::None).unwrap();
    let kept = blocks(&fed);
    let complete: Vec<bool> = kept.iter().map(|b| b.complete).collect();
    assert_eq!(complete, [false, false, false, true]);
    let mut other = Engine::new(model, options).unwrap();
    other.feed(&[1, 2], LogitsOf::None).unwrap();
    for count in 1..4 {
        assert!(other.import(&chain(&kept[..count])).is_err());
    }
    assert_eq!(other.position(), 2, "what is refused changes nothing");
    other.import(&chain(&kept)).unwrap();
    assert_eq!(other.nearest(511), 0, "windows of blocks that are not complete are not taken for windows");
    let logits = bits(other.feed(&tokens[512..], LogitsOf::Last).unwrap());
    assert_eq!(logits, bits(fed.feed(&tokens[512..], LogitsOf::Last).unwrap()));
}

#[test]
fn blocks_that_do_not_fit_are_refused() {
    let (config, weights) = lfm3(3, 5);
    let model = load(&config, &weights);
    for arithmetic in [Arithmetic::Exact, Arithmetic::Fast] {
        let mut engine = Engine::new(model.clone(), options(arithmetic, 256, 8)).unwrap();
        engine.feed(&[1; 130], LogitsOf::None).unwrap();
        let good = blocks(&engine);
        let refused = |engine: &mut Engine, blocks: &[(&[u8], bool)], word: &str| {
            let error = engine.import(blocks).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
            assert_eq!(engine.position(), 130);
        };
        refused(&mut engine, &[(&good[0].bytes[1..], true)], "size");
        refused(&mut engine, &chain(&[good[0].clone(), good[0].clone(), good[0].clone()]), "context");
        for at in [0, good[0].bytes.len() / 2 / 4 * 4, good[0].bytes.len() - 4] {
            let mut bad = good.clone();
            bad[0].bytes[at..at + 4].copy_from_slice(&0x7f80_7f80_u32.to_le_bytes());
            refused(&mut engine, &chain(&bad), "finite");
        }
        engine.import(&chain(&good)).unwrap();
    }
    let level = anemone_kernels::Level::available()[0];
    let formats: Vec<String> = [
        Engine::new(model.clone(), options(Arithmetic::Exact, 256, 8)).unwrap(),
        Engine::new(model.clone(), options(Arithmetic::Fast, 256, 8)).unwrap(),
        Engine::new(load(&config, &weights), options(Arithmetic::Fast, 16, 3)).unwrap(),
        Engine::with_level(model, options(Arithmetic::Exact, 256, 8), level).unwrap(),
    ]
    .iter()
    .map(Engine::block_format)
    .collect();
    assert!(formats[0] != formats[1] && formats[1] == formats[2], "{formats:?}");
    assert!(formats[3] != formats[0] || anemone_kernels::Level::best() == level, "{formats:?}");
}
