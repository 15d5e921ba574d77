use half::f16;

use crate::{BLOCK, BlockFormat};

impl BlockFormat {
    /// Whether [`BlockFormat::encode_row`] can write it.
    pub const fn is_encoded(self) -> bool {
        !matches!(self, Self::Q4_K | Self::Q5_K | Self::Q6_K)
    }

    /// Codes a row by the rule the format is known for: the scale comes from a block's extremes, every element takes the nearest code.
    /// Bytes are appended to `out`.
    ///
    /// Panics when the row is no whole blocks, or the format is one of those whose scales have a factor in common.
    pub fn encode_row(self, row: &[f32], out: &mut Vec<u8>) {
        assert!(row.len().is_multiple_of(BLOCK) && self.is_encoded(), "whole blocks of {self}");
        for block in row.as_chunks::<BLOCK>().0 {
            match self {
                Self::Q8_0 => signed_bytes(block, out),
                Self::Q4_0 => around(block, 8, out),
                Self::Q5_0 => around(block, 16, out),
                Self::Q4_1 => above(block, 15, out),
                _ => above(block, 31, out),
            }
        }
    }
}

fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

fn signed_bytes(block: &[f32; BLOCK], out: &mut Vec<u8>) {
    let d = block.iter().fold(0.0f32, |most, v| most.max(v.abs())) / 127.0;
    let id = inverse(d);
    out.extend(f16::from_f32(d).to_le_bytes());
    out.extend(block.iter().map(|v| ((v * id).round() as i8).cast_unsigned()));
}

/// Codes around `middle`, the element farthest from zero taking the lowest.
fn around(block: &[f32; BLOCK], middle: u8, out: &mut Vec<u8>) {
    let mut far = 0.0f32;
    for v in block {
        if v.abs() > far.abs() {
            far = *v;
        }
    }
    let d = far / -f32::from(middle);
    let (id, middle) = (inverse(d), f32::from(middle));
    let codes = block.map(|v| (v * id + (middle + 0.5)).clamp(0.0, 2.0 * middle - 1.0) as u8);
    out.extend(f16::from_f32(d).to_le_bytes());
    put(&codes, middle > 8.0, out);
}

/// Codes up to `most` above the smallest element.
fn above(block: &[f32; BLOCK], most: u8, out: &mut Vec<u8>) {
    let (low, high) =
        block.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(l, h), v| (l.min(*v), h.max(*v)));
    let d = (high - low) / f32::from(most);
    let id = inverse(d);
    let codes = block.map(|v| ((v - low) * id + 0.5).clamp(0.0, f32::from(most)) as u8);
    out.extend(f16::from_f32(d).to_le_bytes());
    out.extend(f16::from_f32(low).to_le_bytes());
    put(&codes, most > 15, out);
}

/// Fifth bits, if there are any, then nibbles.
fn put(codes: &[u8; BLOCK], fifth: bool, out: &mut Vec<u8>) {
    if fifth {
        let bits = codes.iter().enumerate().fold(0u32, |bits, (i, code)| bits | u32::from(code >> 4) << i);
        out.extend(bits.to_le_bytes());
    }
    let (low, high) = codes.split_at(BLOCK / 2);
    out.extend(low.iter().zip(high).map(|(low, high)| low & 15 | high << 4));
}
