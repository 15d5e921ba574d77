//! What the host hands to a function: embedding rows, masks, type vectors, markers.

use anemone_ane::{MASKED, OPTION_SLOTS, rotary_tables, rotations};
use anemone_cpu::Row;
use anemone_mil::{Array, DataType, Signature};
use anemone_models::Laya;
use anemone_tensor::Tensor;
use half::f16;

use crate::{Error, Result};

/// The host's tables of a model.
pub(super) struct Host {
    pub(super) embedding: Tensor,
    /// `[kinds, hidden]`.
    pub(super) kinds: Vec<f32>,
    /// Token that fills rows up.
    pub(super) pad: u32,
    /// How far a query of layers with a window sees.
    pub(super) radius: usize,
}

/// A token's question, counted from one, and its position there; padding has question 0.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Place {
    question: usize,
    position: usize,
}

impl Host {
    /// The inputs of a function of `length` tokens for checked rows that fit it together, one after the other from its first
    /// column; the `packed` form for several.
    pub(super) fn inputs(
        &self,
        laya: &Laya,
        rows: &[Row<'_>],
        length: usize,
        packed: bool,
    ) -> Result<Vec<(String, Array)>> {
        let mut places = Vec::with_capacity(length);
        for (i, row) in rows.iter().enumerate() {
            places.extend((0..row.ids.len()).map(|position| Place { question: i + 1, position }));
        }
        // Positions of padding go on from the last question's, as in a row of one.
        let tail = (1..).map(|more| places.last().map_or(0, |last| last.position) + more);
        let padding: Vec<Place> =
            (tail.take(length - places.len())).map(|position| Place { question: 0, position }).collect();
        places.extend(padding);
        let mut inputs = vec![
            ("embeddings".to_owned(), self.embeddings(laya, rows, length)?),
            ("full_mask".to_owned(), mask(&places, usize::MAX)),
            ("local_mask".to_owned(), mask(&places, self.radius)),
            ("type_vectors".to_owned(), self.type_vectors(laya, rows, &places, packed)),
            ("marker_map".to_owned(), map(rows, length, |row| row.markers.to_vec())),
        ];
        if packed {
            inputs.push(("first_map".to_owned(), map(rows, length, |_| vec![0])));
            let positions: Vec<usize> = places.iter().map(|place| place.position).collect();
            for (i, rope) in rotations(laya).iter().enumerate() {
                let (cos, sin) = rotary_tables(rope, &positions);
                for (name, data) in [("cos", cos), ("sin", sin)] {
                    inputs.push((
                        format!("{name}_{i}"),
                        Array { shape: vec![1, rope.dim / 2, 1, length], data },
                    ));
                }
            }
        }
        Ok(inputs)
    }

    fn embeddings(&self, laya: &Laya, rows: &[Row<'_>], length: usize) -> Result<Array> {
        let mut embeddings = Array::zeros(&[1, laya.encoder.hidden_size, 1, length]);
        let failed = |source| {
            let name = laya.encoder.embedding.name.clone();
            Error::Model(anemone_models::Error::Tensor { name, source })
        };
        let ids = rows.iter().flat_map(|row| row.ids).chain(std::iter::repeat(&self.pad));
        for (i, id) in ids.take(length).enumerate() {
            let row = self.embedding.rows(*id as usize, *id as usize + 1).map_err(failed)?;
            for (c, v) in row.to_f32().map_err(failed)?.iter().enumerate() {
                embeddings.data[c * length + i] = *v;
            }
        }
        Ok(embeddings)
    }

    fn type_vectors(&self, laya: &Laya, rows: &[Row<'_>], places: &[Place], packed: bool) -> Array {
        let hidden = laya.encoder.hidden_size;
        // Of padding, which nobody sees, any.
        let kind = |place: &Place| rows[place.question.saturating_sub(1)].kind;
        let of = if packed { places } else { &places[..1] };
        let data = (0..hidden).flat_map(|c| of.iter().map(move |place| self.kinds[kind(place) * hidden + c]));
        Array { shape: vec![1, hidden, 1, of.len()], data: data.collect() }
    }
}

/// Which keys a query may see, `[1, key, 1, query]`: those of its question no further than `radius` away.
fn mask(places: &[Place], radius: usize) -> Array {
    let length = places.len();
    // Padding that asks sees every token, so that no softmax is empty.
    let sees = |key: Place, query: Place| {
        let own = query.question == 0
            || key.question == query.question && key.position.abs_diff(query.position) <= radius;
        key.question > 0 && own
    };
    let entry = |key, query| if sees(key, query) { 0.0 } else { MASKED };
    let data = places.iter().flat_map(|key| places.iter().map(move |query| entry(*key, *query)));
    Array { shape: vec![1, length, 1, length], data: data.collect() }
}

/// Columns of the rows' tokens at `of`, one slot for each in order.
fn map(rows: &[Row<'_>], length: usize, of: impl Fn(&Row<'_>) -> Vec<usize>) -> Array {
    let mut map = Array::zeros(&[1, length, 1, OPTION_SLOTS]);
    let (mut start, mut slot) = (0, 0);
    for row in rows {
        for at in of(row) {
            map.data[(start + at) * OPTION_SLOTS + slot] = 1.0;
            slot += 1;
        }
        start += row.ids.len();
    }
    map
}

/// Rounds rotary tables to the type a function declares for them, so that one handed in is the same as one stored.
pub(super) fn round_tables(inputs: &mut [(String, Array)], signature: &Signature) {
    let tables = inputs.iter_mut().filter(|(name, _)| name.starts_with("cos_") || name.starts_with("sin_"));
    for (name, array) in tables {
        let declared = signature.inputs.iter().find(|(known, _)| known == name);
        if declared.is_some_and(|(_, ty)| ty.dtype == DataType::Float16) {
            array.data.iter_mut().for_each(|v| *v = f16::from_f32(*v).to_f32());
        }
    }
}
