//! Strided parts of a tensor, read and replaced.

use super::layout::{Walk, strides};
use super::movement::fill;
use crate::site::Site;
use crate::value::{Call, Data, Run};

/// Bounds of a slice: constants, or values of the program.
struct Bounds {
    shape: Vec<usize>,
    begin: Ends,
    end: Ends,
    stride: Vec<i64>,
    begin_mask: Vec<bool>,
    end_mask: Vec<bool>,
    squeeze: Vec<bool>,
}

enum Ends {
    Known(Vec<i64>),
    Slot(usize),
}

/// Where a slice lies: its start, and per axis the number of elements and the step between them.
struct Place {
    start: usize,
    dims: Vec<usize>,
    steps: Vec<usize>,
}

impl Ends {
    fn new(site: &Site<'_>, name: &str) -> Result<Self, String> {
        match site.ints(name) {
            Some(v) => Ok(Self::Known(v)),
            None => Ok(Self::Slot(site.slot(name)?)),
        }
    }

    fn get(&self, call: &Call<'_>, rank: usize) -> Result<Vec<i64>, String> {
        let v = match self {
            Self::Known(v) => v.clone(),
            Self::Slot(slot) => call.ints(*slot)?.iter().map(|v| i64::from(*v)).collect(),
        };
        if v.len() == rank { Ok(v) } else { Err(format!("bounds have {} values for rank {rank}", v.len())) }
    }
}

impl Bounds {
    fn new(site: &Site<'_>) -> Result<Self, String> {
        let shape = site.shape("x")?;
        let rank = shape.len();
        let flags = |name| {
            let v = site.flags(name).unwrap_or_else(|| vec![false; rank]);
            if v.len() == rank {
                Ok(v)
            } else {
                Err(format!("`{name}` has {} values for rank {rank}", v.len()))
            }
        };
        let stride = site.ints("stride").unwrap_or_else(|| vec![1; rank]);
        if stride.len() != rank || stride.iter().any(|s| *s < 1) {
            return Err(format!("`stride` must be {rank} numbers of at least 1"));
        }
        Ok(Self {
            begin: Ends::new(site, "begin")?,
            end: Ends::new(site, "end")?,
            stride,
            begin_mask: flags("begin_mask")?,
            end_mask: flags("end_mask")?,
            squeeze: flags("squeeze_mask")?,
            shape,
        })
    }

    fn place(&self, call: &Call<'_>) -> Result<Place, String> {
        let rank = self.shape.len();
        let (begin, end) = (self.begin.get(call, rank)?, self.end.get(call, rank)?);
        let own = strides(&self.shape);
        let mut place = Place { start: 0, dims: Vec::new(), steps: Vec::new() };
        for a in 0..rank {
            let n = self.shape[a] as i64;
            let from_front = |v: i64| if v < 0 { v + n } else { v };
            let from = if self.begin_mask[a] { 0 } else { from_front(begin[a]) };
            let to = match (self.squeeze[a], self.end_mask[a]) {
                (true, _) => from + 1,
                (false, true) => n,
                (false, false) => from_front(end[a]),
            };
            if from < 0 || to > n || from > to {
                return Err(format!("{from}..{to} does not lie in axis {a} of {n} elements"));
            }
            place.start += from as usize * own[a];
            place.dims.push(((to - from) as usize).div_ceil(self.stride[a] as usize));
            place.steps.push(own[a] * self.stride[a] as usize);
        }
        Ok(place)
    }
}

impl Place {
    fn read<T: Copy>(&self, x: &[T], out: &mut [T]) {
        if out.is_empty() {
            return;
        }
        Walk::new(&self.dims, [&self.steps]).rows(|to, [from], len, [step]| {
            let from = self.start + from;
            if step == 1 {
                out[to..to + len].copy_from_slice(&x[from..from + len]);
            } else {
                out[to..to + len].iter_mut().enumerate().for_each(|(i, o)| *o = x[from + i * step]);
            }
        });
    }

    fn write<T: Copy>(&self, update: &[T], out: &mut [T]) {
        if update.is_empty() {
            return;
        }
        Walk::new(&self.dims, [&self.steps]).rows(|from, [to], len, [step]| {
            let to = self.start + to;
            update[from..from + len].iter().enumerate().for_each(|(i, u)| out[to + i * step] = *u);
        });
    }
}

pub(super) fn by_index(site: &Site<'_>) -> Result<Run, String> {
    let bounds = Bounds::new(site)?;
    let len = site.out(0).numel();
    let x = site.slot("x")?;
    Ok(Box::new(move |call| {
        let place = bounds.place(call)?;
        if place.dims.iter().product::<usize>() != len {
            return Err(format!("the slice is {:?}, declared are {len} elements", place.dims));
        }
        Ok(vec![fill!(call, call.data(x), len, |x, out| place.read(x, out))])
    }))
}

pub(super) fn by_size(site: &Site<'_>) -> Result<Run, String> {
    let (shape, dims) = (site.shape("x")?, site.out(0).shape.clone());
    let begin = Ends::new(site, "begin")?;
    let len = dims.iter().product();
    let x = site.slot("x")?;
    Ok(Box::new(move |call| {
        let own = strides(&shape);
        let mut start = 0;
        for (a, from) in begin.get(call, shape.len())?.into_iter().enumerate() {
            if from < 0 || from as usize > shape[a] || dims[a] > shape[a] - from as usize {
                let size = dims[a];
                return Err(format!("{size} elements from {from} do not lie in axis {a} of {}", shape[a]));
            }
            start += from as usize * own[a];
        }
        let place = Place { start, dims: dims.clone(), steps: own };
        Ok(vec![fill!(call, call.data(x), len, |x, out| place.read(x, out))])
    }))
}

pub(super) fn update(site: &Site<'_>) -> Result<Run, String> {
    let bounds = Bounds::new(site)?;
    let wanted = site.shape("update")?;
    let (x, update) = (site.slot("x")?, site.slot("update")?);
    Ok(Box::new(move |call| {
        let place = bounds.place(call)?;
        if place.dims != wanted {
            return Err(format!("the slice is {:?}, `update` {wanted:?}", place.dims));
        }
        Ok(vec![match (call.data(x), call.data(update)) {
            (Data::Floats(x), Data::Floats(update)) => {
                let mut out = call.take(x.len());
                out.copy_from_slice(x);
                place.write(update, &mut out);
                Data::floats(out)
            }
            _ => {
                let mut out = call.ints(x)?.to_vec();
                place.write(call.ints(update)?, &mut out);
                Data::ints(out)
            }
        }])
    }))
}
