//! The vector operations kernels are written in, once, generic over [`Isa`]; and the one place that enters a
//! `target_feature` function.

#![allow(unsafe_code, reason = "intrinsics and raw loads; every block states why it is sound")]

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
pub(crate) mod pairs;
pub(crate) mod scalar;

/// Vectors of f32 on one instruction set.
///
/// # Safety
/// Methods may only run on a machine that has the instruction set, inside a function compiled for it; the pointers of
/// `load*` and `store*` must be valid for the lanes they touch (`LANES`, or `n` for the `_n` forms with `n <= LANES`),
/// at any alignment.
pub(crate) unsafe trait Isa: Copy + 'static {
    /// A vector of `LANES` f32.
    type V: Copy;
    /// Lanes of a vector; divides 16.
    const LANES: usize;

    unsafe fn splat(v: f32) -> Self::V;
    unsafe fn load(p: *const f32) -> Self::V;
    unsafe fn load_n(p: *const f32, n: usize) -> Self::V;
    unsafe fn load_f16(p: *const u16) -> Self::V;
    unsafe fn load_bf16(p: *const u16) -> Self::V;
    unsafe fn store(p: *mut f32, v: Self::V);
    unsafe fn store_n(p: *mut f32, v: Self::V, n: usize);
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once (twice on the scalar level).
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// Nearest integer, ties to even.
    unsafe fn round(v: Self::V) -> Self::V;
    /// `v * 2^n` for integer-valued `n` in -126..=127.
    unsafe fn scale2(v: Self::V, n: Self::V) -> Self::V;
    /// Sums of the lanes of four vectors; each sum has the same bits wherever it stands among the four.
    unsafe fn sum4(v: [Self::V; 4]) -> [f32; 4];
    /// Asks for a cache line that will be read soon; any address will do.
    #[inline(always)]
    fn prefetch(_: *const u8) {}
    /// Largest lane.
    unsafe fn max_lane(v: Self::V) -> f32;

    /// Sum of the lanes, with the bits [`Isa::sum4`] gives.
    #[inline(always)]
    unsafe fn sum(v: Self::V) -> f32 {
        // SAFETY: the caller's contract is this function's.
        unsafe { Self::sum4([v, Self::splat(0.0), Self::splat(0.0), Self::splat(0.0)])[0] }
    }

    #[inline(always)]
    unsafe fn load_u16_n(p: *const u16, n: usize, load: unsafe fn(*const u16) -> Self::V) -> Self::V {
        let mut lanes = [0u16; 16];
        // SAFETY: `p` is valid for `n <= LANES <= 16` elements by the caller's contract; `lanes` holds 16. Copied as bytes,
        // because `p` may stand at any address.
        unsafe {
            std::ptr::copy_nonoverlapping(p.cast::<u8>(), lanes.as_mut_ptr().cast::<u8>(), n * 2);
            load(lanes.as_ptr())
        }
    }
}

/// The first `n` lanes from `p`, zeros in the others.
///
/// # Safety
/// As [`Isa::load_n`].
#[inline(always)]
pub(crate) unsafe fn load_up_to<I: Isa>(p: *const f32, n: usize) -> I::V {
    // SAFETY: the caller's contract.
    unsafe { if n == I::LANES { I::load(p) } else { I::load_n(p, n) } }
}

/// e^v, within 2 ulp for v in [-87, 88]; clamped outside, so that e^-inf is about 1e-38.
///
/// # Safety
/// As [`Isa`].
#[inline(always)]
pub(crate) unsafe fn exp<I: Isa>(v: I::V) -> I::V {
    // SAFETY: arithmetic on vectors only; the caller guarantees the instruction set.
    unsafe {
        let v = I::min(I::max(v, I::splat(-87.0)), I::splat(88.0));
        let n = I::round(I::mul(v, I::splat(std::f32::consts::LOG2_E)));
        // ln 2 in two parts, the first exact in few bits, keeps r accurate.
        let r = I::fma(n, I::splat(-0.693_359_4), v);
        let r = I::fma(n, I::splat(2.121_944_4e-4), r);
        let mut p = I::splat(1.987_569_1e-4);
        for c in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5, 1.0, 1.0] {
            p = I::fma(p, r, I::splat(c));
        }
        I::scale2(p, n)
    }
}

/// A weight type a kernel reads as f32 lanes.
pub(crate) trait Element: Copy + 'static {
    /// # Safety
    /// `p` is valid for `I::LANES` elements; instruction set as [`Isa`].
    unsafe fn load<I: Isa>(p: *const Self) -> I::V;
    /// # Safety
    /// `p` is valid for `n <= I::LANES` elements; instruction set as [`Isa`].
    unsafe fn load_n<I: Isa>(p: *const Self, n: usize) -> I::V;
}

impl Element for f32 {
    #[inline(always)]
    unsafe fn load<I: Isa>(p: *const Self) -> I::V {
        // SAFETY: the caller's contract.
        unsafe { I::load(p) }
    }
    #[inline(always)]
    unsafe fn load_n<I: Isa>(p: *const Self, n: usize) -> I::V {
        // SAFETY: the caller's contract.
        unsafe { I::load_n(p, n) }
    }
}

impl Element for half::f16 {
    #[inline(always)]
    unsafe fn load<I: Isa>(p: *const Self) -> I::V {
        // SAFETY: the caller's contract; `f16` is a transparent `u16`.
        unsafe { I::load_f16(p.cast()) }
    }
    #[inline(always)]
    unsafe fn load_n<I: Isa>(p: *const Self, n: usize) -> I::V {
        // SAFETY: the caller's contract; `f16` is a transparent `u16`.
        unsafe { I::load_u16_n(p.cast(), n, I::load_f16) }
    }
}

impl Element for half::bf16 {
    #[inline(always)]
    unsafe fn load<I: Isa>(p: *const Self) -> I::V {
        // SAFETY: the caller's contract; `bf16` is a transparent `u16`.
        unsafe { I::load_bf16(p.cast()) }
    }
    #[inline(always)]
    unsafe fn load_n<I: Isa>(p: *const Self, n: usize) -> I::V {
        // SAFETY: the caller's contract; `bf16` is a transparent `u16`.
        unsafe { I::load_u16_n(p.cast(), n, I::load_bf16) }
    }
}

/// A mutable base pointer handed to several threads, each of which writes its own part.
#[derive(Clone, Copy)]
pub(crate) struct Shared<T>(*mut T, usize);

// SAFETY: the type only carries the address; every use states which disjoint part it touches.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    pub(crate) fn new(slice: &mut [T]) -> Self {
        Self(slice.as_mut_ptr(), slice.len())
    }

    /// The first element, for reading what no thread writes any more.
    pub(crate) fn as_ptr(&self) -> *const T {
        self.0
    }

    /// The address of an element.
    ///
    /// Panics when there is none.
    pub(crate) fn pointer(&self, index: usize) -> *mut T {
        assert!(index < self.1, "shared pointer out of bounds");
        self.0.wrapping_add(index)
    }

    /// # Safety
    /// No other thread may touch `start..start + len` while the slice lives.
    #[allow(clippy::mut_from_ref, reason = "disjointness is the caller's contract")]
    pub(crate) unsafe fn slice(&self, start: usize, len: usize) -> &mut [T] {
        assert!(start.checked_add(len).is_some_and(|end| end <= self.1), "shared slice out of bounds");
        // SAFETY: in bounds by the assertion, disjoint by the caller's contract.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(start), len) }
    }
}

/// Runs `$body` (an expression that may name the type `$I`) compiled for the level's instruction set.
macro_rules! dispatch {
    ($level:expr, $imp:ident :: <$I:ident $(, $g:ty)*> ( $($arg:ident : $ty:ty),* $(,)? ) $(-> $ret:ty)?) => {{
        use $crate::Level;
        #[cfg(target_arch = "x86_64")]
        // SAFETY: called by the match below alone, which a machine without the feature does not reach.
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn on_avx2($($arg: $ty),*) $(-> $ret)? {
            // SAFETY: this function is compiled for AVX2; the other contracts were the dispatcher's.
            unsafe { $imp::<$crate::simd::avx2::Avx2 $(, $g)*>($($arg),*) }
        }
        #[cfg(target_arch = "x86_64")]
        // SAFETY: called by the match below alone, which a machine without the feature does not reach.
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
        unsafe fn on_avx512($($arg: $ty),*) $(-> $ret)? {
            // SAFETY: this function is compiled for AVX-512; the other contracts were the dispatcher's.
            unsafe { $imp::<$crate::simd::avx512::Avx512 $(, $g)*>($($arg),*) }
        }
        match $level {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a `Context` only holds levels the machine has.
            Level::Avx512 | Level::Avx512Bf16 => unsafe { on_avx512($($arg),*) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a `Context` only holds levels the machine has.
            Level::Avx2 => unsafe { on_avx2($($arg),*) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: NEON is part of every aarch64 target.
            Level::Neon | Level::NeonBf16 => unsafe { $imp::<$crate::simd::neon::Neon $(, $g)*>($($arg),*) },
            // SAFETY: the scalar level needs nothing.
            _ => unsafe { $imp::<$crate::simd::scalar::Scalar $(, $g)*>($($arg),*) },
        }
    }};
}
pub(crate) use dispatch;

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;
    use crate::Level;

    /// # Safety
    /// As [`Isa`]; `p` is valid for `n` elements.
    #[inline(always)]
    unsafe fn sum_of<I: Isa, E: Element>(p: *const E, n: usize) -> f32 {
        let mut sum = 0.0;
        let mut i = 0;
        while i < n {
            let m = (n - i).min(I::LANES);
            // SAFETY: `m` elements are left.
            unsafe {
                let v = if m == I::LANES { E::load::<I>(p.add(i)) } else { E::load_n::<I>(p.add(i), m) };
                sum += I::sum(v);
            }
            i += m;
        }
        sum
    }

    /// Tensors of a checkpoint begin wherever its header ends.
    #[test]
    #[allow(clippy::cast_ptr_alignment, reason = "unaligned pointers are what is tested")]
    fn loads_work_at_any_address_and_length() {
        for &level in Level::available() {
            for n in 0..40usize {
                let expected = (n * (n + 1) / 2) as f32;
                let values = || (1..=n).map(|i| i as f32);
                for offset in 0..4usize {
                    let at = |bytes: Vec<u8>| [vec![0xff; offset], bytes].concat();
                    let wide = at(values().flat_map(f32::to_le_bytes).collect());
                    let half = at(values().flat_map(|v| f16::from_f32(v).to_le_bytes()).collect());
                    let brain = at(values().flat_map(|v| bf16::from_f32(v).to_le_bytes()).collect());
                    let (wide, half, brain) = (
                        wide[offset..].as_ptr().cast::<f32>(),
                        half[offset..].as_ptr().cast::<f16>(),
                        brain[offset..].as_ptr().cast::<bf16>(),
                    );
                    let sums = [
                        dispatch!(level, sum_of::<I, f32>(wide: *const f32, n: usize) -> f32),
                        dispatch!(level, sum_of::<I, f16>(half: *const f16, n: usize) -> f32),
                        dispatch!(level, sum_of::<I, bf16>(brain: *const bf16, n: usize) -> f32),
                    ];
                    assert_eq!(sums, [expected; 3], "{level:?}, {n} at {offset}");
                }
            }
        }
    }
}
