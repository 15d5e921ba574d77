use clap::ValueEnum;
use half::{bf16, f16};

use super::preset::Spec;

/// Element type to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DType {
    Bf16,
    F16,
    F32,
}

impl DType {
    pub(super) fn size(self) -> u64 {
        match self {
            Self::Bf16 | Self::F16 => 2,
            Self::F32 => 4,
        }
    }

    pub(super) fn header_name(self) -> &'static str {
        match self {
            Self::Bf16 => "BF16",
            Self::F16 => "F16",
            Self::F32 => "F32",
        }
    }

    pub(super) fn config_name(self) -> &'static str {
        match self {
            Self::Bf16 => "bfloat16",
            Self::F16 => "float16",
            Self::F32 => "float32",
        }
    }
}

/// Values of one tensor: uniform, with the tensor's mean and deviation, each a function of seed, name and index only.
pub(super) struct Values {
    key: u64,
    mean: f32,
    step: f32,
    dtype: DType,
}

impl Values {
    pub(super) fn new(spec: &Spec, dtype: DType, seed: u64) -> Self {
        // FNV-1a of the name, mixed with the seed.
        let name = spec
            .name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325, |h: u64, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        // A uniform variable of unit half-width has deviation 1/√3; 32768 steps reach the half-width.
        let step = spec.std * 3f32.sqrt() / 32768.0;
        Self { key: mix(name ^ mix(seed)), mean: spec.mean, step, dtype }
    }

    /// Replaces `out` by elements `4·first..4·last`, little-endian.
    pub(super) fn fill(&self, first: u64, last: u64, out: &mut Vec<u8>) {
        out.clear();
        match self.dtype {
            DType::F32 => self.each(first, last, |v| out.extend(v.map(f32::to_le_bytes).as_flattened())),
            DType::Bf16 => {
                self.each(first, last, |v| {
                    out.extend(v.map(|v| bf16::from_f32(v).to_le_bytes()).as_flattened());
                });
            }
            DType::F16 => {
                self.each(first, last, |v| {
                    out.extend(v.map(|v| f16::from_f32(v).to_le_bytes()).as_flattened());
                });
            }
        }
    }

    fn each(&self, first: u64, last: u64, mut put: impl FnMut([f32; 4])) {
        for counter in first..last {
            let bits = mix(self.key.wrapping_add(counter.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
            let part = |shift: u32| self.mean + self.step * (f32::from((bits >> shift) as u16) - 32767.5);
            put([part(0), part(16), part(32), part(48)]);
        }
    }
}

/// The finaliser of the `SplitMix64` generator.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(name: &str, seed: u64, first: u64, last: u64) -> Vec<f32> {
        let spec = Spec { name: name.to_owned(), shape: vec![1], mean: 0.5, std: 0.02 };
        let mut bytes = Vec::new();
        Values::new(&spec, DType::F32, seed).fill(first, last, &mut bytes);
        bytes.as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect()
    }

    #[test]
    fn chunks_do_not_change_values() {
        let whole = values("w", 3, 0, 100);
        assert_eq!(whole, [values("w", 3, 0, 40), values("w", 3, 40, 100)].concat());
        assert_ne!(whole, values("w", 4, 0, 100));
        assert_ne!(whole, values("v", 3, 0, 100));
    }

    #[test]
    fn moments_are_those_asked_for() {
        let values = values("w", 0, 0, 50_000);
        let n = values.len() as f32;
        let mean = values.iter().sum::<f32>() / n;
        let std = (values.iter().map(|v| (v - 0.5).powi(2)).sum::<f32>() / n).sqrt();
        assert!((mean - 0.5).abs() < 5e-4 && (std - 0.02).abs() < 5e-4, "{mean} {std}");
    }
}
