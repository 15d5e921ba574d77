//! Panels on AVX2: the rows of a panel are two vectors, and products of bytes go through 16 bits, where codes of at most 6 bits fit.

use std::arch::x86_64::{
    __m256, __m256i, _mm_loadl_epi64, _mm_loadu_si128, _mm256_add_epi32, _mm256_and_si256, _mm256_cmpeq_epi8,
    _mm256_cvtepi8_epi32, _mm256_cvtepi32_ps, _mm256_cvtepu8_epi32, _mm256_cvtph_ps, _mm256_fmadd_ps,
    _mm256_fnmadd_ps, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_maddubs_epi16, _mm256_mul_ps,
    _mm256_or_si256, _mm256_set1_epi8, _mm256_set1_epi16, _mm256_set1_epi32, _mm256_set1_ps,
    _mm256_setzero_ps, _mm256_setzero_si256, _mm256_slli_epi16, _mm256_srli_epi16, _mm256_storeu_ps,
};

use anemone_tensor::BlockFormat;

use super::round::Part;
use super::{Group, Panel, ROWS, STEPS, SUPER, SUPER_BYTES, Scales, code_bytes, scales};

/// Tokens of a register tile.
const TILE: usize = 2;

/// Scales of a block's halves and its minimum.
struct Factors {
    scales: [[__m256; 2]; 2],
    mins: [__m256; 2],
}

/// # Safety
/// As [`super::dispatch`]; the machine has AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn run(panel: &Panel<'_>, group: &Group<'_>) {
    let mut t = 0;
    while t < group.count {
        // SAFETY: the caller's contract; the tokens are the group's.
        unsafe {
            if group.count - t >= TILE {
                formats::<TILE>(panel, group, t);
                t += TILE;
            } else {
                formats::<1>(panel, group, t);
                t += 1;
            }
        }
    }
}

/// # Safety
/// As [`run`]; the group has tokens `first..first + T`.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn formats<const T: usize>(panel: &Panel<'_>, group: &Group<'_>, first: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        match panel.layout.format {
            BlockFormat::Q4_0 | BlockFormat::Q4_1 | BlockFormat::Q4_K => tile::<4, T>(panel, group, first),
            BlockFormat::Q5_0 | BlockFormat::Q5_1 | BlockFormat::Q5_K => tile::<5, T>(panel, group, first),
            BlockFormat::Q6_K => tile::<6, T>(panel, group, first),
            _ => tile::<8, T>(panel, group, first),
        }
    }
}

/// # Safety
/// As [`formats`]; codes have `BITS` bits.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn tile<const BITS: u32, const T: usize>(panel: &Panel<'_>, group: &Group<'_>, first: usize) {
    let kind = scales(panel.layout.format);
    let zero = i32::from(panel.layout.format.zero());
    let (factors, codes) = panel.bytes.split_at(panel.layout.codes);
    let mut sums = [[_mm256_setzero_ps(); 2]; T];
    for (b, codes) in codes.chunks_exact(code_bytes(BITS)).enumerate() {
        // SAFETY: the panel holds codes and factors of the block, the group words for each token.
        unsafe {
            let part = group.part(b);
            let at = Tokens { part: &part, first, count: group.count, zero };
            let factors = read(kind, factors.as_ptr(), b);
            if kind == Scales::SuperHalf {
                for half in 0..2 {
                    let steps = half * STEPS / 2..(half + 1) * STEPS / 2;
                    let dots = dots::<BITS, T>(codes.as_ptr(), at, steps, part.negated[half]);
                    add::<T>(&mut sums, dots, factors.scales[half], at);
                }
            } else {
                let dots = dots::<BITS, T>(codes.as_ptr(), at, 0..STEPS, part.negated[2]);
                add::<T>(&mut sums, dots, factors.scales[0], at);
            }
            if matches!(kind, Scales::Min | Scales::SuperMin) {
                for (t, sums) in sums.iter_mut().enumerate() {
                    let token = _mm256_set1_ps(*part.sums.add(first + t));
                    for (sum, min) in sums.iter_mut().zip(factors.mins) {
                        *sum = _mm256_fnmadd_ps(min, token, *sum);
                    }
                }
            }
        }
    }
    for (t, sums) in sums.iter().enumerate() {
        let mut out = [0.0f32; ROWS];
        // SAFETY: both vectors fit, and the token has an output.
        unsafe {
            _mm256_storeu_ps(out.as_mut_ptr(), sums[0]);
            _mm256_storeu_ps(out.as_mut_ptr().add(8), sums[1]);
            panel.put(group.first + first + t, &out);
        }
    }
}

/// Tokens of a group from `first`.
#[derive(Clone, Copy)]
struct Tokens<'a> {
    part: &'a Part,
    first: usize,
    /// All the group's.
    count: usize,
    /// The code of an element that is 0.
    zero: i32,
}

/// # Safety
/// As [`tile`].
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn dots<const BITS: u32, const T: usize>(
    codes: *const u8,
    at: Tokens<'_>,
    steps: std::ops::Range<usize>,
    negated: *const i32,
) -> [[__m256i; 2]; T] {
    let low = _mm256_set1_epi8(15);
    let ones = _mm256_set1_epi16(1);
    let mut dots = [[_mm256_setzero_si256(); 2]; T];
    // SAFETY: the caller's contract.
    unsafe {
        for (t, dots) in dots.iter_mut().enumerate() {
            *dots = [_mm256_set1_epi32(*negated.add(at.first + t) * at.zero); 2];
        }
        for step in steps {
            for half in 0..2 {
                let load = |i: usize| _mm256_loadu_si256(codes.add(64 * i + 32 * half).cast());
                let stored = if BITS == 8 { load(step) } else { load(step % 4) };
                let upper = _mm256_and_si256(_mm256_srli_epi16::<4>(stored), low);
                let lower = _mm256_and_si256(stored, low);
                let mut weights = if step < 4 { lower } else { upper };
                if BITS == 5 {
                    let bit = _mm256_set1_epi8((1u8 << step).cast_signed());
                    let set = _mm256_cmpeq_epi8(_mm256_and_si256(load(4), bit), bit);
                    weights = _mm256_or_si256(weights, _mm256_and_si256(set, _mm256_set1_epi8(16)));
                }
                if BITS == 6 {
                    let high = load(4 + step / 4);
                    let high = match step % 4 {
                        0 => _mm256_slli_epi16::<4>(high),
                        1 => _mm256_slli_epi16::<2>(high),
                        2 => high,
                        _ => _mm256_srli_epi16::<2>(high),
                    };
                    weights = _mm256_or_si256(weights, _mm256_and_si256(high, _mm256_set1_epi8(0x30)));
                }
                for (t, dots) in dots.iter_mut().enumerate() {
                    let token = _mm256_set1_epi32(*at.part.codes.add(step * at.count + at.first + t));
                    let dot = &mut dots[half];
                    if BITS == 8 {
                        // Pairs of whole bytes could leave 16 bits; those of nibbles cannot.
                        let pairs = _mm256_madd_epi16(_mm256_maddubs_epi16(lower, token), ones);
                        *dot = _mm256_add_epi32(*dot, pairs);
                        let pairs =
                            _mm256_madd_epi16(_mm256_maddubs_epi16(upper, token), _mm256_set1_epi16(16));
                        *dot = _mm256_add_epi32(*dot, pairs);
                    } else {
                        let pairs = _mm256_madd_epi16(_mm256_maddubs_epi16(weights, token), ones);
                        *dot = _mm256_add_epi32(*dot, pairs);
                    }
                }
            }
        }
    }
    dots
}

/// # Safety
/// As [`tile`].
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn add<const T: usize>(
    sums: &mut [[__m256; 2]; T],
    dots: [[__m256i; 2]; T],
    scales: [__m256; 2],
    at: Tokens<'_>,
) {
    for (t, (sums, dots)) in sums.iter_mut().zip(dots).enumerate() {
        // SAFETY: there is a scale for every token.
        let token = unsafe { _mm256_set1_ps(*at.part.scales.add(at.first + t)) };
        for ((sum, dot), scale) in sums.iter_mut().zip(dots).zip(scales) {
            *sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), _mm256_mul_ps(scale, token), *sum);
        }
    }
}

/// # Safety
/// As [`tile`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn read(kind: Scales, factors: *const u8, b: usize) -> Factors {
    let zero = [_mm256_setzero_ps(); 2];
    // SAFETY: the caller's contract.
    unsafe {
        let halves = |at: usize| {
            let load = |i: usize| _mm256_cvtph_ps(_mm_loadu_si128(factors.add(at + 16 * i).cast()));
            [load(0), load(1)]
        };
        let times = |a: [__m256; 2], b: [__m256; 2]| [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])];
        let base = b / SUPER * SUPER_BYTES;
        let own = base + 4 * ROWS + b % SUPER * 2 * ROWS;
        let eight = |at: usize| _mm_loadl_epi64(factors.add(at).cast());
        match kind {
            Scales::Plain => Factors { scales: [halves(b * 2 * ROWS); 2], mins: zero },
            Scales::Min => {
                Factors { scales: [halves(b * 4 * ROWS); 2], mins: halves(b * 4 * ROWS + 2 * ROWS) }
            }
            Scales::SuperMin => {
                let wide = |at| _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(eight(at)));
                let both = |at: usize| [wide(at), wide(at + 8)];
                let mins = times(halves(base + 2 * ROWS), both(own + ROWS));
                Factors { scales: [times(halves(base), both(own)); 2], mins }
            }
            Scales::SuperHalf => {
                let wide = |at| _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight(at)));
                let both = |at: usize| [wide(at), wide(at + 8)];
                let scales = [times(halves(base), both(own)), times(halves(base), both(own + ROWS))];
                Factors { scales, mins: zero }
            }
        }
    }
}
