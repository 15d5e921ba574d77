//! Values while a function runs.

use std::cell::RefCell;
use std::sync::Arc;

use anemone_kernels::{Context, Input, MatrixView, Product};
use anemone_tensor::{Bytes, DType};
use half::slice::HalfFloatSliceExt as _;
use half::{bf16, f16};

use crate::accumulate::Accumulator;
use crate::profile::Curve;
use crate::ranges::{Ranges, Sums};
use crate::{Profile, ops};

/// The elements of a tensor, shared; shapes are in the plan.
#[derive(Debug, Clone)]
pub(crate) enum Data {
    Floats(Arc<Vec<f32>>),
    /// Integers of any width; booleans as 0 and 1.
    Ints(Arc<Vec<i32>>),
}

impl Data {
    pub(crate) fn floats(v: Vec<f32>) -> Self {
        Self::Floats(Arc::new(v))
    }

    pub(crate) fn ints(v: Vec<i32>) -> Self {
        Self::Ints(Arc::new(v))
    }

    pub(crate) fn to_f32(&self) -> Vec<f32> {
        match self {
            Self::Floats(v) => v.to_vec(),
            Self::Ints(v) => v.iter().map(|v| *v as f32).collect(),
        }
    }
}

/// Floats as they are stored: a part of the weight file, or the expansion of a compressed weight.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub(crate) dtype: DType,
    pub(crate) bytes: Bytes,
}

impl Stored {
    /// Elements `start..start + out.len()` widened.
    pub(crate) fn widen(&self, start: usize, out: &mut [f32]) {
        widen(self.dtype, &self.bytes, start, out);
    }

    pub(crate) fn widened(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.bytes.len() / self.dtype.size()];
        self.widen(0, &mut out);
        out
    }
}

/// Elements `start..start + out.len()` of stored floats, widened.
pub(crate) fn widen(dtype: DType, bytes: &[u8], start: usize, out: &mut [f32]) {
    let size = dtype.size();
    let bytes = &bytes[start * size..(start + out.len()) * size];
    match dtype {
        DType::F16 => {
            if let (true, Ok(halves)) =
                (cfg!(target_endian = "little"), bytemuck::try_cast_slice::<u8, f16>(bytes))
            {
                halves.convert_to_f32_slice(out);
                return;
            }
            for (o, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                *o = f16::from_le_bytes([b[0], b[1]]).to_f32();
            }
        }
        DType::BF16 => {
            for (o, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                *o = bf16::from_le_bytes([b[0], b[1]]).to_f32();
            }
        }
        _ => {
            for (o, b) in out.iter_mut().zip(bytes.chunks_exact(4)) {
                *o = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            }
        }
    }
}

/// Freed float buffers, for the next results.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    free: Vec<Vec<f32>>,
}

impl Buffers {
    const MOST: usize = 64;

    fn take(&mut self, len: usize) -> Vec<f32> {
        let fits = |b: &Vec<f32>| b.capacity() >= len && b.capacity() / 4 <= len.max(256);
        let best =
            (0..self.free.len()).filter(|i| fits(&self.free[*i])).min_by_key(|i| self.free[*i].capacity());
        let mut buffer = best.map_or_else(Vec::new, |i| self.free.swap_remove(i));
        buffer.resize(len, 0.0);
        buffer
    }

    pub(crate) fn give(&mut self, data: Data) {
        if let Data::Floats(shared) = data
            && let Some(buffer) = Arc::into_inner(shared)
            && self.free.len() < Self::MOST
        {
            self.free.push(buffer);
        }
    }
}

/// One run of an operation.
pub(crate) struct Call<'a> {
    pub(crate) inputs: &'a [Data],
    pub(crate) context: &'a Context,
    pub(crate) buffers: &'a RefCell<Buffers>,
    pub(crate) rules: &'a Rules,
    /// Whether the result is declared fp16, which is where a profile's effects act.
    pub(crate) half: bool,
    /// Package and name of the result.
    pub(crate) label: [&'a str; 2],
}

/// How a function's operations compute.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    pub(crate) profile: Profile,
    pub(crate) accumulator: Option<Accumulator>,
    pub(crate) ranges: Option<Ranges>,
}

/// An operation with everything but its inputs decided.
pub(crate) type Run = Box<dyn Fn(&Call<'_>) -> Result<Vec<Data>, String> + Send + Sync>;

impl Call<'_> {
    pub(crate) fn data(&self, slot: usize) -> &Data {
        &self.inputs[slot]
    }

    pub(crate) fn floats(&self, slot: usize) -> Result<&[f32], String> {
        match &self.inputs[slot] {
            Data::Floats(v) => Ok(v),
            Data::Ints(_) => Err("integers are not supported here; cast to a float first".into()),
        }
    }

    pub(crate) fn ints(&self, slot: usize) -> Result<&[i32], String> {
        match &self.inputs[slot] {
            Data::Ints(v) => Ok(v),
            Data::Floats(_) => Err("floats are not supported here; cast to an integer first".into()),
        }
    }

    /// A buffer of `len` floats with any content.
    pub(crate) fn take(&self, len: usize) -> Vec<f32> {
        self.buffers.borrow_mut().take(len)
    }

    pub(crate) fn give(&self, buffer: Vec<f32>) {
        self.buffers.borrow_mut().give(Data::floats(buffer));
    }

    /// The profile's table of a function, where there is one.
    pub(crate) fn table(&self, op: &str) -> Option<&Curve> {
        self.rules.profile.table(op).filter(|_| self.half)
    }

    /// `[n, m] = b [n, k] · aᵀ` with `a [m, k]`, both computed; the order of terms does not show.
    pub(crate) fn contract(&self, a: &[f32], b: &[f32], k: usize, out: &mut [f32]) {
        match self.rules.accumulator.as_ref().filter(|_| self.half) {
            Some(accumulator) => accumulator.product(self.context, a, b, k, out),
            None => ops::plain_product(self.context, a, b, k, out),
        }
        let rows = a.len() / k.max(1);
        self.watch(&Sums {
            weight: (DType::F32, bytemuck::cast_slice(a)),
            stored: false,
            rows,
            k,
            x: b,
            out,
        });
    }

    fn watch(&self, sums: &Sums<'_>) {
        if let Some(ranges) = self.rules.ranges.as_ref().filter(|_| self.half) {
            let [package, name] = self.label;
            ranges.see(package, name, self.rules.accumulator.as_ref(), sums);
        }
    }

    /// `[tokens, rows] = x [tokens, cols] · wᵀ`, with `w [rows, cols]` as stored; `stored` when it is the same in every call.
    pub(crate) fn product(
        &self,
        (dtype, bytes, stored): (DType, &[u8], bool),
        [rows, cols]: [usize; 2],
        x: &[f32],
        bias: Option<&[f32]>,
        out: &mut [f32],
    ) -> Result<(), String> {
        if out.is_empty() || cols == 0 {
            out.fill(0.0);
            return Ok(());
        }
        let weight = MatrixView::from_bytes(dtype, bytes, rows, cols)
            .ok_or_else(|| format!("{} bytes are no {rows} by {cols} matrix of {dtype}", bytes.len()))?;
        if let Some(accumulator) = self.rules.accumulator.as_ref().filter(|_| self.half) {
            accumulator.weighted(self.context, (dtype, bytes), [rows, cols], x, bias, out);
        } else {
            let tokens = x.len() / cols;
            let product = Product { weight, bias, out: &mut *out };
            anemone_kernels::matmul(self.context, Input::F32(x), tokens, &mut [product]);
        }
        self.watch(&Sums { weight: (dtype, bytes), stored, rows, k: cols, x, out });
        Ok(())
    }
}
