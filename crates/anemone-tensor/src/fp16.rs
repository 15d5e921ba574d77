use half::f16;
use half::slice::HalfFloatSliceExt;

use crate::DType;

/// A number that fp16 cannot hold.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BeyondFp16 {
    /// Its index among the elements converted.
    pub index: usize,
    /// The number, after scaling.
    pub value: f32,
}

/// Appends stored elements (`bytes` of `dtype`, little endian) times `scale` as fp16, rounded to nearest even.
///
/// Infinity and NaN, also those that come of rounding, are an error.
pub fn append_fp16(bytes: &[u8], dtype: DType, scale: f32, out: &mut Vec<u8>) -> Result<(), BeyondFp16> {
    const BLOCK: usize = 1024;
    let mut wide = [0f32; BLOCK];
    let mut narrow = [f16::ZERO; BLOCK];
    for (block, bytes) in bytes.chunks(BLOCK * dtype.size()).enumerate() {
        let n = bytes.len() / dtype.size();
        let (wide, narrow) = (&mut wide[..n], &mut narrow[..n]);
        match dtype {
            DType::F16 => {
                for (half, b) in narrow.iter_mut().zip(bytes.as_chunks().0) {
                    *half = f16::from_le_bytes(*b);
                }
                narrow.convert_to_f32_slice(wide);
            }
            DType::BF16 => {
                for (wide, b) in wide.iter_mut().zip(bytes.as_chunks().0) {
                    *wide = f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16);
                }
            }
            _ => {
                for (wide, b) in wide.iter_mut().zip(bytes.as_chunks().0) {
                    *wide = f32::from_le_bytes(*b);
                }
            }
        }
        if dtype != DType::F16 || scale != 1.0 {
            for v in wide.iter_mut() {
                *v *= scale;
            }
            narrow.convert_from_f32_slice(wide);
        }
        // Branch-free over the block, which is nearly always fine.
        if narrow.iter().fold(false, |bad, v| bad | (v.to_bits() & 0x7c00 == 0x7c00)) {
            let i = narrow.iter().position(|v| !v.is_finite()).unwrap_or(0);
            return Err(BeyondFp16 { index: block * BLOCK + i, value: wide[i] });
        }
        out.extend_from_slice(bytemuck::cast_slice(narrow));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_rounds_as_half_does() {
        let values: Vec<f32> =
            (0..3000u32).map(|i| (i.wrapping_mul(2_654_435_761) as f32 / 1e9 - 2.1) * 0.37).collect();
        let f32s: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let f16s: Vec<u8> = values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect();
        let bf16s: Vec<u8> = values.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect();
        for scale in [1.0, 16.0] {
            let expect = |f: &dyn Fn(f32) -> f32| -> Vec<u8> {
                values.iter().flat_map(|v| f16::from_f32(f(*v) * scale).to_le_bytes()).collect()
            };
            let convert = |bytes: &[u8], dtype| {
                let mut out = Vec::new();
                append_fp16(bytes, dtype, scale, &mut out).unwrap();
                out
            };
            assert_eq!(convert(&f32s, DType::F32), expect(&|v| v));
            assert_eq!(convert(&f16s, DType::F16), expect(&|v| f16::from_f32(v).to_f32()));
            assert_eq!(convert(&bf16s, DType::BF16), expect(&|v| half::bf16::from_f32(v).to_f32()));
        }
    }

    #[test]
    fn what_fp16_cannot_hold_is_named() {
        let mut values = vec![1.0f32; 2000];
        values[1500] = 4100.0;
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let mut out = Vec::new();
        append_fp16(&bytes, DType::F32, 1.0, &mut out).unwrap();
        let error = append_fp16(&bytes, DType::F32, 16.0, &mut out).unwrap_err();
        assert_eq!(error, BeyondFp16 { index: 1500, value: 65600.0 });
        let nan = f16::NAN.to_le_bytes();
        assert_eq!(append_fp16(&nan, DType::F16, 1.0, &mut out).unwrap_err().index, 0);
    }
}
