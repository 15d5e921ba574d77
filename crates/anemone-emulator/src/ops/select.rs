//! Choice between values, and changes of type.

use anemone_mil::DataType;

use super::layout::Walk;
use crate::site::Site;
use crate::value::{Data, Run};

pub(super) fn select(site: &Site<'_>) -> Result<Run, String> {
    let out = site.out(0);
    let shapes = [&site.shape("cond")?[..], &site.shape("a")?, &site.shape("b")?];
    let (walk, len) = (Walk::broadcast(&out.shape, shapes), out.numel());
    let (cond, a, b) = (site.slot("cond")?, site.slot("a")?, site.slot("b")?);
    Ok(Box::new(move |call| {
        let cond = call.ints(cond)?;
        Ok(vec![match (call.data(a), call.data(b)) {
            (Data::Floats(a), Data::Floats(b)) => {
                let mut out = call.take(len);
                choose(&walk, cond, a, b, &mut out);
                Data::floats(out)
            }
            _ => {
                let mut out = vec![0; len];
                choose(&walk, cond, call.ints(a)?, call.ints(b)?, &mut out);
                Data::ints(out)
            }
        }])
    }))
}

fn choose<T: Copy>(walk: &Walk<3>, cond: &[i32], a: &[T], b: &[T], out: &mut [T]) {
    walk.rows(|at, [i, j, k], len, [p, q, r]| {
        for (n, o) in out[at..at + len].iter_mut().enumerate() {
            *o = if cond[i + n * p] != 0 { a[j + n * q] } else { b[k + n * r] };
        }
    });
}

pub(super) fn cast(site: &Site<'_>) -> Result<Run, String> {
    let to = site.out(0).dtype;
    let x = site.slot("x")?;
    Ok(Box::new(move |call| {
        Ok(vec![match (call.data(x), to.is_float()) {
            // Copied rather than shared: the new type may need another rounding.
            (data, true) => Data::floats(data.to_f32()),
            (Data::Floats(x), false) => Data::ints(x.iter().map(|x| to_int(*x, to)).collect()),
            (Data::Ints(x), false) => Data::ints(x.iter().map(|x| narrow(i64::from(*x), to)).collect()),
        }])
    }))
}

/// Toward zero; NaN is 0, what does not fit is the nearest that does.
fn to_int(x: f32, to: DataType) -> i32 {
    if to == DataType::Bool { i32::from(x != 0.0) } else { narrow(x as i64, to) }
}

fn narrow(x: i64, to: DataType) -> i32 {
    let (low, high) = match to {
        DataType::Bool => return i32::from(x != 0),
        DataType::Int8 => (i64::from(i8::MIN), i64::from(i8::MAX)),
        DataType::Uint8 => (0, i64::from(u8::MAX)),
        DataType::Int16 => (i64::from(i16::MIN), i64::from(i16::MAX)),
        DataType::Uint16 => (0, i64::from(u16::MAX)),
        _ => (i64::from(i32::MIN), i64::from(i32::MAX)),
    };
    x.clamp(low, high) as i32
}
