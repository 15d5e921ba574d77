//! Attention in one operation.

use super::contract::Batched;
use super::layout::Walk;
use super::normal::softmax_lines;
use crate::site::Site;
use crate::value::{Data, Run};

pub(super) fn attention(site: &Site<'_>) -> Result<Run, String> {
    let (q, k, v) = (site.shape("query")?, site.shape("key")?, site.shape("value")?);
    let rank = q.len();
    if q[..rank - 2] != k[..rank - 2] || q[..rank - 2] != v[..rank - 2] {
        return Err(format!("batch axes of query {q:?}, key {k:?} and value {v:?} differ; tile them first"));
    }
    let mut scores = q.clone();
    scores[rank - 1] = k[rank - 2];
    let (qk, pv) = (
        Batched::new(&q, &k, &scores, false, true),
        Batched::new(&scores, &v, &site.out(0).shape, false, false),
    );
    let scale = 1.0 / (q[rank - 1] as f32).sqrt();
    let mask = if site.has("attn_mask") {
        let shape = site.shape("attn_mask")?;
        let fits = shape.len() <= rank
            && shape.iter().rev().zip(scores.iter().rev()).all(|(m, s)| *m == 1 || m == s);
        if !fits {
            return Err(format!("`attn_mask` {shape:?} does not stretch to {scores:?}"));
        }
        Some((Walk::broadcast(&scores, [&shape]), site.is_bool("attn_mask")?, site.slot("attn_mask")?))
    } else {
        None
    };
    let (query, key, value) = (site.slot("query")?, site.slot("key")?, site.slot("value")?);
    let keys = k[rank - 2];
    Ok(Box::new(move |call| {
        let mut p = qk.run(call, call.floats(query)?, call.floats(key)?);
        for s in &mut p {
            *s *= scale;
        }
        if let Some((walk, is_bool, mask)) = &mask {
            let mask = call.data(*mask).to_f32();
            walk.rows(|at, [from], len, [step]| {
                for (i, s) in p[at..at + len].iter_mut().enumerate() {
                    let m = mask[from + i * step];
                    *s = match (*is_bool, m == 0.0) {
                        (false, _) => *s + m,
                        (true, true) => f32::NEG_INFINITY,
                        (true, false) => *s,
                    };
                }
            });
        }
        softmax_lines(&mut p, keys, 1);
        let out = pv.run(call, &p, call.floats(value)?);
        call.give(p);
        Ok(vec![Data::floats(out)])
    }))
}
