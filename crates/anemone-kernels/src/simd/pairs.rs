//! Products of bf16 pairs summed in f32, where the machine has an instruction for them.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;

use half::bf16;

use super::Isa;

/// An instruction that adds products of pairs of bf16 to f32 lanes.
///
/// # Safety
/// As [`Isa`], with operands of `2 * I::LANES` bf16.
pub(crate) unsafe trait Pairs: Copy {
    /// The f32 vectors beside it.
    type I: Isa;
    /// A vector of bf16.
    type P: Copy;

    unsafe fn load(p: *const bf16) -> Self::P;
    unsafe fn load_n(p: *const bf16, n: usize) -> Self::P;
    /// The two elements at `p` in every lane.
    unsafe fn spread(p: *const bf16) -> Self::P;
    unsafe fn store_n(p: *mut bf16, v: Self::P, n: usize);
    /// Rounds two vectors to one, ties to even.
    unsafe fn round(low: <Self::I as Isa>::V, high: <Self::I as Isa>::V) -> Self::P;
    unsafe fn dot(sum: <Self::I as Isa>::V, w: Self::P, x: Self::P) -> <Self::I as Isa>::V;
}

/// Runs `$body` (an expression that may name the type `$M`) compiled for the level's bf16 instructions; panics at levels
/// without them.
macro_rules! dispatch_pairs {
    ($level:expr, $imp:ident :: <$M:ident $(, $g:tt)*> ( $($arg:ident : $ty:ty),* $(,)? )) => {{
        use $crate::Level;
        #[cfg(target_arch = "x86_64")]
        // SAFETY: called by the match below alone, which a machine without the feature does not reach.
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma,f16c")]
        unsafe fn on_avx512($($arg: $ty),*) {
            // SAFETY: this function is compiled for the instructions; the other contracts were the dispatcher's.
            unsafe { $imp::<$crate::simd::pairs::avx512::Avx512Bf16 $(, $g)*>($($arg),*) }
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: called by the match below alone, which a machine without the feature does not reach.
        #[target_feature(enable = "neon,bf16")]
        unsafe fn on_neon($($arg: $ty),*) {
            // SAFETY: this function is compiled for the instructions; the other contracts were the dispatcher's.
            unsafe { $imp::<$crate::simd::pairs::neon::NeonBf16 $(, $g)*>($($arg),*) }
        }
        match $level {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a `Context` only holds levels the machine has.
            Level::Avx512Bf16 => unsafe { on_avx512($($arg),*) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: a `Context` only holds levels the machine has.
            Level::NeonBf16 => unsafe { on_neon($($arg),*) },
            other => panic!("{other:?} has no bf16 products"),
        }
    }};
}
pub(crate) use dispatch_pairs;
