//! bf16 products summed in f32 by the AVX-512 BF16 instructions.

#![allow(
    clippy::large_stack_arrays,
    reason = "128 KiB, a sixteenth of the smallest stack this runs on; kernels do not allocate"
)]

use std::arch::x86_64::{
    __m512bh, __m512i, _mm512_cvtne2ps_pbh, _mm512_dpbf16_ps, _mm512_loadu_si512, _mm512_mask_storeu_epi16,
    _mm512_maskz_loadu_epi16, _mm512_setzero_ps, _mm512_setzero_si512,
};
use std::mem::MaybeUninit;

use anemone_tensor::DType;
use half::{bf16, f16};

use super::{Rows, sums, tiles};
use crate::simd::avx512::Avx512;
use crate::simd::Element;

/// Elements of the buffer that holds rounded weights, so that a row used by many tokens is rounded once.
const BUFFER: usize = 64 << 10;

pub(super) fn run(rows: &Rows<'_>, x: &[bf16]) {
    // SAFETY: the dispatcher has checked that the machine has AVX-512 BF16.
    unsafe {
        match rows.dtype {
            DType::BF16 => each::<bf16>(rows, x),
            DType::F16 => rounded::<f16>(rows, x),
            _ => rounded::<f32>(rows, x),
        }
    }
}

/// Rounds rows to bf16 block by block when several tokens use them; the result is the same either way.
///
/// # Safety
/// The machine has AVX-512 BF16; `rows.data` holds `count * cols` elements of `W`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma,f16c")]
unsafe fn rounded<W: Bf16Source>(rows: &Rows<'_>, x: &[bf16]) {
    let per_block = BUFFER / rows.cols.max(1) / 4 * 4;
    if rows.tokens < 3 || per_block == 0 {
        // SAFETY: the caller's contract.
        return unsafe { each::<W>(rows, x) };
    }
    let mut buffer = [const { MaybeUninit::<u16>::uninit() }; BUFFER];
    let row_bytes = rows.cols * size_of::<W>();
    let mut first = 0;
    while first < rows.count {
        let count = per_block.min(rows.count - first);
        let data = &rows.data[first * row_bytes..(first + count) * row_bytes];
        let n = count * rows.cols;
        // SAFETY: `data` holds `n` elements and the buffer at least as many; exactly the first `n` are read afterwards.
        let block = unsafe {
            round_all::<W>(data.as_ptr().cast(), n, buffer.as_mut_ptr().cast());
            std::slice::from_raw_parts(buffer.as_ptr().cast::<u8>(), n * 2)
        };
        let block =
            Rows { data: block, dtype: DType::BF16, count, out_start: rows.out_start + first, ..*rows };
        // SAFETY: the block holds `count * cols` bf16.
        unsafe { each::<bf16>(&block, x) };
        first += count;
    }
}

/// # Safety
/// As [`rounded`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma,f16c")]
unsafe fn round_all<W: Bf16Source>(w: *const W, n: usize, out: *mut u16) {
    let mut i = 0;
    while i < n {
        let m = (n - i).min(32);
        // SAFETY: `m` elements are left on both sides.
        unsafe {
            let v = if m == 32 { W::pairs(w.add(i)) } else { W::pairs_n(w.add(i), m) };
            _mm512_mask_storeu_epi16(out.add(i).cast(), mask32(m), to_int(v));
        }
        i += m;
    }
}

/// # Safety
/// The machine has AVX-512 BF16; `rows.data` holds `count * cols` elements of `W`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma,f16c")]
unsafe fn each<W: Bf16Source>(rows: &Rows<'_>, x: &[bf16]) {
    debug_assert_eq!(rows.data.len(), rows.count * rows.cols * size_of::<W>());
    // SAFETY: tiles stay inside `count` rows and `tokens` tokens.
    unsafe {
        if rows.sequential {
            tiles!(rows, x, 1, tile<W>);
        } else {
            tiles!(rows, x, 4, tile<W>);
        }
    }
}

/// # Safety
/// As [`each`]; `r + R <= count`, `t + T <= tokens`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma,f16c")]
unsafe fn tile<W: Bf16Source, const R: usize, const T: usize>(
    rows: &Rows<'_>,
    x: &[bf16],
    r: usize,
    stride: usize,
    t: usize,
) {
    let cols = rows.cols;
    // SAFETY: every pointer stays inside the rows and tokens named by the contract; loads allow any alignment.
    unsafe {
        let w = rows.data.as_ptr().cast::<W>().add(r * cols);
        let x = x.as_ptr().add(t * cols);
        let mut acc = [[_mm512_setzero_ps(); R]; T];
        let full = cols / 32 * 32;
        let mut k = 0;
        while k < full {
            let mut wv = [to_bh(_mm512_setzero_si512()); R];
            for (i, v) in wv.iter_mut().enumerate() {
                *v = W::pairs(w.add(i * stride * cols + k));
            }
            for (j, acc) in acc.iter_mut().enumerate() {
                let xv = bf16::pairs(x.add(j * cols + k));
                for (a, w) in acc.iter_mut().zip(wv) {
                    *a = _mm512_dpbf16_ps(*a, w, xv);
                }
            }
            k += 32;
        }
        if k < cols {
            let n = cols - k;
            for (j, acc) in acc.iter_mut().enumerate() {
                let xv = bf16::pairs_n(x.add(j * cols + k), n);
                for (i, a) in acc.iter_mut().enumerate() {
                    *a = _mm512_dpbf16_ps(*a, W::pairs_n(w.add(i * stride * cols + k), n), xv);
                }
            }
        }
        for (j, acc) in acc.iter().enumerate() {
            rows.put::<R>(t + j, r, stride, &sums::<Avx512, R>(acc));
        }
    }
}

fn mask32(n: usize) -> u32 {
    ((1u64 << n) - 1) as u32
}

#[inline(always)]
fn to_bh(v: __m512i) -> __m512bh {
    // SAFETY: both are 512 plain bits.
    unsafe { std::mem::transmute(v) }
}

#[inline(always)]
fn to_int(v: __m512bh) -> __m512i {
    // SAFETY: both are 512 plain bits.
    unsafe { std::mem::transmute(v) }
}

/// Elements readable as 32 bf16 lanes, rounded to nearest even where they are wider.
trait Bf16Source: Element {
    /// # Safety
    /// `p` is valid for 32 elements; the machine has AVX-512 BF16.
    unsafe fn pairs(p: *const Self) -> __m512bh;
    /// # Safety
    /// `p` is valid for `n <= 32` elements; the machine has AVX-512 BF16.
    unsafe fn pairs_n(p: *const Self, n: usize) -> __m512bh;
}

impl Bf16Source for bf16 {
    #[inline(always)]
    unsafe fn pairs(p: *const Self) -> __m512bh {
        // SAFETY: the caller's contract.
        unsafe { to_bh(_mm512_loadu_si512(p.cast())) }
    }
    #[inline(always)]
    unsafe fn pairs_n(p: *const Self, n: usize) -> __m512bh {
        // SAFETY: the mask keeps the load inside the `n` elements of the contract.
        unsafe { to_bh(_mm512_maskz_loadu_epi16(mask32(n), p.cast())) }
    }
}

macro_rules! widened {
    ($t:ty) => {
        impl Bf16Source for $t {
            #[inline(always)]
            unsafe fn pairs(p: *const Self) -> __m512bh {
                // SAFETY: the caller's contract covers both halves.
                unsafe {
                    let (low, high) = (<$t>::load::<Avx512>(p), <$t>::load::<Avx512>(p.add(16)));
                    _mm512_cvtne2ps_pbh(high, low)
                }
            }
            #[inline(always)]
            unsafe fn pairs_n(p: *const Self, n: usize) -> __m512bh {
                let (low, high) = (n.min(16), n.saturating_sub(16));
                // SAFETY: `low + high == n`; a zero-length load touches nothing, so `p.add(low)` may be one past the end.
                unsafe {
                    let (low, high) =
                        (<$t>::load_n::<Avx512>(p, low), <$t>::load_n::<Avx512>(p.add(low), high));
                    _mm512_cvtne2ps_pbh(high, low)
                }
            }
        }
    };
}
widened!(f16);
widened!(f32);
