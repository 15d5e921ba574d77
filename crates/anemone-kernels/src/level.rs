use std::sync::OnceLock;

/// An instruction set the kernels have code for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Level {
    /// Portable code.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// x86-64 with AVX-512 F, BW, VL and DQ.
    Avx512,
    /// AVX-512 with the BF16 extension.
    Avx512Bf16,
    /// Arm with NEON.
    Neon,
    /// NEON with the BF16 extension.
    NeonBf16,
}

impl Level {
    /// Every level this machine can run, slowest first.
    pub fn available() -> &'static [Self] {
        static LEVELS: OnceLock<Vec<Level>> = OnceLock::new();
        LEVELS.get_or_init(detect)
    }

    /// The fastest level this machine can run.
    pub fn best() -> Self {
        Self::available().last().copied().unwrap_or(Self::Scalar)
    }

    /// Whether reduced-precision products (bf16 inputs, f32 sums) are native here.
    pub fn has_bf16_products(self) -> bool {
        matches!(self, Self::Avx512Bf16 | Self::NeonBf16)
    }

    /// Short name, as shown by `doctor` and `bench`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Avx512Bf16 => "avx512-bf16",
            Self::Neon => "neon",
            Self::NeonBf16 => "neon-bf16",
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn detect() -> Vec<Level> {
    let mut levels = vec![Level::Scalar];
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
    {
        levels.push(Level::Avx2);
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
        {
            levels.push(Level::Avx512);
            if is_x86_feature_detected!("avx512bf16") {
                levels.push(Level::Avx512Bf16);
            }
        }
    }
    levels
}

#[cfg(target_arch = "aarch64")]
fn detect() -> Vec<Level> {
    let mut levels = vec![Level::Scalar, Level::Neon];
    if std::arch::is_aarch64_feature_detected!("bf16") {
        levels.push(Level::NeonBf16);
    }
    levels
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn detect() -> Vec<Level> {
    vec![Level::Scalar]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalar_is_always_there_and_best_is_last() {
        assert_eq!(Level::available()[0], Level::Scalar);
        assert_eq!(Level::available().last(), Some(&Level::best()));
    }
}
