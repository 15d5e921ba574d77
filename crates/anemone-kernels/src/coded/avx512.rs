//! Panels on AVX-512 with VNNI: a vector holds four columns of sixteen rows, an instruction multiplies them by four of a token.

use std::arch::x86_64::{
    __m128i, __m512, __m512i, __mmask16, _MM_HINT_T0, _mm_cvtsi32_si128, _mm_loadu_si128, _mm_prefetch,
    _mm256_loadu_si256, _mm512_and_si512, _mm512_cvtepi8_epi32, _mm512_cvtepi32_ps, _mm512_cvtepu8_epi32,
    _mm512_cvtph_ps, _mm512_dpbusd_epi32, _mm512_fmadd_ps, _mm512_fnmadd_ps, _mm512_loadu_si512,
    _mm512_mask_add_epi8, _mm512_mask_storeu_ps, _mm512_mul_ps, _mm512_set1_epi8, _mm512_set1_epi32,
    _mm512_set1_ps, _mm512_setzero_ps, _mm512_setzero_si512, _mm512_sll_epi32, _mm512_slli_epi16,
    _mm512_srli_epi16, _mm512_ternarylogic_epi32, _mm512_test_epi8_mask,
};

use super::round::{MOST, Part};
use super::{Group, Panel, ROWS, STEPS, SUPER, SUPER_BYTES, Scales, code_bytes, scales};

/// Calls a function with the number of tokens as a constant, from 1 to [`MOST`].
macro_rules! with_tokens {
    ($n:expr, $T:ident => $call:expr) => {
        match $n {
            1 => {
                const $T: usize = 1;
                $call
            }
            2 => {
                const $T: usize = 2;
                $call
            }
            3 => {
                const $T: usize = 3;
                $call
            }
            4 => {
                const $T: usize = 4;
                $call
            }
            5 => {
                const $T: usize = 5;
                $call
            }
            6 => {
                const $T: usize = 6;
                $call
            }
            7 => {
                const $T: usize = 7;
                $call
            }
            8 => {
                const $T: usize = 8;
                $call
            }
            9 => {
                const $T: usize = 9;
                $call
            }
            10 => {
                const $T: usize = 10;
                $call
            }
            11 => {
                const $T: usize = 11;
                $call
            }
            _ => {
                const $T: usize = MOST;
                $call
            }
        }
    };
}

/// How far ahead of a single token's product its weights are fetched, in bytes.
const AHEAD: usize = 4096;

/// Whether the machine has what these products need beyond its level.
pub(super) fn is_available() -> bool {
    is_x86_feature_detected!("avx512vnni")
}

/// # Safety
/// As [`super::dispatch`]; the machine has AVX-512 F, BW, VL, DQ and VNNI.
pub(super) unsafe fn run(panel: &Panel<'_>, group: &Group<'_>) {
    // SAFETY: the caller's contract.
    unsafe {
        match panel.layout.format.bits() {
            4 => with_tokens!(group.count, T => tile::<4, T>(panel, group)),
            5 => with_tokens!(group.count, T => tile::<5, T>(panel, group)),
            6 => with_tokens!(group.count, T => tile::<6, T>(panel, group)),
            _ => with_tokens!(group.count, T => tile::<8, T>(panel, group)),
        }
    }
}

/// # Safety
/// As [`run`]; `T` is the group's number of tokens, `BITS` are those of the panel's codes.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,f16c,fma")]
unsafe fn tile<const BITS: u32, const T: usize>(panel: &Panel<'_>, group: &Group<'_>) {
    let (kind, factors) = (scales(panel.layout.format), panel.bytes.as_ptr());
    let has_min = matches!(kind, Scales::Min | Scales::SuperMin);
    // Codes around zero are moved there by the sums of what they are multiplied with.
    let zero = _mm_cvtsi32_si128(if has_min { 32 } else { BITS as i32 - 1 });
    let size = code_bytes(BITS);
    let blocks = (panel.bytes.len() - panel.layout.codes) / size;
    let mut codes = factors.wrapping_add(panel.layout.codes);
    let mut sums = [_mm512_setzero_ps(); T];
    for b in 0..blocks {
        // SAFETY: the panel holds codes and factors of so many blocks, the group words for each token.
        unsafe {
            let part = group.part(b);
            if T == 1 {
                for line in (0..size).step_by(64) {
                    _mm_prefetch::<_MM_HINT_T0>(codes.wrapping_add(AHEAD + line).cast());
                }
            }
            let (scales, min) = read(kind, factors, b);
            if BITS == 6 {
                let first = dots::<BITS, T>(codes, &part, 0..STEPS / 2, (part.negated[0], zero));
                add::<T>(&mut sums, first, scales[0], part.scales);
                let second = dots::<BITS, T>(codes, &part, STEPS / 2..STEPS, (part.negated[1], zero));
                add::<T>(&mut sums, second, scales[1], part.scales);
            } else {
                let dots = dots::<BITS, T>(codes, &part, 0..STEPS, (part.negated[2], zero));
                add::<T>(&mut sums, dots, scales[0], part.scales);
            }
            if has_min {
                for (t, sum) in sums.iter_mut().enumerate() {
                    *sum = _mm512_fnmadd_ps(min, _mm512_set1_ps(*part.sums.add(t)), *sum);
                }
            }
        }
        codes = codes.wrapping_add(size);
    }
    for (t, sum) in sums.iter().enumerate() {
        // SAFETY: the token has an output; lanes beyond the panel's columns are left out.
        unsafe {
            let out = panel.out.add((group.first + t) * panel.stride);
            let mask = (0xffff_u32 >> (ROWS - panel.width)) as __mmask16;
            _mm512_mask_storeu_ps(out, mask, *sum);
        }
    }
}

/// Dot products of codes over some steps of a block, for each token the rows of the panel.
///
/// # Safety
/// As [`tile`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn dots<const BITS: u32, const T: usize>(
    codes: *const u8,
    part: &Part,
    steps: std::ops::Range<usize>,
    (negated, zero): (*const i32, __m128i),
) -> [__m512i; T] {
    let low = _mm512_set1_epi8(15);
    let mut dots = [_mm512_setzero_si512(); T];
    // SAFETY: the caller's contract.
    unsafe {
        for (t, dot) in dots.iter_mut().enumerate() {
            // Where codes begin at zero, the shift leaves nothing.
            *dot = _mm512_sll_epi32(_mm512_set1_epi32(*negated.add(t)), zero);
        }
        let load = |i: usize| _mm512_loadu_si512(codes.add(64 * i).cast());
        for step in steps {
            let weights = match BITS {
                8 => load(step),
                _ if step < 4 => _mm512_and_si512(load(step), low),
                _ => _mm512_and_si512(_mm512_srli_epi16::<4>(load(step - 4)), low),
            };
            let weights = match BITS {
                5 => {
                    let bit = _mm512_set1_epi8((1u8 << step).cast_signed());
                    let mask = _mm512_test_epi8_mask(load(4), bit);
                    _mm512_mask_add_epi8(weights, mask, weights, _mm512_set1_epi8(16))
                }
                6 => {
                    let high = load(4 + step / 4);
                    let high = match step % 4 {
                        0 => _mm512_slli_epi16::<4>(high),
                        1 => _mm512_slli_epi16::<2>(high),
                        2 => high,
                        _ => _mm512_srli_epi16::<2>(high),
                    };
                    // (high & 0x30) | weights
                    _mm512_ternarylogic_epi32::<0xea>(weights, high, _mm512_set1_epi8(0x30))
                }
                _ => weights,
            };
            for (t, dot) in dots.iter_mut().enumerate() {
                let token = _mm512_set1_epi32(*part.codes.add(step * T + t));
                *dot = _mm512_dpbusd_epi32(*dot, weights, token);
            }
        }
    }
    dots
}

/// Adds dot products times both scales.
///
/// # Safety
/// As [`tile`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma")]
unsafe fn add<const T: usize>(sums: &mut [__m512; T], dots: [__m512i; T], scale: __m512, tokens: *const f32) {
    for (t, (sum, dot)) in sums.iter_mut().zip(dots).enumerate() {
        // SAFETY: there is a scale for every token.
        let both = unsafe { _mm512_mul_ps(scale, _mm512_set1_ps(*tokens.add(t))) };
        *sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), both, *sum);
    }
}

/// Scales of a block's halves and its minimum, for the rows of the panel.
///
/// # Safety
/// As [`tile`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,f16c,fma")]
unsafe fn read(kind: Scales, factors: *const u8, b: usize) -> ([__m512; 2], __m512) {
    // SAFETY: the caller's contract.
    unsafe {
        let halves = |at: usize| _mm512_cvtph_ps(_mm256_loadu_si256(factors.add(at).cast()));
        let bytes = |at: usize| _mm_loadu_si128(factors.add(at).cast());
        let base = b / SUPER * SUPER_BYTES;
        let own = base + 4 * ROWS + b % SUPER * 2 * ROWS;
        let none = _mm512_setzero_ps();
        match kind {
            Scales::Plain => ([halves(b * 2 * ROWS); 2], none),
            Scales::Min => ([halves(b * 4 * ROWS); 2], halves(b * 4 * ROWS + 2 * ROWS)),
            Scales::SuperMin => {
                let wide = |at| _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes(at)));
                let min = _mm512_mul_ps(halves(base + 2 * ROWS), wide(own + ROWS));
                ([_mm512_mul_ps(halves(base), wide(own)); 2], min)
            }
            Scales::SuperHalf => {
                let wide = |at| _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes(at)));
                let scale = halves(base);
                ([_mm512_mul_ps(scale, wide(own)), _mm512_mul_ps(scale, wide(own + ROWS))], none)
            }
        }
    }
}
