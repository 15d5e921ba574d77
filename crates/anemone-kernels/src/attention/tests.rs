use super::*;
use crate::Level;

fn wave(n: usize, step: f64) -> Vec<f32> {
    (0..n).map(|i| ((i as f64) * step).sin() as f32).collect()
}

struct Case {
    shape: AttentionShape,
    total: usize,
    window: Option<usize>,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

impl Case {
    fn new(heads: usize, kv_heads: usize, dim: usize, total: usize, window: Option<usize>) -> Self {
        let shape = AttentionShape { heads, kv_heads, dim };
        let n = total * kv_heads * dim;
        Self { shape, total, window, q: wave(total * heads * dim, 0.71), k: wave(n, 0.37), v: wave(n, 1.3) }
    }

    fn run(&self, level: Level, element: CacheElement, chunk: usize) -> Vec<f32> {
        let context = Context::with_level(2, level);
        let ring = self.window.map(|w| w + chunk);
        let mut cache = Cache::new(element, self.shape, ring);
        let (qw, kw) = (self.shape.heads * self.shape.dim, self.shape.kv_heads * self.shape.dim);
        let mut out = vec![0.0; self.q.len()];
        let mut scratch = vec![f32::NAN; scratch_len(&context, self.total, chunk)];
        for start in (0..self.total).step_by(chunk) {
            let end = (start + chunk).min(self.total);
            let n = end - start;
            write_cache(
                &context,
                &mut cache,
                start,
                n,
                &self.k[start * kw..end * kw],
                &self.v[start * kw..end * kw],
            );
            let (q, o) = (&self.q[start * qw..end * qw], &mut out[start * qw..end * qw]);
            attention(&context, q, &cache, start, n, self.window, 0.25, o, &mut scratch);
        }
        out
    }

    fn reference(&self, round: impl Fn(f32) -> f64) -> Vec<f64> {
        let AttentionShape { heads, kv_heads, dim } = self.shape;
        let mut out = Vec::new();
        for t in 0..self.total {
            for h in 0..heads {
                let kv = h / (heads / kv_heads);
                let from = self.window.map_or(0, |w| (t + 1).saturating_sub(w));
                let at = |x: &[f32], p: usize, d: usize| round(x[(p * kv_heads + kv) * dim + d]);
                let score = |p: usize| -> f64 {
                    (0..dim)
                        .map(|d| f64::from(self.q[(t * heads + h) * dim + d]) * at(&self.k, p, d))
                        .sum::<f64>()
                        * 0.25
                };
                let terms: Vec<f64> = (from..=t).map(|p| score(p).exp()).collect();
                let sum: f64 = terms.iter().sum();
                for d in 0..dim {
                    out.push(
                        terms.iter().zip(from..=t).map(|(e, p)| e * at(&self.v, p, d)).sum::<f64>() / sum,
                    );
                }
            }
        }
        out
    }
}

fn cases() -> Vec<Case> {
    vec![
        Case::new(1, 1, 8, 3, None),
        Case::new(4, 2, 12, 40, None),
        Case::new(6, 3, 24, 37, Some(5)),
        Case::new(3, 1, 64, 70, Some(16)),
        Case::new(8, 2, 128, 33, Some(17)),
        Case::new(4, 2, 16, 60, Some(8)),
    ]
}

#[test]
fn every_level_matches_f64() {
    for case in cases() {
        for element in [CacheElement::F32, CacheElement::F16] {
            let expected = match element {
                CacheElement::F32 => case.reference(f64::from),
                CacheElement::F16 => case.reference(|x| f64::from(half::f16::from_f32(x).to_f32())),
            };
            for &level in Level::available() {
                let out = case.run(level, element, 7);
                for (o, e) in out.iter().zip(&expected) {
                    // Values are below 1; scores of up to 128 terms round to about 1e-6, which the softmax passes on.
                    assert!(
                        (f64::from(*o) - e).abs() < 3e-6,
                        "{level:?} {element:?} {:?} {o} {e}",
                        case.shape
                    );
                }
            }
        }
    }
}

#[test]
fn a_query_has_the_same_bits_in_any_chunk() {
    for case in cases() {
        for &level in Level::available() {
            let whole = case.run(level, CacheElement::F16, case.total);
            for chunk in [1, 2, 5, 16, 23] {
                let parts = case.run(level, CacheElement::F16, chunk);
                assert!(
                    whole.iter().zip(&parts).all(|(a, b)| a.to_bits() == b.to_bits()),
                    "{level:?} chunks of {chunk}"
                );
            }
        }
    }
}

#[test]
fn a_ring_knows_what_it_holds() {
    let shape = AttentionShape { heads: 1, kv_heads: 1, dim: 4 };
    let context = Context::new(1);
    let mut cache = Cache::new(CacheElement::F16, shape, Some(20));
    for p in 0..100 {
        write_cache(&context, &mut cache, p, 1, &[0.0; 4], &[1e9; 4]);
    }
    assert!(cache.holds(80, 100) && !cache.holds(50, 100) && !cache.holds(90, 101));
    cache.truncate(90);
    assert!(cache.holds(80, 90) && !cache.holds(80, 91));
    let mut out = [0.0; 4];
    let mut scratch = vec![0.0; scratch_len(&context, 100, 1)];
    attention(&context, &[0.0; 4], &cache, 89, 1, Some(5), 1.0, &mut out, &mut scratch);
    assert_eq!(out, [65504.0; 4], "values beyond f16 saturate");
}

#[test]
fn exported_blocks_go_on_with_the_same_bits() {
    let context = Context::with_level(2, Level::best());
    for (element, window) in [
        (CacheElement::F32, None),
        (CacheElement::F16, None),
        (CacheElement::F32, Some(20)),
        (CacheElement::F16, Some(20)),
    ] {
        let case = Case::new(4, 2, 12, 90, window);
        let (qw, kw) = (48, 24);
        let ring = window.map(|w| w + 16);
        let write = |cache: &mut Cache, from: usize, to: usize| {
            let (k, v) = (&case.k[from * kw..to * kw], &case.v[from * kw..to * kw]);
            write_cache(&context, cache, from, to - from, k, v);
        };
        let attend = |cache: &Cache, from: usize, to: usize| {
            let mut out = vec![0.0; (to - from) * qw];
            let mut scratch = vec![f32::NAN; scratch_len(&context, to, to - from)];
            let q = &case.q[from * qw..to * qw];
            attention(&context, q, cache, from, to - from, window, 0.25, &mut out, &mut scratch);
            out
        };
        let mut whole = Cache::new(element, case.shape, ring);
        (0..64).step_by(8).for_each(|at| write(&mut whole, at, at + 8));
        // Of a ring the blocks that the next query sees, otherwise all.
        let first = window.map_or(0, |w| (65 - w) / BLOCK);
        let mut bytes = Vec::new();
        whole.export(first..4, &mut bytes);
        assert_eq!(bytes.len(), (4 - first) * whole.block_bytes());
        // The other has held other things, among them values that are not finite.
        let mut other = Cache::new(element, case.shape, ring);
        (0..88).step_by(8).for_each(|at| {
            write_cache(&context, &mut other, at, 8, &[f32::INFINITY; 8 * 24], &[f32::INFINITY; 8 * 24]);
        });
        other.load(first..4, &bytes);
        assert!(other.holds(first * BLOCK, 64) && !other.holds(0, 65));
        assert_eq!(first > 0, !other.holds(0, 64));
        for (from, to) in [(64, 70), (70, 71), (71, 87), (87, 90)] {
            write(&mut whole, from, to);
            write(&mut other, from, to);
            assert_eq!(attend(&whole, from, to), attend(&other, from, to), "{element:?} {window:?} {from}");
        }
    }
}
