//! One result element from the elements at the same place.

use super::layout::Walk;
use crate::site::Site;
use crate::value::{Data, Run};

pub(super) fn prepare(site: &Site<'_>) -> Result<Run, String> {
    let eps = |default| site.float("epsilon", default);
    Ok(match site.op.kind.as_str() {
        "abs" if !site.is_float("x")? => int_unary(site, i32::wrapping_abs)?,
        "square" if !site.is_float("x")? => int_unary(site, |x| x.wrapping_mul(x))?,
        "abs" => unary(site, f32::abs)?,
        "clip" => {
            let (low, high) = (site.float("alpha", f32::NEG_INFINITY), site.float("beta", f32::INFINITY));
            unary(site, move |x| {
                let x = if x < low { low } else { x };
                if x > high { high } else { x }
            })?
        }
        "cos" => unary(site, f32::cos)?,
        "erf" => unary(site, libm::erff)?,
        "exp" => unary(site, f32::exp)?,
        "gelu" => match site.text("mode").unwrap_or("EXACT") {
            "EXACT" => unary(site, |x| 0.5 * x * (1.0 + libm::erff(x * std::f32::consts::FRAC_1_SQRT_2)))?,
            "TANH_APPROXIMATION" => unary(site, |x| {
                let inner = (2.0 / std::f32::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
                0.5 * x * (1.0 + inner.tanh())
            })?,
            "SIGMOID_APPROXIMATION" => unary(site, |x| x * sigmoid(1.702 * x))?,
            other => return Err(format!("mode `{other}` is not supported")),
        },
        "inverse" => {
            let e = eps(1e-4);
            unary(site, move |x| 1.0 / (x + e))?
        }
        "log" => {
            let e = eps(1e-45);
            unary(site, move |x| (x + e).ln())?
        }
        "relu" => unary(site, |x| if x < 0.0 { 0.0 } else { x })?,
        "rsqrt" => {
            let e = eps(1e-12);
            unary(site, move |x| 1.0 / (x + e).sqrt())?
        }
        "sigmoid" => unary(site, sigmoid)?,
        "silu" => unary(site, |x| x / (1.0 + (-x).exp()))?,
        "sin" => unary(site, f32::sin)?,
        "sqrt" => unary(site, f32::sqrt)?,
        "square" => unary(site, |x| x * x)?,
        "tanh" => unary(site, f32::tanh)?,
        "add" => binary(site, |x, y| x + y, i32::wrapping_add)?,
        "sub" => binary(site, |x, y| x - y, i32::wrapping_sub)?,
        "mul" => binary(site, |x, y| x * y, i32::wrapping_mul)?,
        "real_div" => binary(site, |x, y| x / y, |x, y| (f64::from(x) / f64::from(y)) as i32)?,
        "pow" => binary(site, f32::powf, |x, y| f64::from(x).powf(f64::from(y)) as i32)?,
        "maximum" => binary(site, |x, y| if x > y || x.is_nan() { x } else { y }, i32::max)?,
        "minimum" => binary(site, |x, y| if x < y || x.is_nan() { x } else { y }, i32::min)?,
        "equal" => compare(site, |x, y| x == y, |x, y| x == y)?,
        "greater" => compare(site, |x, y| x > y, |x, y| x > y)?,
        "greater_equal" => compare(site, |x, y| x >= y, |x, y| x >= y)?,
        "less" => compare(site, |x, y| x < y, |x, y| x < y)?,
        "less_equal" => compare(site, |x, y| x <= y, |x, y| x <= y)?,
        "logical_and" => compare(site, |_, _| false, |x, y| x != 0 && y != 0)?,
        other => return Err(format!("the emulator has no arithmetic for `{other}`")),
    })
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

fn unary(site: &Site<'_>, f: impl Fn(f32) -> f32 + Send + Sync + 'static) -> Result<Run, String> {
    site.needs_floats("x")?;
    let x = site.slot("x")?;
    let kind = site.op.kind.clone();
    Ok(Box::new(move |call| {
        let x = call.floats(x)?;
        let mut out = call.take(x.len());
        if let Some(table) = call.table(&kind) {
            out.iter_mut().zip(x).for_each(|(o, x)| *o = table.at(*x));
            return Ok(vec![Data::floats(out)]);
        }
        for (o, x) in out.iter_mut().zip(x) {
            *o = f(*x);
        }
        Ok(vec![Data::floats(out)])
    }))
}

fn int_unary(site: &Site<'_>, f: impl Fn(i32) -> i32 + Send + Sync + 'static) -> Result<Run, String> {
    let x = site.slot("x")?;
    Ok(Box::new(move |call| Ok(vec![Data::ints(call.ints(x)?.iter().map(|x| f(*x)).collect())])))
}

fn binary(
    site: &Site<'_>,
    f: impl Fn(f32, f32) -> f32 + Send + Sync + 'static,
    g: impl Fn(i32, i32) -> i32 + Send + Sync + 'static,
) -> Result<Run, String> {
    let (walk, len) = operands(site)?;
    let (x, y) = (site.slot("x")?, site.slot("y")?);
    Ok(Box::new(move |call| {
        Ok(vec![match (call.data(x), call.data(y)) {
            (Data::Floats(x), Data::Floats(y)) => {
                let mut out = call.take(len);
                zip(&walk, x, y, &mut out, &f);
                Data::floats(out)
            }
            _ => {
                let mut out = vec![0; len];
                zip(&walk, call.ints(x)?, call.ints(y)?, &mut out, &g);
                Data::ints(out)
            }
        }])
    }))
}

fn compare(
    site: &Site<'_>,
    f: impl Fn(f32, f32) -> bool + Send + Sync + 'static,
    g: impl Fn(i32, i32) -> bool + Send + Sync + 'static,
) -> Result<Run, String> {
    let (walk, len) = operands(site)?;
    let (x, y) = (site.slot("x")?, site.slot("y")?);
    Ok(Box::new(move |call| {
        let mut out = vec![0; len];
        match (call.data(x), call.data(y)) {
            (Data::Floats(x), Data::Floats(y)) => zip(&walk, x, y, &mut out, &|x, y| i32::from(f(x, y))),
            _ => zip(&walk, call.ints(x)?, call.ints(y)?, &mut out, &|x, y| i32::from(g(x, y))),
        }
        Ok(vec![Data::ints(out)])
    }))
}

fn operands(site: &Site<'_>) -> Result<(Walk<2>, usize), String> {
    let out = site.out(0);
    Ok((Walk::broadcast(&out.shape, [&site.shape("x")?, &site.shape("y")?]), out.numel()))
}

fn zip<T: Copy, R>(walk: &Walk<2>, x: &[T], y: &[T], out: &mut [R], f: &impl Fn(T, T) -> R) {
    walk.rows(|at, [i, j], len, steps| {
        let out = &mut out[at..at + len];
        match steps {
            [1, 1] => {
                for ((o, x), y) in out.iter_mut().zip(&x[i..i + len]).zip(&y[j..j + len]) {
                    *o = f(*x, *y);
                }
            }
            [1, 0] => {
                let y = y[j];
                out.iter_mut().zip(&x[i..i + len]).for_each(|(o, x)| *o = f(*x, y));
            }
            [0, 1] => {
                let x = x[i];
                out.iter_mut().zip(&y[j..j + len]).for_each(|(o, y)| *o = f(x, *y));
            }
            [s, t] => out.iter_mut().enumerate().for_each(|(n, o)| *o = f(x[i + n * s], y[j + n * t])),
        }
    });
}
