//! Functions as straight lines between points.

use half::f16;

use super::effects::{Effects, Nodes, TableData};
use super::round::{Ties, fp16_of};

/// Most points of a table.
const POINTS: usize = 4097;

/// The tables of a profile.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Tables(Vec<Curve>);

/// A function between points, and beyond them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Curve {
    function: Function,
    from: f32,
    step: f32,
    values: Vec<f32>,
    ties: Option<Ties>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Function {
    Sigmoid,
    Silu,
    Gelu,
    /// Odd: the table is of positive numbers.
    Tanh,
    /// Odd.
    Erf,
    /// Of the part of the exponent of two after the point.
    Exp,
}

impl Function {
    const ALL: [(&str, Self); 6] = [
        ("sigmoid", Self::Sigmoid),
        ("silu", Self::Silu),
        ("gelu", Self::Gelu),
        ("tanh", Self::Tanh),
        ("erf", Self::Erf),
        ("exp", Self::Exp),
    ];

    fn exact(self, x: f64) -> f64 {
        match self {
            Self::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            Self::Silu => x / (1.0 + (-x).exp()),
            Self::Gelu => 0.5 * x * (1.0 + libm::erf(x * std::f64::consts::FRAC_1_SQRT_2)),
            Self::Tanh => x.tanh(),
            Self::Erf => libm::erf(x),
            Self::Exp => x.exp2(),
        }
    }

    /// What it tends to left and right of the table.
    fn beyond(self, x: f32) -> f32 {
        match self {
            Self::Sigmoid => f32::from(u8::from(x > 0.0)),
            Self::Silu | Self::Gelu => x.max(0.0),
            Self::Tanh | Self::Erf | Self::Exp => 1.0,
        }
    }
}

impl Tables {
    pub(super) fn new(effects: &Effects) -> Result<Self, String> {
        let mut curves: Vec<Curve> = Vec::new();
        for data in effects.activation_tables.iter().flat_map(|t| &t.table) {
            let curve = Curve::new(data, effects.ties())
                .map_err(|problem| format!("`activation-tables.table` of `{}`: {problem}", data.op))?;
            if curves.iter().any(|c| c.function == curve.function) {
                return Err(format!("`activation-tables.table` of `{}` is given twice", data.op));
            }
            curves.push(curve);
        }
        Ok(Self(curves))
    }

    pub(super) fn get(&self, op: &str) -> Option<&Curve> {
        let (_, function) = Function::ALL.into_iter().find(|(name, _)| *name == op)?;
        self.0.iter().find(|c| c.function == function)
    }
}

impl Curve {
    fn new(data: &TableData, ties: Option<Ties>) -> Result<Self, String> {
        let Some((_, function)) = Function::ALL.into_iter().find(|(name, _)| *name == data.op) else {
            let names: Vec<&str> = Function::ALL.into_iter().map(|(n, _)| n).collect();
            return Err(format!("there is no table of it; give one of {}", names.join(", ")));
        };
        let TableData { from, to, points, .. } = *data;
        if !(2..=POINTS).contains(&points) {
            return Err(format!("`points` is {points}; it must be from 2 to {POINTS}"));
        }
        if !(from.is_finite() && to.is_finite() && from < to && to - from < 1e6) {
            return Err(format!("`from` {from} must be below `to` {to}"));
        }
        if matches!(function, Function::Tanh | Function::Erf) && from != 0.0 {
            return Err("it is odd, so its table begins at 0".into());
        }
        if function == Function::Exp && (from != 0.0 || to != 1.0) {
            return Err("its table is of 2^f with f from 0 to 1".into());
        }
        let step = (to - from) / (points - 1) as f64;
        let value = |i: usize| {
            let x = from + step * i as f64;
            let exact = function.exact(x);
            let value = match data.nodes {
                Nodes::Exact => exact,
                // Lines through exact points are off by step² / 8 · f'' in the middle; a difference of second order has that.
                Nodes::Middle => {
                    let half = step / 2.0;
                    let bend = function.exact(x + half) - 2.0 * exact + function.exact(x - half);
                    exact - bend / 2.0
                }
            };
            f16::from_f64(value).to_f32()
        };
        let values = (0..points).map(value).collect();
        Ok(Self { function, from: from as f32, step: step as f32, values, ties })
    }

    /// The function at `x`, before the result is rounded.
    pub(crate) fn at(&self, x: f32) -> f32 {
        match self.function {
            _ if x.is_nan() => x,
            Function::Tanh | Function::Erf => self.line(x.abs()).copysign(x),
            Function::Exp => {
                let exponent = f64::from(x) * std::f64::consts::LOG2_E;
                let exponent = match self.ties {
                    Some(ties) => fp16_of(exponent, ties),
                    None => exponent as f32,
                };
                if exponent.abs() > 200.0 {
                    return if exponent > 0.0 { f32::INFINITY } else { 0.0 };
                }
                let whole = exponent.floor();
                self.line(exponent - whole) * f32::powi(2.0, whole as i32)
            }
            _ => self.line(x),
        }
    }

    fn line(&self, x: f32) -> f32 {
        let place = (x - self.from) / self.step;
        let last = self.values.len() - 1;
        if place < 0.0 || place > last as f32 {
            return self.function.beyond(x);
        }
        let i = (place as usize).min(last - 1);
        let (a, b) = (self.values[i], self.values[i + 1]);
        a + (b - a) * (place - i as f32)
    }
}
