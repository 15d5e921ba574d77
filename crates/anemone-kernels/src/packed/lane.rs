//! The register tile of products with panels: rows of inputs, spread element by element, against the columns of a panel.

use std::marker::PhantomData;

use half::bf16;

use crate::simd::Isa;
use crate::simd::pairs::Pairs;

/// An arithmetic whose operands hold `DEPTH` elements of the inner dimension for each lane.
///
/// # Safety
/// Methods may only run where the instructions exist, inside a function compiled for them; pointers are valid for the
/// elements named, at any alignment.
pub(crate) unsafe trait Lane: Copy {
    /// The instruction set its sums are vectors of.
    type I: Isa;
    /// Loaded elements.
    type Operand: Copy;
    /// Elements of inputs and panels.
    type Element: Copy + Default + Send + Sync + 'static;
    /// Elements of the inner dimension in an operand's lane.
    const DEPTH: usize;

    /// `LANES * DEPTH` elements of a panel.
    unsafe fn columns(p: *const Self::Element) -> Self::Operand;
    /// `DEPTH` elements of an input, in every lane.
    unsafe fn spread(p: *const Self::Element) -> Self::Operand;
    /// The sum with the products of `w` and `x` added.
    unsafe fn add(sum: Sums<Self>, w: Self::Operand, x: Self::Operand) -> Sums<Self>;
    /// Rounds a vector of sums to elements at `p`, `n <= LANES` of them.
    unsafe fn put(p: *mut Self::Element, v: Sums<Self>, n: usize);
}

/// A vector of sums.
pub(crate) type Sums<L> = <<L as Lane>::I as Isa>::V;

/// f32 all through.
#[derive(Clone, Copy)]
pub(crate) struct Wide<I>(PhantomData<I>);

// SAFETY: the methods are those of `Isa`, under the same contract.
unsafe impl<I: Isa> Lane for Wide<I> {
    type I = I;
    type Operand = I::V;
    type Element = f32;
    const DEPTH: usize = 1;

    #[inline(always)]
    unsafe fn columns(p: *const f32) -> I::V {
        // SAFETY: the caller's contract.
        unsafe { I::load(p) }
    }
    #[inline(always)]
    unsafe fn spread(p: *const f32) -> I::V {
        // SAFETY: the caller's contract.
        unsafe { I::splat(p.read_unaligned()) }
    }
    #[inline(always)]
    unsafe fn add(sum: I::V, w: I::V, x: I::V) -> I::V {
        // SAFETY: the caller's contract.
        unsafe { I::fma(x, w, sum) }
    }
    #[inline(always)]
    unsafe fn put(p: *mut f32, v: I::V, n: usize) {
        // SAFETY: the caller's contract.
        unsafe { if n == I::LANES { I::store(p, v) } else { I::store_n(p, v, n) } }
    }
}

/// Pairs of bf16, summed in f32.
#[derive(Clone, Copy)]
pub(crate) struct Paired<M>(PhantomData<M>);

// SAFETY: the methods are those of `Pairs`, under the same contract.
unsafe impl<M: Pairs> Lane for Paired<M> {
    type I = M::I;
    type Operand = M::P;
    type Element = bf16;
    const DEPTH: usize = 2;

    #[inline(always)]
    unsafe fn columns(p: *const bf16) -> M::P {
        // SAFETY: the caller's contract.
        unsafe { M::load(p) }
    }
    #[inline(always)]
    unsafe fn spread(p: *const bf16) -> M::P {
        // SAFETY: the caller's contract.
        unsafe { M::spread(p) }
    }
    #[inline(always)]
    unsafe fn add(sum: Sums<Self>, w: M::P, x: M::P) -> Sums<Self> {
        // SAFETY: the caller's contract.
        unsafe { M::dot(sum, w, x) }
    }
    #[inline(always)]
    unsafe fn put(p: *mut bf16, v: Sums<Self>, n: usize) {
        // SAFETY: the caller's contract.
        unsafe { M::store_n(p, M::round(v, M::I::splat(0.0)), n) }
    }
}

/// Sums of `R` rows of inputs against `V` vectors of columns: `sum[r][v] = Σ_k x[r, k] · panel[k, v]`, in order of `k`.
///
/// Rows of `x` are `x_stride` elements apart; each step of `DEPTH` elements of the panel is `panel_stride` elements. What is left of
/// `depth` after whole steps meets zeros.
///
/// # Safety
/// As [`Lane`]; `x` has `R` rows of `depth` elements, the panel `depth.div_ceil(DEPTH)` steps of at least `V * LANES` columns.
#[inline(always)]
pub(crate) unsafe fn tile<L: Lane, const R: usize, const V: usize>(
    x: *const L::Element,
    x_stride: usize,
    depth: usize,
    panel: *const L::Element,
    panel_stride: usize,
) -> [[Sums<L>; V]; R] {
    let width = L::I::LANES * L::DEPTH;
    // SAFETY: every pointer stays inside the rows and steps named by the contract.
    unsafe {
        let mut sums = [[L::I::splat(0.0); V]; R];
        let mut panel = panel;
        let steps = depth / L::DEPTH;
        for step in 0..steps {
            let w: [L::Operand; V] = std::array::from_fn(|v| L::columns(panel.add(v * width)));
            for (r, sums) in sums.iter_mut().enumerate() {
                let x = L::spread(x.add(r * x_stride + step * L::DEPTH));
                for (sum, w) in sums.iter_mut().zip(w) {
                    *sum = L::add(*sum, w, x);
                }
            }
            panel = panel.add(panel_stride);
        }
        let rest = depth - steps * L::DEPTH;
        if rest > 0 {
            let w: [L::Operand; V] = std::array::from_fn(|v| L::columns(panel.add(v * width)));
            for (r, sums) in sums.iter_mut().enumerate() {
                let mut last = [L::Element::default(); 2];
                std::ptr::copy_nonoverlapping(
                    x.add(r * x_stride + steps * L::DEPTH).cast::<u8>(),
                    last.as_mut_ptr().cast::<u8>(),
                    rest * size_of::<L::Element>(),
                );
                let x = L::spread(last.as_ptr());
                for (sum, w) in sums.iter_mut().zip(w) {
                    *sum = L::add(*sum, w, x);
                }
            }
        }
        sums
    }
}

/// Runs `$body` with the constant `$n` equal to a number of rows from 1 to 6.
macro_rules! with_rows {
    ($rows:expr, $n:ident => $body:expr) => {
        match $rows {
            1 => {
                const $n: usize = 1;
                $body
            }
            2 => {
                const $n: usize = 2;
                $body
            }
            3 => {
                const $n: usize = 3;
                $body
            }
            4 => {
                const $n: usize = 4;
                $body
            }
            5 => {
                const $n: usize = 5;
                $body
            }
            _ => {
                const $n: usize = 6;
                $body
            }
        }
    };
}
pub(crate) use with_rows;

/// Rows of a tile, at most.
pub(crate) const ROWS: usize = 6;
