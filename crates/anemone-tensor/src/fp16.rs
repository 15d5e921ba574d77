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
    #[cfg(target_arch = "x86_64")]
    if dtype == DType::BF16 && has_f16c() {
        let start = out.len();
        out.resize(start + bytes.len(), 0);
        // SAFETY: the machine has what the function is compiled for.
        #[allow(unsafe_code, reason = "a function compiled for newer instructions")]
        let fine = unsafe { bf16_to_fp16(bytes, scale, &mut out[start..]) };
        if fine {
            return Ok(());
        }
        // The number to blame is found below.
        out.truncate(start);
    }
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

#[cfg(target_arch = "x86_64")]
fn has_f16c() -> bool {
    std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("f16c")
}

/// Converts all elements, in one pass over the memory; whether all are finite.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
fn bf16_to_fp16(bytes: &[u8], scale: f32, out: &mut [u8]) -> bool {
    use std::arch::x86_64::{
        _MM_FROUND_TO_NEAREST_INT, _mm_and_si128, _mm_cmpeq_epi16, _mm_loadu_si128, _mm_movemask_epi8,
        _mm_or_si128, _mm_set1_epi16, _mm_setzero_si128, _mm_storeu_si128, _mm256_castsi256_ps,
        _mm256_cvtepu16_epi32, _mm256_cvtps_ph, _mm256_mul_ps, _mm256_set1_ps, _mm256_slli_epi32,
    };
    let (scales, exponent) = (_mm256_set1_ps(scale), _mm_set1_epi16(0x7c00));
    let mut bad = _mm_setzero_si128();
    let (sources, rest) = bytes.as_chunks::<16>();
    let (targets, rest_of_out) = out.as_chunks_mut::<16>();
    for (source, target) in sources.iter().zip(targets) {
        // SAFETY: both are sixteen bytes long; no alignment is asked for.
        #[allow(unsafe_code, reason = "vector loads and stores")]
        unsafe {
            let words = _mm_loadu_si128(source.as_ptr().cast());
            let wide = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(words)));
            let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_mul_ps(wide, scales));
            bad = _mm_or_si128(bad, _mm_cmpeq_epi16(_mm_and_si128(halves, exponent), exponent));
            _mm_storeu_si128(target.as_mut_ptr().cast(), halves);
        }
    }
    let mut fine = _mm_movemask_epi8(bad) == 0;
    for (source, target) in rest.as_chunks().0.iter().zip(rest_of_out.as_chunks_mut().0) {
        let half = f16::from_f32(half::bf16::from_le_bytes(*source).to_f32() * scale);
        fine &= half.is_finite();
        *target = half.to_le_bytes();
    }
    fine
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_rounds_as_half_does() {
        let values: Vec<f32> =
            (0..3003u32).map(|i| (i.wrapping_mul(2_654_435_761) as f32 / 1e9 - 2.1) * 0.37).collect();
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
        for at in [0, 7, 1500, 1999] {
            let mut values = vec![1.0f32; 2000];
            values[at] = 1e30;
            let bytes: Vec<u8> = values.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect();
            let mut out = vec![1, 2];
            assert_eq!(append_fp16(&bytes, DType::BF16, 1.0, &mut out).unwrap_err().index, at);
        }
        let nan = f16::NAN.to_le_bytes();
        assert_eq!(append_fp16(&nan, DType::F16, 1.0, &mut out).unwrap_err().index, 0);
    }
}
