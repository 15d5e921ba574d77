use half::f16;

/// What compression lost, over all weights of a tensor.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Distortion {
    /// Sum of squared errors.
    pub squared: f64,
    /// Sum of squared weights.
    pub signal: f64,
    /// Sum of squared errors times importance.
    pub weighted: f64,
    /// Largest absolute error.
    pub max_abs: f64,
}

impl Distortion {
    /// Square root of the squared errors over the squared weights; 0 where all are zero.
    pub fn rel_rmse(&self) -> f64 {
        if self.signal > 0.0 { (self.squared / self.signal).sqrt() } else { 0.0 }
    }

    /// Adds `count` weights of one value and importance (their sum) that became `entry`.
    pub(crate) fn count(&mut self, value: f16, entry: f16, count: f64, importance: f64) {
        let (value, entry) = (value.to_f64(), entry.to_f64());
        let error = value - entry;
        self.squared += count * error * error;
        self.signal += count * value * value;
        self.weighted += importance * error * error;
        self.max_abs = self.max_abs.max(error.abs());
    }

    /// Adds what was lost elsewhere.
    pub fn add(&mut self, other: &Self) {
        self.squared += other.squared;
        self.signal += other.signal;
        self.weighted += other.weighted;
        self.max_abs = self.max_abs.max(other.max_abs);
    }
}

/// What is lost between weights and what they decode to.
pub fn distortion(values: &[f16], decoded: &[f16]) -> Distortion {
    let mut out = Distortion::default();
    values.iter().zip(decoded).for_each(|(value, entry)| out.count(*value, *entry, 1.0, 1.0));
    out
}
