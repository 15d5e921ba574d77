use anemone_tensor::{DType, Tensor};

const CHUNK: usize = 1 << 14;

/// Index of the first element that is NaN or infinite; `None` when there is none or the type is an integer type.
pub fn scan_non_finite(tensor: &Tensor) -> Option<usize> {
    let bytes: &[u8] = tensor.bytes();
    match tensor.dtype() {
        DType::F32 => scan(bytes, |b: [u8; 4]| u32::from_le_bytes(b) & 0x7f80_0000 == 0x7f80_0000),
        DType::F16 => scan(bytes, |b: [u8; 2]| u16::from_le_bytes(b) & 0x7c00 == 0x7c00),
        DType::BF16 => scan(bytes, |b: [u8; 2]| u16::from_le_bytes(b) & 0x7f80 == 0x7f80),
        _ => None,
    }
}

/// Looks at whole chunks without branching, and for the element only in a chunk that has one.
fn scan<const N: usize>(bytes: &[u8], bad: impl Fn([u8; N]) -> bool) -> Option<usize> {
    let (elements, _) = bytes.as_chunks::<N>();
    for (i, chunk) in elements.chunks(CHUNK).enumerate() {
        if chunk.iter().fold(false, |any, &element| any | bad(element)) {
            return chunk.iter().position(|&element| bad(element)).map(|j| i * CHUNK + j);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use anemone_tensor::Bytes;

    use super::*;

    #[test]
    fn the_first_bad_element_is_named_in_each_type() {
        let mut values = vec![0.5f32; 3 * CHUNK];
        let clean = Tensor::from_f32([values.len()], &values).unwrap();
        assert_eq!(scan_non_finite(&clean), None);
        values[CHUNK + 7] = f32::NEG_INFINITY;
        values[CHUNK + 9] = f32::NAN;
        let tensor = Tensor::from_f32([values.len()], &values).unwrap();
        assert_eq!(scan_non_finite(&tensor), Some(CHUNK + 7));

        let halves = |dtype, bits: [u16; 3]| {
            let bytes: Vec<u8> = bits.iter().flat_map(|b| b.to_le_bytes()).collect();
            Tensor::new(dtype, [3], Bytes::from(bytes)).unwrap()
        };
        assert_eq!(scan_non_finite(&halves(DType::F16, [0x7bff, 0xfbff, 0x7c00])), Some(2));
        assert_eq!(scan_non_finite(&halves(DType::BF16, [0x7f7f, 0xffc1, 0])), Some(1));
        assert_eq!(scan_non_finite(&halves(DType::BF16, [0x7f7f, 0xff7f, 0x7c00])), None);
        let ints = Tensor::new(DType::U8, [1], Bytes::from(vec![0xff])).unwrap();
        assert_eq!(scan_non_finite(&ints), None);
    }
}
