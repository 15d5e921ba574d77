//! Rotary position embedding, half-split pairing.

#![allow(unsafe_code, reason = "threads rotate disjoint tokens")]

use crate::Context;
use crate::simd::{Isa, Shared, dispatch};

/// Fills `cos` and `sin`, each `[positions, frequencies.len()]`, for consecutive positions from `start`.
///
/// The angle is the f32 product of position and frequency, as the reference computes it.
pub fn rope_table(start: usize, frequencies: &[f32], cos: &mut [f32], sin: &mut [f32]) {
    let width = frequencies.len();
    assert!(cos.len() == sin.len() && (width == 0 || cos.len().is_multiple_of(width)), "table lengths");
    if width == 0 {
        return;
    }
    for (i, (cos, sin)) in cos.chunks_exact_mut(width).zip(sin.chunks_exact_mut(width)).enumerate() {
        let position = (start + i) as f32;
        for ((c, s), f) in cos.iter_mut().zip(sin).zip(frequencies) {
            let (sin, cos) = f64::from(position * f).sin_cos();
            (*c, *s) = (cos as f32, sin as f32);
        }
    }
}

/// Rotates every head of every token in place: `(a, b) → (a·cos − b·sin, b·cos + a·sin)` for the halves a, b of a head.
///
/// `x`: `[tokens, heads, dim]`; `cos`, `sin`: `[tokens, dim / 2]`.
pub fn apply_rope(context: &Context, x: &mut [f32], tokens: usize, dim: usize, cos: &[f32], sin: &[f32]) {
    let half = dim / 2;
    assert!(tokens > 0 && x.len().is_multiple_of(tokens), "input length");
    assert!(cos.len() == tokens * half && sin.len() == tokens * half, "table lengths");
    let width = x.len() / tokens;
    assert!(width.is_multiple_of(dim), "whole heads");
    let shared = Shared::new(x);
    let per_task = 16_384_usize.div_ceil(width).max(1);
    context.pool().run(tokens.div_ceil(per_task), &|_, task| {
        for t in task * per_task..((task + 1) * per_task).min(tokens) {
            // SAFETY: each token is one task's alone.
            let x = unsafe { shared.slice(t * width, width) };
            let (cos, sin) = (&cos[t * half..(t + 1) * half], &sin[t * half..(t + 1) * half]);
            dispatch!(context.level(), rotate::<I>(x: &mut [f32], cos: &[f32], sin: &[f32]));
        }
    });
}

/// # Safety
/// Instruction set as [`Isa`].
#[inline(always)]
unsafe fn rotate<I: Isa>(x: &mut [f32], cos: &[f32], sin: &[f32]) {
    let half = cos.len();
    for head in x.chunks_exact_mut(2 * half) {
        let (a, b) = head.split_at_mut(half);
        for i in 0..half {
            let (u, v) = (a[i], b[i]);
            a[i] = u * cos[i] - v * sin[i];
            b[i] = v * cos[i] + u * sin[i];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Level;

    #[test]
    fn rotation_matches_the_definition() {
        let (tokens, heads, dim, start) = (3, 2, 12, 5);
        let freqs: Vec<f32> = (0..dim / 2).map(|i| 1.0 / 10f32.powi(i as i32)).collect();
        let (mut cos, mut sin) = (vec![0.0; tokens * dim / 2], vec![0.0; tokens * dim / 2]);
        rope_table(start, &freqs, &mut cos, &mut sin);
        let x: Vec<f32> = (0..tokens * heads * dim).map(|i| (i as f32 * 0.37).sin()).collect();
        for &level in Level::available() {
            let mut y = x.clone();
            apply_rope(&Context::with_level(2, level), &mut y, tokens, dim, &cos, &sin);
            for t in 0..tokens {
                for h in 0..heads {
                    for (i, freq) in freqs.iter().enumerate() {
                        let at = |v: &[f32], i| f64::from(v[(t * heads + h) * dim + i]);
                        let angle = f64::from((start + t) as f32 * freq);
                        let (a, b) = (at(&x, i), at(&x, i + dim / 2));
                        // Two products and a sum, each rounded once: 3 units of 6e-8 on values below 2.
                        assert!((at(&y, i) - (a * angle.cos() - b * angle.sin())).abs() < 3e-7);
                        assert!((at(&y, i + dim / 2) - (b * angle.cos() + a * angle.sin())).abs() < 3e-7);
                    }
                }
            }
        }
    }

    #[test]
    fn zero_frequency_passes_through() {
        let (mut cos, mut sin) = ([0.0; 2], [1.0; 2]);
        rope_table(100_000, &[0.0, 0.0], &mut cos, &mut sin);
        assert_eq!((cos, sin), ([1.0; 2], [0.0; 2]));
    }
}
