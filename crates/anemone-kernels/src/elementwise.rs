//! Element-by-element work between products.

#![allow(unsafe_code, reason = "threads write disjoint ranges")]

use half::bf16;

use crate::Context;
use crate::convert::{Output, Sink};
use crate::simd::{self, Isa, Shared, dispatch};

/// Elements a task covers.
const GRAIN: usize = 16 << 10;

/// `out = silu(gate) · up`, with `silu(a) = a / (1 + e^-a)`; all of one length.
pub fn silu_mul(context: &Context, gate: &[f32], up: &[f32], out: Output<'_>) {
    assert!(gate.len() == up.len() && gate.len() == out.len(), "lengths");
    let n = gate.len();
    let part = |task: usize| task * GRAIN..((task + 1) * GRAIN).min(n);
    match out {
        Output::F32(out) => {
            let shared = Shared::new(out);
            context.pool().run(n.div_ceil(GRAIN), &|_, task| {
                let (gate, up) = (&gate[part(task)], &up[part(task)]);
                // SAFETY: the parts of two tasks do not meet.
                let out = unsafe { shared.slice(task * GRAIN, gate.len()) };
                dispatch!(context.level(), silu_part::<I, f32>(gate: &[f32], up: &[f32], out: &mut [f32]));
            });
        }
        Output::Bf16(out) => {
            let shared = Shared::new(out);
            context.pool().run(n.div_ceil(GRAIN), &|_, task| {
                let (gate, up) = (&gate[part(task)], &up[part(task)]);
                // SAFETY: the parts of two tasks do not meet.
                let out = unsafe { shared.slice(task * GRAIN, gate.len()) };
                dispatch!(context.level(), silu_part::<I, bf16>(gate: &[f32], up: &[f32], out: &mut [bf16]));
            });
        }
    }
}

/// # Safety
/// Instruction set as [`Isa`]; the slices have one length.
#[inline(always)]
unsafe fn silu_part<I: Isa, S: Sink>(gate: &[f32], up: &[f32], out: &mut [S]) {
    let n = gate.len();
    let mut i = 0;
    while i < n {
        let m = (n - i).min(I::LANES);
        // SAFETY: `m` elements are left in all three slices.
        unsafe {
            let (a, b) = if m == I::LANES {
                (I::load(gate.as_ptr().add(i)), I::load(up.as_ptr().add(i)))
            } else {
                (I::load_n(gate.as_ptr().add(i), m), I::load_n(up.as_ptr().add(i), m))
            };
            let denominator = I::add(I::splat(1.0), simd::exp::<I>(I::sub(I::splat(0.0), a)));
            S::put::<I>(out.as_mut_ptr().add(i), I::mul(I::div(a, denominator), b), m);
        }
        i += m;
    }
}

/// `x += y`, of one length.
pub fn add_assign(context: &Context, x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len(), "lengths");
    let n = x.len();
    let shared = Shared::new(x);
    context.pool().run(n.div_ceil(GRAIN), &|_, task| {
        let y = &y[task * GRAIN..((task + 1) * GRAIN).min(n)];
        // SAFETY: the parts of two tasks do not meet.
        let x = unsafe { shared.slice(task * GRAIN, y.len()) };
        dispatch!(context.level(), add_part::<I>(x: &mut [f32], y: &[f32]));
    });
}

/// # Safety
/// Instruction set as [`Isa`].
#[inline(always)]
unsafe fn add_part<I: Isa>(x: &mut [f32], y: &[f32]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

/// Scales each head by the sigmoid of its gate: `x [tokens, heads, dim]`, `gate [tokens, heads]`.
pub fn gate_heads(x: &mut [f32], gate: &[f32], dim: usize) {
    assert_eq!(x.len(), gate.len() * dim, "lengths");
    for (head, g) in x.chunks_exact_mut(dim).zip(gate) {
        let scale = 1.0 / (1.0 + (-g).exp());
        for v in head {
            *v *= scale;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Level;

    #[test]
    fn silu_matches_f64_over_its_range() {
        let gate: Vec<f32> = (-1000..=1000).map(|i| i as f32 * 0.1).collect();
        let up: Vec<f32> = gate.iter().map(|g| 1.0 + g * 0.01).collect();
        for &level in Level::available() {
            let context = Context::with_level(2, level);
            let (mut out, mut low) = (vec![0.0; gate.len()], vec![bf16::ZERO; gate.len()]);
            silu_mul(&context, &gate, &up, Output::F32(&mut out));
            silu_mul(&context, &gate, &up, Output::Bf16(&mut low));
            for i in 0..gate.len() {
                let (g, u) = (f64::from(gate[i]), f64::from(up[i]));
                let expected = g / (1.0 + (-g).exp()) * u;
                // 4 ulp relative; below e^-87 the exponential is clamped, which leaves at most 1e-35.
                let error = (f64::from(out[i]) - expected).abs();
                assert!(error <= expected.abs() * 2.4e-7 + 1e-35, "{level:?} {} {error}", gate[i]);
                assert_eq!(low[i].to_bits(), bf16::from_f32(out[i]).to_bits());
            }
        }
    }

    #[test]
    fn gates_and_sums() {
        let mut x = vec![1.0; 8];
        gate_heads(&mut x, &[0.0, 100.0], 4);
        assert_eq!(x, [0.5, 0.5, 0.5, 0.5, 1.0, 1.0, 1.0, 1.0]);
        let context = Context::new(2);
        add_assign(&context, &mut x, &[1.0; 8]);
        assert_eq!(x, [1.5, 1.5, 1.5, 1.5, 2.0, 2.0, 2.0, 2.0]);
    }
}
