//! Pieces every part of a lowering is made of.

use anemone_mil::{Arg, Function, FunctionBuilder, TensorType, Type, Value, VarId, identifier};
use anemone_models::{Linear, Norm};

use crate::weights::Table;
use crate::{Error, Rules, Silu};

/// One function under construction, over the weights of its program.
pub(crate) struct Graph<'a, 'w> {
    b: FunctionBuilder,
    table: &'a mut Table<'w>,
    pub(crate) rules: Rules,
    /// Tokens of the pass.
    pub(crate) tokens: usize,
}

/// What a linear map is part of, which decides how wide it may be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    FeedForward,
    Head,
    Other,
}

impl<'a, 'w> Graph<'a, 'w> {
    pub(crate) fn new(
        name: &str,
        spec_version: i32,
        tokens: usize,
        rules: Rules,
        table: &'a mut Table<'w>,
    ) -> Self {
        Self { b: FunctionBuilder::new(name, spec_version), table, rules, tokens }
    }

    pub(crate) fn input(&mut self, name: &str, shape: [usize; 4]) -> Result<VarId, Error> {
        Ok(self.b.input(name, Type::Tensor(TensorType::new(self.table.dtype, shape)))?)
    }

    pub(crate) fn state(&mut self, name: &str, shape: [usize; 4]) -> Result<VarId, Error> {
        Ok(self.b.input(name, Type::State(TensorType::new(self.table.dtype, shape)))?)
    }

    /// A number in the program's precision.
    pub(crate) fn number(&self, v: f32) -> Value {
        Value::float(self.table.dtype, v)
    }

    pub(crate) fn write_state(&mut self, name: &str, state: VarId, data: VarId) -> Result<(), Error> {
        let inputs = [("input", state.into()), ("data", data.into())];
        self.b.ops("write_state", &identifier(&format!("{name}_write")), &inputs, &[])?;
        Ok(())
    }

    pub(crate) fn finish(self, outputs: &[VarId]) -> Result<Function, Error> {
        Ok(self.b.finish(outputs)?)
    }

    pub(crate) fn table(&mut self) -> &mut Table<'w> {
        self.table
    }

    pub(crate) fn channels(&self, x: VarId) -> usize {
        self.b.shape(x)[1]
    }

    pub(crate) fn op(&mut self, kind: &str, name: &str, inputs: &[(&str, Arg)]) -> Result<VarId, Error> {
        Ok(self.b.op(kind, &identifier(name), inputs)?)
    }

    pub(crate) fn add(&mut self, name: &str, x: VarId, y: VarId) -> Result<VarId, Error> {
        self.op("add", name, &[("x", x.into()), ("y", y.into())])
    }

    pub(crate) fn mul(&mut self, name: &str, x: VarId, y: impl Into<Arg>) -> Result<VarId, Error> {
        self.op("mul", name, &[("x", x.into()), ("y", y.into())])
    }

    pub(crate) fn times(&mut self, name: &str, x: VarId, factor: f32) -> Result<VarId, Error> {
        let factor = self.number(factor);
        self.mul(name, x, factor)
    }

    /// A constant of the weight file.
    pub(crate) fn weight(&mut self, name: &str, value: Value) -> Result<VarId, Error> {
        Ok(self.b.constant(&identifier(name), value)?)
    }

    pub(crate) fn concat(&mut self, name: &str, values: Vec<VarId>, axis: i32) -> Result<VarId, Error> {
        if values.len() == 1 {
            return Ok(values[0]);
        }
        let inputs = [
            ("values", Arg::List(values)),
            ("axis", Value::int(axis).into()),
            ("interleave", Value::flag(false).into()),
        ];
        self.op("concat", name, &inputs)
    }

    /// Equal parts along an axis.
    pub(crate) fn split(
        &mut self,
        name: &str,
        x: VarId,
        parts: usize,
        axis: usize,
    ) -> Result<Vec<VarId>, Error> {
        if parts == 1 {
            return Ok(vec![x]);
        }
        let size = self.b.shape(x)[axis] / parts;
        self.split_sizes(name, x, &vec![size; parts], axis)
    }

    /// Parts of given sizes along an axis, two at least.
    pub(crate) fn split_sizes(
        &mut self,
        name: &str,
        x: VarId,
        sizes: &[usize],
        axis: usize,
    ) -> Result<Vec<VarId>, Error> {
        let parts = sizes.len();
        let sizes = Value::ints(&sizes.iter().map(|s| *s as i32).collect::<Vec<_>>());
        let names: Vec<String> = (0..parts).map(|i| identifier(&format!("{name}_{i}"))).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let inputs =
            [("x", x.into()), ("split_sizes", sizes.into()), ("axis", Value::int(axis as i32).into())];
        Ok(self.b.ops("split", &identifier(name), &inputs, &names)?)
    }

    /// Columns `start..end` of the token axis.
    pub(crate) fn columns(&mut self, name: &str, x: VarId, start: usize, end: usize) -> Result<VarId, Error> {
        self.part(name, x, 3, start, end)
    }

    /// Entries `start..end` of an axis.
    pub(crate) fn part(
        &mut self,
        name: &str,
        x: VarId,
        axis: usize,
        start: usize,
        end: usize,
    ) -> Result<VarId, Error> {
        let mut last: Vec<i32> = self.b.shape(x).iter().map(|&d| d as i32).collect();
        let (mut first, mut mask) = (vec![0; last.len()], vec![true; last.len()]);
        (first[axis], last[axis], mask[axis]) = (start as i32, end as i32, false);
        let inputs = [
            ("x", x.into()),
            ("begin", Value::ints(&first).into()),
            ("end", Value::ints(&last).into()),
            ("end_mask", Value::flags(&mask).into()),
        ];
        self.op("slice_by_index", name, &inputs)
    }

    /// `[1, a, 1, b]` to `[1, b, 1, a]`.
    pub(crate) fn turn(&mut self, name: &str, x: VarId) -> Result<VarId, Error> {
        self.op("transpose", name, &[("x", x.into()), ("perm", Value::ints(&[0, 3, 2, 1]).into())])
    }

    /// Turns channel i with channel i + D/2, both halves by the same tables.
    pub(crate) fn rotate(
        &mut self,
        path: &str,
        x: VarId,
        (cos, sin): (VarId, VarId),
    ) -> Result<VarId, Error> {
        let halves = self.split(&format!("{path}.halves"), x, 2, 1)?;
        let (a, b) = (halves[0], halves[1]);
        let ac = self.mul(&format!("{path}.a_cos"), a, cos)?;
        let bs = self.mul(&format!("{path}.b_sin"), b, sin)?;
        let first = self.op("sub", &format!("{path}.first"), &[("x", ac.into()), ("y", bs.into())])?;
        let bc = self.mul(&format!("{path}.b_cos"), b, cos)?;
        let as_ = self.mul(&format!("{path}.a_sin"), a, sin)?;
        let second = self.add(&format!("{path}.second"), bc, as_)?;
        self.concat(&format!("{path}.rotated"), vec![first, second], 1)
    }

    pub(crate) fn einsum(&mut self, name: &str, equation: &str, a: VarId, b: VarId) -> Result<VarId, Error> {
        self.op(
            "einsum",
            name,
            &[("values", Arg::List(vec![a, b])), ("equation", Value::text(equation).into())],
        )
    }

    /// `y = W x + b` as 1×1 convolutions, split and scaled by the rules.
    pub(crate) fn linear(
        &mut self,
        path: &str,
        x: VarId,
        linear: &Linear,
        role: Role,
    ) -> Result<VarId, Error> {
        let rows = linear.out_features();
        self.linear_rows(path, x, linear, 0..rows, role)
    }

    /// Some rows of a linear map.
    pub(crate) fn linear_rows(
        &mut self,
        path: &str,
        x: VarId,
        linear: &Linear,
        rows: std::ops::Range<usize>,
        role: Role,
    ) -> Result<VarId, Error> {
        let inner = self.channels(x);
        let limit = match role {
            Role::FeedForward => self.rules.split_wide,
            Role::Head => self.rules.split_head,
            Role::Other => None,
        };
        let parts = limit.map_or(1, |limit| {
            (inner.div_ceil(limit)..=inner).find(|n| inner.is_multiple_of(*n)).unwrap_or(1)
        });
        let by_rule =
            self.rules.scale_wide.filter(|(above, _)| inner > *above).map_or(0, |(_, log2)| log2 as i32);
        let log2 = self.table.scale(path).unwrap_or(by_rule);
        let width = inner / parts;
        let pieces = self.split(&format!("{path}.in"), x, parts, 1)?;
        let mut sum: Option<VarId> = None;
        for (i, piece) in pieces.into_iter().enumerate() {
            let suffix = if parts > 1 { format!(".part_{i}") } else { String::new() };
            let columns = i * width..(i + 1) * width;
            let weight = self.table.matrix(&linear.weight, rows.clone(), columns, log2)?;
            let weight = self.weight(&format!("{path}.weight{suffix}"), weight)?;
            let mut inputs = vec![
                ("x", piece.into()),
                ("weight", weight.into()),
                ("pad_type", Value::text("valid").into()),
                ("strides", Value::ints(&[1, 1]).into()),
                ("pad", Value::ints(&[0; 4]).into()),
                ("dilations", Value::ints(&[1, 1]).into()),
                ("groups", Value::int(1).into()),
            ];
            if let (0, Some(bias)) = (i, &linear.bias) {
                let bias = self.table.vector(bias, false, log2)?;
                inputs.push(("bias", self.weight(&format!("{path}.bias"), bias)?.into()));
            }
            let last = log2 == 0 && parts == 1;
            let name = if last { path.to_string() } else { format!("{path}.conv{suffix}") };
            let product = self.op("conv", &name, &inputs)?;
            sum = Some(match sum {
                None => product,
                Some(sum) => {
                    let done = log2 == 0 && i + 1 == parts;
                    let name = if done { path.to_string() } else { format!("{path}.sum_{i}") };
                    self.add(&name, sum, product)?
                }
            });
        }
        let sum = sum.expect("a linear map has at least one part");
        if log2 == 0 { Ok(sum) } else { self.times(path, sum, f32::powi(2.0, -log2)) }
    }

    /// `x · rsqrt(mean(x²) + eps) · w` over channels.
    pub(crate) fn rms_norm(&mut self, path: &str, x: VarId, norm: &Norm) -> Result<VarId, Error> {
        let square = self.mul(&format!("{path}.square"), x, x)?;
        let inputs = [
            ("x", square.into()),
            ("axes", Value::ints(&[1]).into()),
            ("keep_dims", Value::flag(true).into()),
        ];
        let mean = self.op("reduce_mean", &format!("{path}.mean"), &inputs)?;
        let eps = self.number(norm.eps);
        let inputs = [("x", mean.into()), ("epsilon", eps.into())];
        let root = self.op("rsqrt", &format!("{path}.rsqrt"), &inputs)?;
        let normed = self.mul(&format!("{path}.normed"), x, root)?;
        let weight = self.table.vector(&norm.weight, true, 0)?;
        let weight = self.weight(&format!("{path}.weight"), weight)?;
        self.mul(path, normed, weight)
    }

    /// `1 / (1 + exp(−x))`, or Core ML's own form when the rules allow it.
    pub(crate) fn sigmoid(&mut self, path: &str, x: VarId) -> Result<VarId, Error> {
        if self.rules.silu == Silu::Fused {
            return self.op("sigmoid", path, &[("x", x.into())]);
        }
        let denominator = self.one_plus_exp(path, x)?;
        let one = self.number(1.0);
        let one = self.b.constant(&identifier(&format!("{path}.one")), one)?;
        self.op("real_div", path, &[("x", one.into()), ("y", denominator.into())])
    }

    /// `x · sigmoid(x)` in the form the rules name.
    pub(crate) fn silu(&mut self, path: &str, x: VarId) -> Result<VarId, Error> {
        match self.rules.silu {
            Silu::Fused => self.op("silu", path, &[("x", x.into())]),
            Silu::Exact => {
                let denominator = self.one_plus_exp(path, x)?;
                self.op("real_div", path, &[("x", x.into()), ("y", denominator.into())])
            }
            Silu::Tanh => {
                let half = self.times(&format!("{path}.half"), x, 0.5)?;
                let tanh = self.op("tanh", &format!("{path}.tanh"), &[("x", half.into())])?;
                let product = self.mul(&format!("{path}.product"), half, tanh)?;
                self.add(path, product, half)
            }
        }
    }

    fn one_plus_exp(&mut self, path: &str, x: VarId) -> Result<VarId, Error> {
        let minus = self.times(&format!("{path}.minus"), x, -1.0)?;
        let exp = self.op("exp", &format!("{path}.exp"), &[("x", minus.into())])?;
        let one = self.number(1.0);
        self.op("add", &format!("{path}.one_plus"), &[("x", exp.into()), ("y", one.into())])
    }
}
