//! Bits for each weight, by what they are worth to the model's output.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use anemone_calibrate::{Choice, Overlay, Target, allocate};
use anemone_kernels::Context as Kernels;
use anemone_mil::pack_bits;
use anemone_palettize::{Matrix, Palettized, Scheme};
use anemone_tensor::{DType, Segment, Shape, Tensor};
use anyhow::{Result, bail, ensure};
use half::f16;

use super::calibrate::{Lost, Subject};
use super::guide::Guide;

/// What a weight can have.
const BITS: [u8; 5] = [2, 3, 4, 6, 8];
/// The most bits at which it is tried what a weight alone costs; more bits follow from that by the error of the map's output.
const TRIED: u8 = 4;
/// Tokens and states over which that is tried.
const TOKENS: f64 = 1024.0;
const STATES: f64 = 128.0;
/// Times a plan is made stricter when the whole loses more than its parts did.
const TRIES: usize = 4;

/// How small, or how near, the result must be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Goal {
    /// Bytes of all compressed weights.
    Bytes(u64),
    /// Bits for each of them, tables included.
    Bits(f64),
    /// Least mean cosine of the logits.
    Cosine(f64),
}

impl FromStr for Goal {
    type Err = String;

    /// `--mixed`: a number of bytes with an optional K, M or G, or bits with `bits` behind.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "expected bytes (1500000, 150M, 1.2G) or bits for each weight (4.5bits)".to_owned();
        if let Some(bits) = text.strip_suffix("bits") {
            let bits: f64 = bits.parse().map_err(|_| wrong())?;
            return if (1.0..=16.0).contains(&bits) { Ok(Self::Bits(bits)) } else { Err(wrong()) };
        }
        let (number, unit) = match text.char_indices().last() {
            Some((at, 'K' | 'k')) => (&text[..at], 1e3),
            Some((at, 'M')) => (&text[..at], 1e6),
            Some((at, 'G')) => (&text[..at], 1e9),
            _ => (text, 1.0),
        };
        let bytes = number.parse::<f64>().map_err(|_| wrong())? * unit;
        if (1.0..1e18).contains(&bytes) { Ok(Self::Bytes(bytes as u64)) } else { Err(wrong()) }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "{bytes} bytes"),
            Self::Bits(bits) => write!(f, "{bits} bits a weight"),
            Self::Cosine(least) => write!(f, "cosine {least}"),
        }
    }
}

/// The bits of each weight.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) bits: BTreeMap<String, u8>,
    /// What the whole of it lost over the calibration.
    pub(crate) lost: Lost,
}

struct Weight {
    name: String,
    values: Vec<f16>,
    rows: usize,
    columns: usize,
}

impl Weight {
    fn read(subject: &Subject, name: &str) -> Result<Self> {
        let tensor = subject.weights().tensor(name)?;
        let &[rows, columns] = &**tensor.shape() else { bail!("{name} is no matrix") };
        let values = tensor.to_f32()?.iter().map(|v| f16::from_f32(*v)).collect();
        Ok(Self { name: name.to_owned(), values, rows, columns })
    }

    fn palettize(&self, scheme: &Scheme, guide: &Guide, kernels: &Kernels) -> Result<Palettized> {
        let matrix = Matrix::new(&self.values, self.rows, self.columns)?;
        guide.palettize(matrix, scheme, (&self.name, 0..self.columns), kernels, &|_| ())
    }

    /// The model with this weight's numbers as its codes have them, where products meet them.
    fn overlay(&self, overlay: Overlay, palette: &Palettized, subject: &Subject) -> Result<Overlay> {
        if subject.is_language() {
            // The rows of a tied embedding stay as they are.
            let indices = pack_bits(&palette.codes, palette.bits.into());
            let (shape, group) = ((self.rows, self.columns), palette.group_rows);
            let tables = palette.tables.clone();
            let segment = Segment::new(shape, palette.bits.into(), group, tables, indices.into())?;
            return Ok(
                overlay.with_palettized(&self.name, anemone_tensor::Palettized::new(vec![vec![segment]])?)
            );
        }
        let bytes: Vec<u8> = palette.decode().iter().flat_map(|v| v.to_le_bytes()).collect();
        let tensor = Tensor::new(DType::F16, Shape::from([self.rows, self.columns]), bytes.into())?;
        Ok(overlay.with(&self.name, tensor))
    }
}

/// Bytes of codes and tables.
fn bytes(palette: &Palettized) -> u64 {
    let codes = (palette.codes.len() * usize::from(palette.bits)).div_ceil(8);
    (codes + 2 * palette.tables.len()) as u64
}

/// Tries every weight alone at a few bits, and gives the bits to those that need them most.
///
/// What a weight costs is measured up to four bits: the model's loss with this weight alone so. With more it is too little to be
/// measured over so few tokens, and is taken to follow the squared error of the map's output.
pub(crate) fn plan(
    subject: &Subject,
    guide: &Guide,
    names: &[String],
    scheme: &Scheme,
    goal: Goal,
    kernels: &Kernels,
    progress: &dyn Fn(),
) -> Result<Plan> {
    check_size(subject, names, goal)?;
    let tried = if subject.is_language() { TOKENS } else { STATES };
    let share = (tried / subject.size() as f64).min(1.0);
    let mut judge = subject.judge()?;
    let plain = Overlay::new(subject.weights());
    let (mut choices, mut elements) = (Vec::new(), 0usize);
    for name in names {
        let weight = Weight::read(subject, name)?;
        elements += weight.values.len();
        let (mut own, mut rate) = (Vec::new(), 0.0);
        for bits in BITS {
            let palette = weight.palettize(&Scheme { bits, ..*scheme }, guide, kernels)?;
            let mut loss = rate * palette.unrounded;
            if bits <= TRIED {
                let overlay = weight.overlay(plain.clone(), &palette, subject)?;
                loss = worth(&judge.lost(&overlay, share)?, goal)?;
                rate = loss / palette.unrounded.max(f64::MIN_POSITIVE);
            }
            own.push(Choice { bits, bytes: bytes(&palette), loss });
        }
        choices.push(own);
        progress();
    }
    let mut allowed = match goal {
        Goal::Bytes(bytes) => Target::Bytes(bytes),
        Goal::Bits(bits) => Target::Bytes((elements as f64 * bits / 8.0) as u64),
        Goal::Cosine(least) => Target::Loss(1.0 - least),
    };
    for _ in 0..TRIES {
        let chosen = allocate(&choices, allowed)?;
        let bits: BTreeMap<String, u8> =
            names.iter().zip(&choices).zip(&chosen).map(|((n, own), c)| (n.clone(), own[*c].bits)).collect();
        let mut overlay = plain.clone();
        for (name, bits) in &bits {
            let weight = Weight::read(subject, name)?;
            let palette = weight.palettize(&Scheme { bits: *bits, ..*scheme }, guide, kernels)?;
            overlay = weight.overlay(overlay, &palette, subject)?;
        }
        let lost = judge.lost(&overlay, 1.0)?;
        let (Goal::Cosine(least), Target::Loss(loss), Lost::Language(measures)) = (goal, allowed, &lost)
        else {
            return Ok(Plan { bits, lost });
        };
        if measures.cosine >= least {
            return Ok(Plan { bits, lost });
        }
        // Losses add up to more than their sum where layers feed each other.
        allowed = Target::Loss(loss * 0.8 * (1.0 - least) / (1.0 - measures.cosine));
    }
    let Goal::Cosine(least) = goal else { unreachable!("sizes are kept at once") };
    bail!("--min-cos {least}: {TRIES} plans came out below it; lower it, or give --mixed with more bytes")
}

/// Errors for a size that not even the codes of the fewest bits keep to, before anything is tried.
fn check_size(subject: &Subject, names: &[String], goal: Goal) -> Result<()> {
    let weights = subject.weights();
    let entries = names.iter().filter_map(|name| weights.entry(name));
    let elements: usize = entries.map(|entry| entry.shape.numel()).sum();
    let (least, fewest) = ((elements * usize::from(BITS[0])).div_ceil(8) as u64, BITS[0]);
    let allowed = match goal {
        Goal::Bytes(bytes) => bytes,
        Goal::Bits(bits) => (elements as f64 * bits / 8.0) as u64,
        Goal::Cosine(_) => return Ok(()),
    };
    ensure!(
        allowed >= least,
        "--mixed: {allowed} bytes are too few: with {fewest} bits everywhere the codes alone take {least}; allow more"
    );
    Ok(())
}

fn worth(lost: &Lost, goal: Goal) -> Result<f64> {
    let worth = match (goal, lost) {
        (Goal::Cosine(_), Lost::Language(measures)) => 1.0 - measures.cosine,
        (Goal::Cosine(least), Lost::Decision { .. }) => {
            bail!("--min-cos {least} is for language models; give --mixed for a decision model")
        }
        _ => lost.kl(),
    };
    ensure!(worth.is_finite(), "the model's outputs are not finite on the calibration; check it with verify");
    // Rounding can make the least of losses negative.
    Ok(worth.max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_bytes_or_bits() {
        let of = |text: &str| text.parse::<Goal>();
        assert_eq!(of("1500"), Ok(Goal::Bytes(1500)));
        assert_eq!(of("1.5M"), Ok(Goal::Bytes(1_500_000)));
        assert_eq!(of("2G"), Ok(Goal::Bytes(2_000_000_000)));
        assert_eq!(of("4.5bits"), Ok(Goal::Bits(4.5)));
        for bad in ["", "M", "-3", "0", "nan", "inf", "4.5 bits", "0bits", "17bits", "1T"] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }
}
