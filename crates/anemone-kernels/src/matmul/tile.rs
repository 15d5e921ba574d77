//! The loops every product shares: register tiles over rows and tokens, one running sum for each output.

use anemone_tensor::DType;

use crate::simd::{Isa, Shared};

/// Tokens of one register tile.
const TILE_TOKENS: usize = 6;
/// Bytes of a cache line.
const LINE: usize = 64;
/// Rows of one register tile.
pub(super) const TILE_ROWS: usize = 4;

/// Consecutive weight rows and where their outputs go.
pub(super) struct Rows<'a> {
    pub(super) data: &'a [u8],
    pub(super) dtype: DType,
    pub(super) count: usize,
    pub(super) cols: usize,
    /// Whether a single token is best computed from one stream.
    pub(super) sequential: bool,
    pub(super) out: Shared<f32>,
    pub(super) out_stride: usize,
    pub(super) out_start: usize,
    pub(super) tokens: usize,
    /// Bytes that are wanted next, to be fetched while these rows are multiplied.
    pub(super) ahead: &'a [u8],
}

/// How an arithmetic multiplies: operands of `STEP` elements, summed lane by lane.
///
/// # Safety
/// Methods may only run where the instructions exist, inside a function compiled for them; pointers are valid for `STEP`
/// elements, or for `n < STEP` in the `_n` forms, at any alignment.
pub(super) unsafe trait Dot: Copy {
    /// The instruction set its sums are vectors of.
    type I: Isa;
    /// Loaded weights or activations.
    type Operand: Copy;
    /// Stored weights.
    type Weight: Copy;
    /// Stored activations.
    type Activation: Copy;
    /// Elements of an operand.
    const STEP: usize;

    unsafe fn weight(p: *const Self::Weight) -> Self::Operand;
    unsafe fn weight_n(p: *const Self::Weight, n: usize) -> Self::Operand;
    unsafe fn activation(p: *const Self::Activation) -> Self::Operand;
    unsafe fn activation_n(p: *const Self::Activation, n: usize) -> Self::Operand;
    /// The sum with the products of `w` and `x` added.
    unsafe fn add(sum: Sum<Self>, w: Self::Operand, x: Self::Operand) -> Sum<Self>;
}

pub(super) type Sum<D> = <<D as Dot>::I as Isa>::V;

/// Computes all rows for all tokens: full tiles first, then each remainder with its own constants.
///
/// A single token takes `FEW` rows at a time, far apart, so that each is a stream read in order; prefetching is left to the
/// hardware.
///
/// # Safety
/// As [`Dot`]; `rows.data` holds `count * cols` weights and `x` `tokens * cols` activations.
#[inline(always)]
pub(super) unsafe fn each<D: Dot, const FEW: usize>(rows: &Rows<'_>, x: &[D::Activation]) {
    debug_assert_eq!(rows.data.len(), rows.count * rows.cols * size_of::<D::Weight>());
    debug_assert_eq!(x.len(), rows.tokens * rows.cols);
    // SAFETY: tiles stay inside `count` rows and `tokens` tokens.
    unsafe {
        if rows.tokens == 1 {
            let stride = rows.count / FEW;
            for r in 0..stride {
                tile::<D, FEW, 1>(rows, x, r, stride, 0);
            }
            for r in stride * FEW..rows.count {
                tile::<D, 1, 1>(rows, x, r, 1, 0);
            }
            return;
        }
        let full = rows.count / TILE_ROWS * TILE_ROWS;
        let tiles = (rows.tokens.div_ceil(TILE_TOKENS) * (full / TILE_ROWS)).max(1);
        let mut ahead = rows.ahead.chunks(rows.ahead.len().div_ceil(tiles).next_multiple_of(LINE).max(LINE));
        for t in (0..rows.tokens).step_by(TILE_TOKENS) {
            let n = (rows.tokens - t).min(TILE_TOKENS);
            for r in (0..full).step_by(TILE_ROWS) {
                for line in ahead.next().unwrap_or_default().chunks(LINE) {
                    D::I::prefetch(line.as_ptr());
                }
                tokens_of::<D, TILE_ROWS>(rows, x, r, t, n);
            }
            for r in full..rows.count {
                tokens_of::<D, 1>(rows, x, r, t, n);
            }
        }
    }
}

/// # Safety
/// As [`each`]; `r + R <= count`, `t + n <= tokens`.
#[inline(always)]
unsafe fn tokens_of<D: Dot, const R: usize>(
    rows: &Rows<'_>,
    x: &[D::Activation],
    r: usize,
    t: usize,
    n: usize,
) {
    // SAFETY: the caller's contract.
    unsafe {
        match n {
            1 => tile::<D, R, 1>(rows, x, r, 1, t),
            2 => tile::<D, R, 2>(rows, x, r, 1, t),
            3 => tile::<D, R, 3>(rows, x, r, 1, t),
            4 => tile::<D, R, 4>(rows, x, r, 1, t),
            5 => tile::<D, R, 5>(rows, x, r, 1, t),
            _ => tile::<D, R, TILE_TOKENS>(rows, x, r, 1, t),
        }
    }
}

/// Rows `r + i · stride` for tokens `t + j`.
///
/// # Safety
/// As [`each`]; `r + (R - 1) * stride < count`, `t + T <= tokens`.
#[inline(always)]
unsafe fn tile<D: Dot, const R: usize, const T: usize>(
    rows: &Rows<'_>,
    x: &[D::Activation],
    r: usize,
    stride: usize,
    t: usize,
) {
    let cols = rows.cols;
    // SAFETY: every pointer stays inside the rows and tokens named by the contract; loads allow any alignment.
    unsafe {
        let w = rows.data.as_ptr().cast::<D::Weight>().add(r * cols);
        let x = x.as_ptr().add(t * cols);
        let mut acc = [[D::I::splat(0.0); R]; T];
        let full = cols / D::STEP * D::STEP;
        let mut k = 0;
        while k < full {
            let wv: [D::Operand; R] = std::array::from_fn(|i| D::weight(w.add(i * stride * cols + k)));
            for (j, acc) in acc.iter_mut().enumerate() {
                let xv = D::activation(x.add(j * cols + k));
                for (a, w) in acc.iter_mut().zip(wv) {
                    *a = D::add(*a, w, xv);
                }
            }
            k += D::STEP;
        }
        if k < cols {
            let n = cols - k;
            for (j, acc) in acc.iter_mut().enumerate() {
                let xv = D::activation_n(x.add(j * cols + k), n);
                for (i, a) in acc.iter_mut().enumerate() {
                    *a = D::add(*a, D::weight_n(w.add(i * stride * cols + k), n), xv);
                }
            }
        }
        for (j, acc) in acc.iter().enumerate() {
            rows.put::<R>(t + j, r, stride, &sums::<D::I, R>(acc));
        }
    }
}

/// Sums of the lanes of `R` vectors; a sum's bits do not depend on its place.
///
/// # Safety
/// Instruction set as [`Isa`].
#[inline(always)]
unsafe fn sums<I: Isa, const R: usize>(acc: &[I::V; R]) -> [f32; R] {
    let mut out = [0.0; R];
    let mut first = 0;
    while first < R {
        let n = (R - first).min(4);
        // SAFETY: arithmetic on vectors only; the caller guarantees the instruction set.
        unsafe {
            let mut four = [I::splat(0.0); 4];
            four[..n].copy_from_slice(&acc[first..first + n]);
            out[first..first + n].copy_from_slice(&I::sum4(four)[..n]);
        }
        first += n;
    }
    out
}

impl Rows<'_> {
    /// # Safety
    /// The rows `row + i · stride` and `token` exist, and the caller's task owns these rows.
    #[inline(always)]
    unsafe fn put<const R: usize>(&self, token: usize, row: usize, stride: usize, sums: &[f32; R]) {
        let at = token * self.out_stride + self.out_start + row;
        if stride == 1 {
            // SAFETY: columns of this task's rows are written by this task alone.
            let out = unsafe { self.out.slice(at, R) };
            for (o, v) in out.iter_mut().zip(sums) {
                *o = *v;
            }
            return;
        }
        for (i, v) in sums.iter().enumerate() {
            // SAFETY: as above.
            unsafe { self.out.slice(at + i * stride, 1)[0] = *v };
        }
    }
}
