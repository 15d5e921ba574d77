//! Blocks of a bundle's sequences: what is put back goes on with the bits of the tokens it stands for.

#![allow(clippy::unwrap_used, reason = "a failed expectation is a failed test")]

mod support;

use std::sync::Arc;

use anemone_ane::{CacheKind, Options, Pass};
use anemone_bundle::Bundle;
use anemone_emulator::{Emulator, Profile};
use anemone_session::{BLOCK_TOKENS, Block, Engine, GraphEngine, ModelId, PrefixCache};

use support::{convert, fixture};

const CACHES: [(bool, CacheKind); 4] =
    [(true, CacheKind::Io), (false, CacheKind::Io), (true, CacheKind::State), (false, CacheKind::State)];

const CTX: usize = 2 * BLOCK_TOKENS + 32;
const TOKENS: usize = 2 * BLOCK_TOKENS + 20;

fn engine(bundle: &Bundle, profile: &str) -> GraphEngine {
    GraphEngine::new(bundle.clone(), Box::new(Emulator::new(profile.parse::<Profile>().unwrap(), 2))).unwrap()
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|v| v.to_bits()).collect()
}

fn tokens() -> Vec<u32> {
    (0..TOKENS as u32).map(|i| (i * i * 7 + i) % 1000).collect()
}

/// Feeds in pieces and takes every block as soon as it is there.
fn exported(graph: &mut GraphEngine, tokens: &[u32], piece: usize) -> Vec<Arc<Block>> {
    let mut blocks = Vec::new();
    for part in tokens.chunks(piece) {
        graph.feed(part).unwrap();
        while let Some(block) = graph.export(blocks.len()) {
            blocks.push(Arc::new(block));
        }
    }
    blocks
}

#[test]
fn imported_blocks_go_on_with_the_bits_of_their_tokens() {
    let tokens = tokens();
    for name in ["lfm2-tiny-tied", "lfm3-tiny"] {
        let Some(dir) = fixture(name) else { return };
        let place = tempfile::tempdir().unwrap();
        for (ring, cache) in CACHES {
            let passes = vec![Pass::Decode, Pass::Prefill(48), Pass::Verify(4)];
            let options =
                Options { ctx: CTX, passes, ring, cache, layers_per_chunk: Some(3), ..Options::default() };
            let bundle = convert(&dir, &place.path().join(format!("{ring}-{cache:?}.bundle")), &options);
            for profile in ["f32", "fp16"] {
                let what = format!("{name} {profile} ring {ring} {cache:?}");
                let mut fed = engine(&bundle, profile);
                let expected = bits(fed.feed_all(&tokens).unwrap());
                fed.reset();
                // Ends of blocks fall within passes, and on their ends.
                let blocks = exported(&mut fed, &tokens, 70);
                fed.reset();
                let again = exported(&mut fed, &tokens, 16);
                let format = fed.block_format().unwrap();
                assert!(blocks.len() == 2 && blocks == again, "{what}: {}", blocks.len());
                assert!(blocks.iter().all(|b| b.complete && b.bytes.len() == format.bytes), "{what}");
                let mut other = engine(&bundle, profile);
                assert_eq!(other.block_format().unwrap(), format);
                let vocab = other.vocab_size();
                for count in [2, 1] {
                    other.reset();
                    other.feed(&[9; 60]).unwrap();
                    other.import(&blocks[..count]).unwrap();
                    let at = count * BLOCK_TOKENS;
                    assert_eq!((other.position(), other.nearest(at)), (at, at), "{what}");
                    for part in [&tokens[at..=at], &tokens[at + 1..]] {
                        let from = other.position();
                        let logits = bits(other.feed_all(part).unwrap());
                        let rows = &expected[from * vocab..(from + part.len()) * vocab];
                        assert!(logits == rows, "{what}: {count} blocks, from {from}");
                    }
                    let all: Vec<Block> = (0..2).filter_map(|i| other.export(i)).collect();
                    assert_eq!(all.len(), 2, "{what}");
                    assert!(all[count..].iter().eq(blocks[count..].iter().map(|b| &**b)), "{what}");
                    // Back to where the blocks ended.
                    let shown = other.nearest(at) == at;
                    assert!(
                        shown || (ring && cache == CacheKind::State),
                        "{what}: a state's ring has moved on"
                    );
                    if shown {
                        other.rewind(at).unwrap();
                        let logits = bits(other.feed(&tokens[at..=at]).unwrap());
                        assert!(logits == expected[at * vocab..(at + 1) * vocab], "{what}: back to {at}");
                    }
                }
                // A step back over the end of a block takes it away.
                fed.reset();
                fed.feed(&tokens[..BLOCK_TOKENS - 2]).unwrap();
                fed.feed_all(&tokens[BLOCK_TOKENS - 2..BLOCK_TOKENS + 2]).unwrap();
                assert!(fed.export(0).is_some(), "{what}");
                fed.rewind(BLOCK_TOKENS - 1).unwrap();
                assert!(fed.export(0).is_none(), "{what}");
                fed.feed(&tokens[BLOCK_TOKENS - 1..=BLOCK_TOKENS]).unwrap();
                assert_eq!(fed.export(0).as_ref(), Some(&*blocks[0]), "{what}");
            }
        }
    }
}

#[test]
fn a_long_pass_over_a_ring_in_a_state_leaves_blocks_one_cannot_stop_at() {
    let Some(dir) = fixture("lfm3-tiny") else { return };
    let place = tempfile::tempdir().unwrap();
    let tokens = tokens();
    let passes = vec![Pass::Decode, Pass::Prefill(96)];
    let options = Options { ctx: CTX, passes, cache: CacheKind::State, ..Options::default() };
    let bundle = convert(&dir, &place.path().join("bundle"), &options);
    let mut fed = engine(&bundle, "fp16");
    let blocks = exported(&mut fed, &tokens[..2 * BLOCK_TOKENS], 96);
    // Passes end at 96, 192 and 256.
    assert_eq!(blocks.iter().map(|b| b.complete).collect::<Vec<_>>(), [false, true]);
    let mut other = engine(&bundle, "fp16");
    assert!(other.import(&blocks[..1]).is_err() && other.position() == 0);
    other.import(&blocks).unwrap();
    let at = 2 * BLOCK_TOKENS;
    let expected = bits(fed.feed(&tokens[at..]).unwrap());
    assert_eq!(bits(other.feed(&tokens[at..]).unwrap()), expected);
}

#[test]
fn blocks_of_another_bundle_are_refused_and_not_found() {
    let Some(dir) = fixture("lfm3-tiny") else { return };
    let place = tempfile::tempdir().unwrap();
    let tokens = tokens();
    let options = |ring| Options {
        ctx: CTX,
        passes: vec![Pass::Decode, Pass::Prefill(16)],
        ring,
        ..Options::default()
    };
    let [ring, full] =
        [true, false].map(|ring| convert(&dir, &place.path().join(format!("{ring}")), &options(ring)));
    let cache = PrefixCache::new(ModelId::of([]), 64 << 20);
    let mut fed = engine(&ring, "fp16");
    let blocks = exported(&mut fed, &tokens, 30);
    cache.keep(&fed, &tokens);
    assert_eq!(cache.in_use().blocks, 2);
    assert_eq!(cache.restore(&mut engine(&full, "fp16"), &tokens, 0), None);
    assert_eq!(cache.restore(&mut engine(&ring, "fp16"), &tokens, 0), Some(2 * BLOCK_TOKENS));
    let mut other = engine(&ring, "fp16");
    other.feed(&tokens[..5]).unwrap();
    let mut refused = |bytes: Vec<u8>, count: usize| {
        let block = Arc::new(Block { bytes, complete: true });
        let error = other.import(&vec![block; count]).unwrap_err().to_string();
        assert_eq!(other.position(), 5);
        error
    };
    assert!(refused(blocks[0].bytes[4..].to_vec(), 1).contains("bytes"));
    assert!(refused(blocks[0].bytes.clone(), 3).contains("context"));
    let mut bad = blocks[0].bytes.clone();
    bad[400..404].copy_from_slice(&f32::NAN.to_le_bytes());
    assert!(refused(bad, 1).contains("finite"));
}
