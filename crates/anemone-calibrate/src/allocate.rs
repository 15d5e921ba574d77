//! Bits where they count.

use crate::Error;

/// One way to store a weight.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice {
    /// Bits of an index.
    pub bits: u8,
    /// Bytes of indices and tables.
    pub bytes: u64,
    /// What it costs the model's output, on a scale that adds up over weights.
    pub loss: f64,
}

/// Where to stop.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Target {
    /// At most this many bytes in all.
    Bytes(u64),
    /// At most this loss in all.
    Loss(f64),
}

/// Chooses for each weight one of its ways, so that the least is lost for the bytes; gives the choices' places.
///
/// Each weight begins with its smallest choice, and the step that saves most loss for each byte comes next, as long as the target allows or
/// asks for. Errors when the smallest are too large, or the best lose too much.
pub fn allocate(weights: &[Vec<Choice>], target: Target) -> Result<Vec<usize>, Error> {
    let mut chosen = Vec::with_capacity(weights.len());
    for choices in weights {
        let least = (0..choices.len()).min_by(|a, b| {
            let (a, b) = (&choices[*a], &choices[*b]);
            a.bytes.cmp(&b.bytes).then(a.loss.total_cmp(&b.loss))
        });
        chosen.push(least.ok_or_else(|| Error::Target("a weight has no choice of bits".into()))?);
    }
    let bytes = |chosen: &[usize]| -> u64 { weights.iter().zip(chosen).map(|(w, c)| w[*c].bytes).sum() };
    let loss = |chosen: &[usize]| -> f64 { weights.iter().zip(chosen).map(|(w, c)| w[*c].loss).sum() };
    if let Target::Bytes(most) = target
        && bytes(&chosen) > most
    {
        let least = bytes(&chosen);
        return Err(Error::Target(format!(
            "{most} bytes are too few: with the fewest bits everywhere the weights take {least}; allow more"
        )));
    }
    loop {
        if let Target::Loss(most) = target
            && loss(&chosen) <= most
        {
            return Ok(chosen);
        }
        let now = bytes(&chosen);
        let mut best: Option<(f64, usize, usize)> = None;
        for (w, choices) in weights.iter().enumerate() {
            let from = choices[chosen[w]];
            for (c, to) in choices.iter().enumerate() {
                let fits = match target {
                    Target::Bytes(most) => now - from.bytes + to.bytes <= most,
                    Target::Loss(_) => true,
                };
                if to.loss >= from.loss || !fits {
                    continue;
                }
                let rate = (from.loss - to.loss) / (to.bytes.saturating_sub(from.bytes)).max(1) as f64;
                if best.is_none_or(|(least, _, _)| rate > least) {
                    best = Some((rate, w, c));
                }
            }
        }
        let Some((_, w, c)) = best else {
            return match target {
                Target::Bytes(_) => Ok(chosen),
                Target::Loss(_) => Err(Error::Target(
                    "no choice of bits keeps the outputs as near as asked for; allow more bits, or lower the bar".into(),
                )),
            };
        };
        chosen[w] = c;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ways(size: u64, worth: f64) -> Vec<Choice> {
        [4u8, 6, 8]
            .map(|bits| Choice { bits, bytes: size * u64::from(bits), loss: worth / f64::from(1 << bits) })
            .into()
    }

    #[test]
    fn bits_go_where_they_count() {
        let weights = [ways(100, 1.0), ways(100, 100.0), ways(100, 10.0)];
        let bits = |target| -> Vec<u8> {
            allocate(&weights, target).unwrap().iter().zip(&weights).map(|(c, w)| w[*c].bits).collect()
        };
        assert_eq!(bits(Target::Bytes(1200)), [4, 4, 4]);
        assert_eq!(bits(Target::Bytes(1600)), [4, 8, 4]);
        assert_eq!(bits(Target::Bytes(1800)), [4, 8, 6]);
        assert_eq!(bits(Target::Bytes(9999)), [8, 8, 8]);
        assert_eq!(bits(Target::Loss(1e9)), [4, 4, 4]);
        assert_eq!(bits(Target::Loss(1.2)), [4, 8, 4]);
        // As good as an exhaustive search, for each size.
        for most in (1200..2500).step_by(50) {
            let chosen = allocate(&weights, Target::Bytes(most)).unwrap();
            let of = |chosen: &[usize]| {
                let each = || weights.iter().zip(chosen).map(|(w, c)| w[*c]);
                (each().map(|c| c.bytes).sum::<u64>(), each().map(|c| c.loss).sum::<f64>())
            };
            let all = (0..27).map(|i| of(&[i % 3, i / 3 % 3, i / 9]));
            let least =
                all.filter(|(bytes, _)| *bytes <= most).map(|(_, loss)| loss).fold(f64::INFINITY, f64::min);
            // A greedy choice may miss by the last step.
            assert!(of(&chosen).1 <= 1.35 * least, "{most}: {} {least}", of(&chosen).1);
        }
    }

    #[test]
    fn targets_out_of_reach_say_so() {
        let weights = [ways(100, 1.0)];
        let message = |target| allocate(&weights, target).unwrap_err().to_string();
        assert!(
            message(Target::Bytes(399)).contains("399 bytes are too few")
                && message(Target::Bytes(1)).contains("400")
        );
        assert!(message(Target::Loss(0.0)).contains("no choice of bits"));
        assert!(allocate(&[vec![]], Target::Bytes(1)).is_err());
        assert_eq!(allocate(&[], Target::Bytes(0)).unwrap(), Vec::<usize>::new());
    }
}
