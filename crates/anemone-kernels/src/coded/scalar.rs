//! The portable form, which the others are held to bit by bit.

use anemone_tensor::BLOCK;
use half::f16;

use super::{Group, Layout, Panel, ROWS, STEP, STEPS, SUPER, SUPER_BYTES, Scales, code_bytes, scales};

/// Writes the elements of row `r` of a panel, as [`anemone_tensor::Blocks::expand_row`] does.
pub(super) fn expand(panel: &[u8], layout: &Layout, r: usize, out: &mut [f32]) {
    let (factors, codes) = panel.split_at(layout.codes);
    let (bits, zero) = (layout.format.bits(), i32::from(layout.format.zero()));
    let blocks = codes.chunks_exact(code_bytes(bits)).zip(out.chunks_exact_mut(BLOCK));
    for (b, (codes, out)) in blocks.enumerate() {
        let Factors { scales, mins } = read(scales(layout.format), factors, b, r..r + 1);
        for (k, out) in out.iter_mut().enumerate() {
            let code = i32::from(code(bits, codes, r, k)) - zero;
            *out = scales[2 * k / BLOCK][r] * code as f32 - mins[r];
        }
    }
}

/// Scales of a block's halves and minimum for the rows of a panel.
struct Factors {
    scales: [[f32; ROWS]; 2],
    mins: [f32; ROWS],
}

/// # Safety
/// As [`super::dispatch`].
pub(super) unsafe fn run(panel: &Panel<'_>, group: &Group<'_>) {
    let layout = panel.layout;
    let (factors, codes) = panel.bytes.split_at(layout.codes);
    let mut sums = [[0.0f32; ROWS]; super::round::MOST];
    for (b, codes) in codes.chunks_exact(code_bytes(layout.format.bits())).enumerate() {
        let factors = read(scales(layout.format), factors, b, 0..ROWS);
        let codes = unpack(layout.format.bits(), codes);
        let part = group.part(b);
        for (t, sums) in sums[..group.count].iter_mut().enumerate() {
            // SAFETY: the group holds so many tokens.
            unsafe { add(sums, &factors, &codes, &part, t, group.count, panel) };
        }
    }
    for (t, sums) in sums[..group.count].iter().enumerate() {
        // SAFETY: the caller's contract.
        unsafe { panel.put(group.first + t, sums) };
    }
}

/// Adds a block of one token.
///
/// # Safety
/// Token `t` is one of the group's `count`.
unsafe fn add(
    sums: &mut [f32; ROWS],
    factors: &Factors,
    codes: &[[u8; BLOCK]; ROWS],
    part: &super::round::Part,
    t: usize,
    count: usize,
    panel: &Panel<'_>,
) {
    let zero = i32::from(panel.layout.format.zero());
    // SAFETY: each row of a part has a word for every token.
    let (x, scale, sum, negated) = unsafe {
        let x: [[i8; STEP]; STEPS] =
            std::array::from_fn(|s| (*part.codes.add(s * count + t)).to_le_bytes().map(u8::cast_signed));
        (x, *part.scales.add(t), *part.sums.add(t), part.negated.map(|p| *p.add(t)))
    };
    let halves = scales(panel.layout.format) == Scales::SuperHalf;
    for (r, out) in sums.iter_mut().enumerate() {
        let dot = |range: std::ops::Range<usize>, from: i32| {
            range.fold(from * zero, |dot, k| dot + i32::from(codes[r][k]) * i32::from(x[k / STEP][k % STEP]))
        };
        if halves {
            for (half, negated) in negated[..2].iter().enumerate() {
                let dot = dot(half * BLOCK / 2..(half + 1) * BLOCK / 2, *negated);
                *out = (dot as f32).mul_add(factors.scales[half][r] * scale, *out);
            }
        } else {
            *out = (dot(0..BLOCK, negated[2]) as f32).mul_add(factors.scales[0][r] * scale, *out);
        }
        if matches!(scales(panel.layout.format), Scales::Min | Scales::SuperMin) {
            *out = (-factors.mins[r]).mul_add(sum, *out);
        }
    }
}

/// Factors of a block, for some of the rows.
fn read(kind: Scales, bytes: &[u8], b: usize, rows: std::ops::Range<usize>) -> Factors {
    let half = |at: usize, r: usize| f16::from_le_bytes([bytes[at + 2 * r], bytes[at + 2 * r + 1]]).to_f32();
    let of = |value: &dyn Fn(usize) -> f32| {
        let mut values = [0.0; ROWS];
        rows.clone().for_each(|r| values[r] = value(r));
        values
    };
    match kind {
        Scales::Plain => Factors { scales: [of(&|r| half(b * 2 * ROWS, r)); 2], mins: [0.0; ROWS] },
        Scales::Min => Factors {
            scales: [of(&|r| half(b * 4 * ROWS, r)); 2],
            mins: of(&|r| half(b * 4 * ROWS + 2 * ROWS, r)),
        },
        Scales::SuperMin => {
            let (base, own) = super_block(b);
            Factors {
                scales: [of(&|r| half(base, r) * f32::from(bytes[own + r])); 2],
                mins: of(&|r| half(base + 2 * ROWS, r) * f32::from(bytes[own + ROWS + r])),
            }
        }
        Scales::SuperHalf => {
            let (base, own) = super_block(b);
            let scale =
                |i: usize| of(&|r| half(base, r) * f32::from(bytes[own + i * ROWS + r].cast_signed()));
            Factors { scales: [scale(0), scale(1)], mins: [0.0; ROWS] }
        }
    }
}

/// Where the common scales of a block lie, and where its own.
fn super_block(b: usize) -> (usize, usize) {
    let base = b / SUPER * SUPER_BYTES;
    (base, base + 4 * ROWS + b % SUPER * 2 * ROWS)
}

fn unpack(bits: u32, codes: &[u8]) -> [[u8; BLOCK]; ROWS] {
    std::array::from_fn(|r| std::array::from_fn(|k| code(bits, codes, r, k)))
}

/// The code of column `k` of row `r` in a block.
fn code(bits: u32, codes: &[u8], r: usize, k: usize) -> u8 {
    let (step, byte) = (k / STEP, r * STEP + k % STEP);
    if bits == 8 {
        return codes[step * 64 + byte];
    }
    let low = codes[step % 4 * 64 + byte] >> (step / 4 * 4) & 15;
    match bits {
        5 => low | (codes[256 + byte] >> step & 1) << 4,
        6 => low | (codes[256 + step / 4 * 64 + byte] >> (step % 4 * 2) & 3) << 4,
        _ => low,
    }
}
