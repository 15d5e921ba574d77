/// What passes of so many tokens have cost on an engine.
#[derive(Debug, Clone, Default)]
pub struct PassCost {
    /// For passes of 1, 2, 3–4, 5–8, 9–16, … tokens: their mean number of tokens and seconds, the latest counting most.
    buckets: [Option<(f64, f64)>; 12],
}

/// How much of a new measurement is believed.
const NEW: f64 = 0.2;
/// Supposed cost of a further token, in passes of one, before any was measured.
const FURTHER: f64 = 0.03;

impl PassCost {
    /// Takes a measurement.
    pub fn record(&mut self, tokens: usize, seconds: f64) {
        let last = self.buckets.len() - 1;
        let bucket =
            &mut self.buckets[(tokens.max(1).next_power_of_two().trailing_zeros() as usize).min(last)];
        let (tokens, seconds) = (tokens as f64, seconds.max(1e-9));
        *bucket = Some(match *bucket {
            // One interrupted pass says little.
            Some((t, s)) => (t + NEW * (tokens - t), s + NEW * (seconds.min(4.0 * s) - s)),
            None => (tokens, seconds),
        });
    }

    /// What a pass of so many tokens is expected to take, in seconds; `None` before the first measurement.
    pub fn seconds(&self, tokens: usize) -> Option<f64> {
        let tokens = tokens as f64;
        let mut below = None;
        for &(t, s) in self.buckets.iter().flatten() {
            if t >= tokens {
                let Some((t0, s0)) = below else { return Some(s) };
                let share = if t > t0 { (tokens - t0) / (t - t0) } else { 1.0 };
                return Some(s0 + share * (f64::max(s, s0) - s0));
            }
            below = Some((t, s));
        }
        below.map(|(t, s)| s + FURTHER * (tokens - t) * s / t.max(1.0).sqrt())
    }

    /// Believes a little less that passes of several tokens cost more than single ones, so that they are tried again some time.
    pub fn age(&mut self) {
        let Some((_, single)) = self.buckets[0] else { return };
        for (_, seconds) in self.buckets[1..].iter_mut().flatten() {
            *seconds -= 0.01 * (*seconds - single).max(0.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_interpolated() {
        let mut cost = PassCost::default();
        assert_eq!(cost.seconds(3), None);
        cost.record(1, 1.0);
        assert_eq!(cost.seconds(1), Some(1.0));
        assert!(cost.seconds(17).unwrap() > 1.2);
        cost.record(17, 3.0);
        assert!((cost.seconds(9).unwrap() - 2.0).abs() < 1e-9);
        assert!(cost.seconds(40).unwrap() > 3.0);
        // A pass that was interrupted moves little; one that got faster counts soon.
        cost.record(1, 100.0);
        assert!(cost.seconds(1).unwrap() < 1.7);
        for _ in 0..30 {
            cost.record(17, 0.5);
        }
        // Never less than a shorter pass.
        assert!(cost.seconds(17).unwrap() >= cost.seconds(1).unwrap());
        let before = cost.seconds(12).unwrap();
        for _ in 0..200 {
            cost.age();
        }
        assert!(cost.seconds(12).unwrap() <= before);
    }
}
