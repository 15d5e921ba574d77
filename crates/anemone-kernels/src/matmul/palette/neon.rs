//! Indices by table lookups of bytes.

use std::arch::aarch64::{
    uint8x16_t, uint8x16x2_t, uint8x16x4_t, vandq_u8, vdupq_n_u8, vld1q_u8, vld1q_u8_x4, vqtbl1q_u8,
    vqtbl4q_u8, vqtbx4q_u8, vshrq_n_u8, vst2q_u8, vsubq_u8, vzip1q_u8, vzip2q_u8,
};
use std::mem::MaybeUninit;

use super::Planes;

/// Writes whole vectors from the front; gives the number of elements.
///
/// # Safety
/// `indices` holds one of `bits` bits for each element of `out`.
pub(super) unsafe fn expand(
    indices: &[u8],
    bits: usize,
    planes: &Planes,
    out: &mut [MaybeUninit<u16>],
) -> usize {
    // SAFETY: the caller's contract.
    unsafe {
        match bits {
            4 => nibbles(indices, planes, out),
            6 => sixes(indices, planes, out),
            8 => bytes(indices, planes, out),
            _ => 0,
        }
    }
}

/// # Safety
/// `out` is valid for 16 elements.
unsafe fn store(out: *mut MaybeUninit<u16>, low: uint8x16_t, high: uint8x16_t) {
    // SAFETY: words are their low byte and their high byte.
    unsafe { vst2q_u8(out.cast(), uint8x16x2_t(low, high)) }
}

/// # Safety
/// As [`expand`].
unsafe fn nibbles(indices: &[u8], planes: &Planes, out: &mut [MaybeUninit<u16>]) -> usize {
    let whole = out.len() / 32;
    // SAFETY: 16 bytes and 32 elements are there for each step.
    unsafe {
        let (low, high) = (vld1q_u8(planes.low.as_ptr()), vld1q_u8(planes.high.as_ptr()));
        for i in 0..whole {
            let stored = vld1q_u8(indices[16 * i..16 * i + 16].as_ptr());
            let (even, odd) = (vandq_u8(stored, vdupq_n_u8(0xf)), vshrq_n_u8::<4>(stored));
            let out = out.as_mut_ptr().add(32 * i);
            for (half, index) in [vzip1q_u8(even, odd), vzip2q_u8(even, odd)].into_iter().enumerate() {
                store(out.add(16 * half), vqtbl1q_u8(low, index), vqtbl1q_u8(high, index));
            }
        }
    }
    whole * 32
}

/// # Safety
/// As [`expand`].
unsafe fn sixes(indices: &[u8], planes: &Planes, out: &mut [MaybeUninit<u16>]) -> usize {
    let whole = out.len() / 16;
    // SAFETY: 64 bytes of tables and 16 elements are there.
    unsafe {
        let (low, high) = (vld1q_u8_x4(planes.low.as_ptr()), vld1q_u8_x4(planes.high.as_ptr()));
        for i in 0..whole {
            let mut index = [0u8; 16];
            for (four, b) in index.chunks_exact_mut(4).zip(indices[12 * i..12 * i + 12].chunks_exact(3)) {
                let held = u32::from(b[0]) | u32::from(b[1]) << 8 | u32::from(b[2]) << 16;
                for (j, index) in four.iter_mut().enumerate() {
                    *index = (held >> (6 * j) & 0x3f) as u8;
                }
            }
            let index = vld1q_u8(index.as_ptr());
            store(out.as_mut_ptr().add(16 * i), vqtbl4q_u8(low, index), vqtbl4q_u8(high, index));
        }
    }
    whole * 16
}

/// # Safety
/// As [`expand`].
unsafe fn bytes(indices: &[u8], planes: &Planes, out: &mut [MaybeUninit<u16>]) -> usize {
    let whole = out.len() / 16;
    // SAFETY: 256 bytes of tables and 16 elements are there.
    unsafe {
        let tables = |plane: &[u8; 256]| -> [uint8x16x4_t; 4] {
            std::array::from_fn(|quarter| vld1q_u8_x4(plane[64 * quarter..].as_ptr()))
        };
        let (low, high) = (tables(&planes.low), tables(&planes.high));
        for i in 0..whole {
            let index = vld1q_u8(indices[16 * i..16 * i + 16].as_ptr());
            store(out.as_mut_ptr().add(16 * i), lookup(&low, index), lookup(&high, index));
        }
    }
    whole * 16
}

/// # Safety
/// None beyond NEON.
#[inline(always)]
unsafe fn lookup(tables: &[uint8x16x4_t; 4], index: uint8x16_t) -> uint8x16_t {
    // SAFETY: arithmetic on vectors; indices out of a quarter's range leave what the others found.
    unsafe {
        let mut found = vqtbl4q_u8(tables[0], index);
        let mut index = index;
        for quarter in &tables[1..] {
            index = vsubq_u8(index, vdupq_n_u8(64));
            found = vqtbx4q_u8(found, *quarter, index);
        }
        found
    }
}
