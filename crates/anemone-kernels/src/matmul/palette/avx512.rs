//! Indices to vectors of 32 words, by shuffles of whole registers.

use std::arch::x86_64::{
    __m512i, _mm512_load_si512, _mm512_loadu_si512, _mm512_mask_blend_epi8, _mm512_maskz_loadu_epi8,
    _mm512_movepi8_mask, _mm512_multishift_epi64_epi8, _mm512_permutex2var_epi8, _mm512_permutex2var_epi16,
    _mm512_permutexvar_epi8, _mm512_permutexvar_epi16, _mm512_permutexvar_epi64, _mm512_set1_epi16,
    _mm512_setr_epi64, _mm512_slli_epi16, _mm512_srli_epi16, _mm512_storeu_si512, _mm512_ternarylogic_epi32,
    _mm512_unpackhi_epi8, _mm512_unpacklo_epi8,
};
use std::mem::MaybeUninit;

use super::{Planes, Table};

/// Indices of a row that are looked up together.
pub(super) const GROUP: usize = 64;

/// Whether the machine has the shuffles of bytes.
pub(super) fn has_shuffles() -> bool {
    std::arch::is_x86_feature_detected!("avx512vbmi")
}

/// Where the bytes of eight indices go for each number of bits, and how far each index lies from the first.
///
/// Eight indices fill a quarter of 16 bytes, first 0–7 and 32–39, then 8–15 and 40–47, …: interleaving low and high bytes within
/// 16 bytes then makes two vectors of words in order.
const fn places(bits: usize) -> ([u8; 64], [u8; 64]) {
    let (mut spread, mut shift) = ([0; 64], [0; 64]);
    let mut i = 0;
    while i < 64 {
        let (quad, half, byte) = (i / 16, i / 8 % 2, i % 8);
        let from = (quad + 4 * half) * bits + byte;
        spread[i] = if byte < bits { from as u8 } else { 0 };
        shift[i] = (byte * bits) as u8;
        i += 1;
    }
    (spread, shift)
}

const PLACES: [([u8; 64], [u8; 64]); 7] =
    [places(0), places(1), places(2), places(3), places(4), places(5), places(6)];

/// A way to look up 64 indices in the order of the format.
///
/// # Safety
/// Methods may only run inside functions compiled for AVX-512 F, BW and VBMI.
pub(super) unsafe trait Lookup: Copy {
    /// The 64 words of the indices at `p`, of which `left` count, in order; what is beyond those bytes is not read.
    unsafe fn words(&self, p: *const u8, left: usize) -> [__m512i; 2];
    /// Bytes of 64 indices.
    fn bytes(&self) -> usize;
}

/// Tables of at most 64 entries, repeated to 64.
#[derive(Clone, Copy)]
pub(super) struct Few {
    spread: __m512i,
    shift: __m512i,
    low: __m512i,
    high: __m512i,
    bytes: usize,
}

/// Tables of 256 entries.
#[derive(Clone, Copy)]
pub(super) struct Many {
    order: __m512i,
    low: [__m512i; 4],
    high: [__m512i; 4],
}

impl Few {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    pub(super) fn new(bits: usize, planes: &Planes) -> Self {
        let (spread, shift) = &PLACES[bits];
        // SAFETY: 64 bytes are there each time; planes are aligned.
        unsafe {
            Self {
                spread: _mm512_loadu_si512(spread.as_ptr().cast()),
                shift: _mm512_loadu_si512(shift.as_ptr().cast()),
                low: _mm512_load_si512(planes.low.as_ptr().cast()),
                high: _mm512_load_si512(planes.high.as_ptr().cast()),
                bytes: 8 * bits,
            }
        }
    }
}

impl Many {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    pub(super) fn new(planes: &Planes) -> Self {
        let order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
        let (mut low, mut high) = ([order; 4], [order; 4]);
        for i in 0..4 {
            // SAFETY: 256 aligned bytes are there.
            unsafe {
                low[i] = _mm512_load_si512(planes.low.as_ptr().add(64 * i).cast());
                high[i] = _mm512_load_si512(planes.high.as_ptr().add(64 * i).cast());
            }
        }
        Self { order, low, high }
    }

    /// The words of indices that stand in the order of [`places`].
    ///
    /// # Safety
    /// As [`Lookup`].
    #[inline(always)]
    unsafe fn look_up(&self, index: __m512i) -> [__m512i; 2] {
        // SAFETY: the caller's contract.
        unsafe {
            let upper = _mm512_movepi8_mask(index);
            let [a, b, c, d] = self.low;
            let (first, second) =
                (_mm512_permutex2var_epi8(a, index, b), _mm512_permutex2var_epi8(c, index, d));
            let low = _mm512_mask_blend_epi8(upper, first, second);
            let [a, b, c, d] = self.high;
            let (first, second) =
                (_mm512_permutex2var_epi8(a, index, b), _mm512_permutex2var_epi8(c, index, d));
            let high = _mm512_mask_blend_epi8(upper, first, second);
            [_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high)]
        }
    }
}

// SAFETY: loads are masked to the bytes of the indices that count.
unsafe impl Lookup for Few {
    #[inline(always)]
    unsafe fn words(&self, p: *const u8, left: usize) -> [__m512i; 2] {
        // SAFETY: the caller's contract.
        unsafe {
            let bytes = (left.min(GROUP) * self.bytes).div_ceil(GROUP);
            let stored = _mm512_maskz_loadu_epi8(u64::MAX >> (64 - bytes), p.cast());
            let apart = _mm512_permutexvar_epi8(self.spread, stored);
            // Bits above an index do not matter: the tables repeat.
            let index = _mm512_multishift_epi64_epi8(self.shift, apart);
            let low = _mm512_permutexvar_epi8(index, self.low);
            let high = _mm512_permutexvar_epi8(index, self.high);
            [_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high)]
        }
    }
    #[inline(always)]
    fn bytes(&self) -> usize {
        self.bytes
    }
}

// SAFETY: as above.
unsafe impl Lookup for Many {
    #[inline(always)]
    unsafe fn words(&self, p: *const u8, left: usize) -> [__m512i; 2] {
        // SAFETY: the caller's contract.
        unsafe {
            let stored = _mm512_maskz_loadu_epi8(u64::MAX >> (64 - left.min(GROUP)), p.cast());
            self.look_up(_mm512_permutexvar_epi64(self.order, stored))
        }
    }
    #[inline(always)]
    fn bytes(&self) -> usize {
        GROUP
    }
}

/// A way to look up a chunk of woven indices.
///
/// # Safety
/// Methods may only run inside functions compiled for AVX-512 F, BW and VBMI.
pub(super) unsafe trait Chunk<const N: usize>: Copy {
    /// Bytes of a chunk.
    const BYTES: usize;
    /// The words of the `32 * N` indices of the chunk at `p`, in order.
    unsafe fn words(&self, p: *const u8) -> [__m512i; N];
}

/// Woven indices of four bits.
#[derive(Clone, Copy)]
pub(super) struct Nibbles(__m512i);

/// Woven indices of six bits.
#[derive(Clone, Copy)]
pub(super) struct Sixes(__m512i, __m512i);

impl Nibbles {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) fn new(table: &Table) -> Self {
        // SAFETY: the table has more than 32 words.
        Self(unsafe { _mm512_loadu_si512(table.words.as_ptr().cast()) })
    }
}

impl Sixes {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) fn new(table: &Table) -> Self {
        let words = table.words.as_ptr();
        // SAFETY: the table has 64 words and more.
        unsafe { Self(_mm512_loadu_si512(words.cast()), _mm512_loadu_si512(words.add(32).cast())) }
    }
}

// SAFETY: loads stay inside the chunk.
unsafe impl Chunk<4> for Nibbles {
    const BYTES: usize = 64;

    #[inline(always)]
    unsafe fn words(&self, p: *const u8) -> [__m512i; 4] {
        // SAFETY: the caller's contract. The table repeats after sixteen words, so the bit above an index does not matter.
        unsafe {
            let v = _mm512_loadu_si512(p.cast());
            [
                _mm512_permutexvar_epi16(v, self.0),
                _mm512_permutexvar_epi16(_mm512_srli_epi16::<4>(v), self.0),
                _mm512_permutexvar_epi16(_mm512_srli_epi16::<8>(v), self.0),
                _mm512_permutexvar_epi16(_mm512_srli_epi16::<12>(v), self.0),
            ]
        }
    }
}

// SAFETY: loads stay inside the chunk.
unsafe impl Chunk<8> for Sixes {
    const BYTES: usize = 192;

    #[inline(always)]
    unsafe fn words(&self, p: *const u8) -> [__m512i; 8] {
        // SAFETY: the caller's contract. Lookups see the lowest six bits of a word.
        unsafe {
            let (a, b) = (_mm512_loadu_si512(p.cast()), _mm512_loadu_si512(p.add(64).cast()));
            let h = _mm512_loadu_si512(p.add(128).cast());
            let upper = _mm512_set1_epi16(0x30);
            let look_up = |low: __m512i, high: __m512i| {
                // Where `upper` is set the bits of `high`, else those of `low`.
                let index = _mm512_ternarylogic_epi32::<0xca>(upper, high, low);
                _mm512_permutex2var_epi16(self.0, index, self.1)
            };
            [
                look_up(a, _mm512_slli_epi16::<4>(h)),
                look_up(_mm512_srli_epi16::<4>(a), _mm512_slli_epi16::<2>(h)),
                look_up(_mm512_srli_epi16::<8>(a), h),
                look_up(_mm512_srli_epi16::<12>(a), _mm512_srli_epi16::<2>(h)),
                look_up(b, _mm512_srli_epi16::<4>(h)),
                look_up(_mm512_srli_epi16::<4>(b), _mm512_srli_epi16::<6>(h)),
                look_up(_mm512_srli_epi16::<8>(b), _mm512_srli_epi16::<8>(h)),
                look_up(_mm512_srli_epi16::<12>(b), _mm512_srli_epi16::<10>(h)),
            ]
        }
    }
}

// SAFETY: loads stay inside the chunk.
unsafe impl Chunk<2> for Many {
    const BYTES: usize = 64;

    #[inline(always)]
    unsafe fn words(&self, p: *const u8) -> [__m512i; 2] {
        // SAFETY: the caller's contract.
        unsafe { self.look_up(_mm512_loadu_si512(p.cast())) }
    }
}

/// Writes whole groups from the front; gives the number of elements.
///
/// # Safety
/// The machine has AVX-512 F, BW and VBMI; `indices` holds one for each element of `out`.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
pub(super) unsafe fn expand(
    indices: &[u8],
    bits: usize,
    planes: &Planes,
    out: &mut [MaybeUninit<u16>],
) -> usize {
    // SAFETY: the caller's contract.
    unsafe {
        if bits == 8 {
            expand_with(&Many::new(planes), indices, out)
        } else {
            expand_with(&Few::new(bits, planes), indices, out)
        }
    }
}

/// # Safety
/// As [`expand`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
unsafe fn expand_with<L: Lookup>(lookup: &L, indices: &[u8], out: &mut [MaybeUninit<u16>]) -> usize {
    let whole = out.len() / GROUP;
    debug_assert!(indices.len() >= whole * lookup.bytes());
    for g in 0..whole {
        // SAFETY: a group's indices and elements are there.
        unsafe {
            let words = lookup.words(indices.as_ptr().add(g * lookup.bytes()), GROUP);
            write(words, out.as_mut_ptr().add(g * GROUP));
        }
    }
    whole * GROUP
}

/// Writes the elements of a woven chunk.
///
/// # Safety
/// The machine has AVX-512 F, BW and VBMI; `stored` is a chunk of a woven format, `out` has an element for each index.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
pub(super) unsafe fn expand_woven(stored: &[u8], bits: usize, table: &Table, out: &mut [MaybeUninit<u16>]) {
    let (p, out) = (stored.as_ptr(), out.as_mut_ptr());
    // SAFETY: the caller's contract.
    unsafe {
        match bits {
            4 => write(Nibbles::new(table).words(p), out),
            6 => write(Sixes::new(table).words(p), out),
            _ => write(Chunk::words(&Many::new(&table.planes), p), out),
        }
    }
}

/// # Safety
/// The machine has AVX-512 F; `out` is valid for `32 * N` elements.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn write<const N: usize>(words: [__m512i; N], out: *mut MaybeUninit<u16>) {
    for (i, words) in words.into_iter().enumerate() {
        // SAFETY: the caller's contract.
        unsafe { _mm512_storeu_si512(out.add(32 * i).cast(), words) };
    }
}
