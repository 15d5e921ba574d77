use super::Isa;

/// Portable code: four lanes in an array.
#[derive(Clone, Copy)]
pub(crate) struct Scalar;

const N: usize = 4;

fn map(a: [f32; N], f: impl Fn(f32) -> f32) -> [f32; N] {
    a.map(f)
}

fn zip(a: [f32; N], b: [f32; N], f: impl Fn(f32, f32) -> f32) -> [f32; N] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

// SAFETY: no instruction beyond the target's baseline is used.
unsafe impl Isa for Scalar {
    type V = [f32; N];
    const LANES: usize = N;

    unsafe fn splat(v: f32) -> Self::V {
        [v; N]
    }
    unsafe fn load(p: *const f32) -> Self::V {
        // SAFETY: `p` is valid for LANES elements by contract; the read is unaligned.
        unsafe { p.cast::<Self::V>().read_unaligned() }
    }
    unsafe fn load_n(p: *const f32, n: usize) -> Self::V {
        let mut lanes = [0.0; N];
        // SAFETY: `p` is valid for `n <= LANES` elements by contract.
        unsafe { std::ptr::copy_nonoverlapping(p.cast::<u8>(), lanes.as_mut_ptr().cast::<u8>(), n * 4) };
        lanes
    }
    unsafe fn load_f16(p: *const u16) -> Self::V {
        // SAFETY: `p` is valid for LANES elements by contract; the read is unaligned.
        unsafe { p.cast::<[u16; N]>().read_unaligned() }.map(|b| half::f16::from_bits(b).to_f32())
    }
    unsafe fn load_bf16(p: *const u16) -> Self::V {
        // SAFETY: `p` is valid for LANES elements by contract; the read is unaligned.
        unsafe { p.cast::<[u16; N]>().read_unaligned() }.map(|b| half::bf16::from_bits(b).to_f32())
    }
    unsafe fn store(p: *mut f32, v: Self::V) {
        // SAFETY: `p` is valid for LANES elements by contract; the write is unaligned.
        unsafe { p.cast::<Self::V>().write_unaligned(v) }
    }
    unsafe fn store_n(p: *mut f32, v: Self::V, n: usize) {
        // SAFETY: `p` is valid for `n <= LANES` elements by contract.
        unsafe { std::ptr::copy_nonoverlapping(v.as_ptr().cast::<u8>(), p.cast::<u8>(), n * 4) }
    }
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a + b)
    }
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a - b)
    }
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a * b)
    }
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a / b)
    }
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // A fused multiply-add without the instruction is a slow library call.
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }
    unsafe fn round(v: Self::V) -> Self::V {
        map(v, f32::round_ties_even)
    }
    unsafe fn scale2(v: Self::V, n: Self::V) -> Self::V {
        zip(v, n, |v, n| v * f32::from_bits(((n as i32 + 127) as u32) << 23))
    }
    unsafe fn sum4(v: [Self::V; 4]) -> [f32; 4] {
        v.map(|v| (v[0] + v[2]) + (v[1] + v[3]))
    }
    unsafe fn max_lane(v: Self::V) -> f32 {
        v.into_iter().fold(f32::NEG_INFINITY, |m, x| if x > m { x } else { m })
    }
}
