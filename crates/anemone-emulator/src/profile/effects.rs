//! The effects of a profile as its file gives them.

use serde::Deserialize;

use super::Limits;
use super::round::Ties;

/// A profile's file: every effect there is; those absent are off.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Effects {
    pub(super) name: String,
    pub(super) about: String,
    pub(super) fp16_rounding: Option<Rounding>,
    pub(crate) fixed_point: Option<FixedPoint>,
    pub(crate) product_drop: Option<ProductDrop>,
    pub(crate) small_products: Option<SmallProducts>,
    pub(crate) wide_reduction: Option<WideReduction>,
    pub(crate) overflow: Option<Overflow>,
    pub(crate) non_finite: Option<NonFinite>,
    pub(super) activation_tables: Option<ActivationTables>,
}

/// Inputs and results declared fp16 are rounded to it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rounding {
    pub(super) ties: Ties,
    source: String,
}

/// Products, and the bias, are rounded to multiples of 2^−`fraction_bits`, ties away from zero, and summed exactly.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct FixedPoint {
    pub(crate) fraction_bits: u32,
    source: String,
}

/// Products whose factors' exponents add up to `exponent_sum` or less are zero.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct ProductDrop {
    pub(crate) exponent_sum: i32,
    source: String,
}

/// Products smaller than 2^`below` are zero.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SmallProducts {
    pub(crate) below: i32,
    source: String,
}

/// In sums of more than `above` terms, products smaller than 2^`below` are zero.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WideReduction {
    pub(crate) above: usize,
    pub(crate) below: i32,
    source: String,
}

/// A sum that reaches `limit` on its way is infinite from there on.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Overflow {
    pub(crate) limit: f32,
    source: String,
}

/// Factors that are no numbers are decoded as if they were: infinity as 2^16, NaN as 1.5 · 2^16; results are infinite, never NaN.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NonFinite {
    source: String,
}

/// Functions computed by straight lines between points.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ActivationTables {
    source: String,
    #[serde(default)]
    pub(super) table: Vec<TableData>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TableData {
    pub(super) op: String,
    pub(super) from: f64,
    pub(super) to: f64,
    pub(super) points: usize,
    pub(super) nodes: Nodes,
}

/// What the values at the points of a table are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Nodes {
    /// The function's own.
    Exact,
    /// Moved so that the lines meet the function half way between points.
    Middle,
}

macro_rules! each_effect {
    ($($name:literal $field:ident),*) => {
        const NAMES: &[&str] = &[$($name),*];

        impl Effects {
            /// Those that are on, with their sources.
            pub(super) fn on(&self) -> Vec<(&'static str, &str)> {
                let mut on = Vec::new();
                $(if let Some(effect) = &self.$field { on.push(($name, effect.source.as_str())); })*
                on
            }

            /// Switches an effect, or all; one can only be switched on that the profile had to begin with.
            pub(super) fn switch(&mut self, effect: &str, on: bool, given: &Self) -> Result<(), String> {
                let mut found = false;
                $(if effect == $name || effect == "all" {
                    found = true;
                    if on && given.$field.is_none() && effect != "all" {
                        return Err("is not in this profile, so it has no numbers; switch it off where it is, or write a file".into());
                    }
                    self.$field = given.$field.clone().filter(|_| on);
                })*
                if found { Ok(()) } else { Err(format!("is no effect; those are {}", NAMES.join(", "))) }
            }
        }
    };
}

each_effect!(
    "fp16-rounding" fp16_rounding,
    "fixed-point" fixed_point,
    "product-drop" product_drop,
    "small-products" small_products,
    "wide-reduction" wide_reduction,
    "overflow" overflow,
    "non-finite" non_finite,
    "activation-tables" activation_tables
);

impl Effects {
    pub(super) fn rounding(ties: Ties) -> Self {
        Self { fp16_rounding: Some(Rounding { ties, source: "IEEE 754-2019".into() }), ..Self::default() }
    }

    pub(crate) fn ties(&self) -> Option<Ties> {
        self.fp16_rounding.as_ref().map(|r| r.ties)
    }

    /// Refuses numbers there is no arithmetic for.
    pub(super) fn check(&self) -> Result<(), String> {
        let within = |key: &str, value: i64, low: i64, high: i64| {
            if (low..=high).contains(&value) {
                Ok(())
            } else {
                Err(format!("`{key}` is {value}; it must be from {low} to {high}"))
            }
        };
        if let Some(f) = &self.fixed_point {
            within("fixed-point.fraction-bits", f.fraction_bits.into(), 1, 24)?;
        }
        if let Some(d) = &self.product_drop {
            within("product-drop.exponent-sum", d.exponent_sum.into(), -60, 30)?;
        }
        if let Some(s) = &self.small_products {
            within("small-products.below", s.below.into(), -48, 30)?;
        }
        if let Some(w) = &self.wide_reduction {
            within("wide-reduction.below", w.below.into(), -48, 30)?;
        }
        if let Some(o) = &self.overflow
            && !(o.limit > 0.0 && o.limit.is_finite())
        {
            return Err(format!("`overflow.limit` is {}; it must be a number above 0", o.limit));
        }
        Ok(())
    }

    /// Products smaller than this are zero in sums of `terms`; 0 when none are.
    pub(crate) fn flushed(&self, terms: usize) -> f32 {
        let wide = self.wide_reduction.as_ref().filter(|w| terms > w.above).map(|w| w.below);
        let small = self.small_products.as_ref().map(|s| s.below);
        wide.into_iter().chain(small).max().map_or(0.0, |e| f32::powi(2.0, e))
    }

    pub(super) fn limits(&self, terms: usize) -> Limits {
        // Factors of exponents a and b have products below 2^(a + b + 2).
        let drop = self.product_drop.as_ref().map_or(0.0, |d| f32::powi(2.0, d.exponent_sum + 2));
        let dropped = Some(drop.max(self.flushed(terms))).filter(|d| *d > 0.0);
        let results = self.fp16_rounding.as_ref().map(|_| 65520.0);
        let overflow = self.overflow.as_ref().map(|o| o.limit).into_iter().chain(results).reduce(f32::min);
        Limits { overflow, dropped }
    }
}
