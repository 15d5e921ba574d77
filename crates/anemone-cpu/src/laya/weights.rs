use std::sync::OnceLock;

use anemone_checkpoint::Weights;
use anemone_kernels::{Context, EncoderAttentionShape, PanelPlan, Panels, RowOrder};
use anemone_models::{EncoderLayer, Laya, LayerNorm, MlpActivation, SelfAttention};
use anemone_tensor::Arena;

use super::action::ActionWeights;
use crate::Error;
use crate::matrix::Matrix;
use crate::model::{LinearWeight, Loader, RopeTable};

/// A decision model with its weights resolved, ready to run; immutable and shared by engines.
#[derive(Debug)]
pub struct LayaModel {
    pub(crate) laya: Laya,
    pub(super) embedding: Matrix,
    pub(super) embedding_norm: NormWeights,
    pub(super) layers: Vec<LayerWeights>,
    pub(super) final_norm: NormWeights,
    /// `[kinds, hidden]`.
    pub(super) kinds: Vec<f32>,
    pub(super) head: Vec<LayerWeights>,
    pub(super) scorer_norm: NormWeights,
    pub(super) scorer_dense: LinearWeight,
    pub(super) scorer_out: LinearWeight,
    pub(super) action: ActionWeights,
    /// Distinct rotations, each layer refers to one.
    pub(super) ropes: Vec<RopeTable>,
    /// The layers' matrices laid out for f32 and for bf16 products, each from its first use on.
    packed: [OnceLock<Packed>; 2],
}

/// Matrices of the layers, laid out for one arithmetic.
#[derive(Debug)]
pub(super) struct Packed {
    pub(super) layers: Vec<LayerPanels>,
    pub(super) head: Vec<LayerPanels>,
}

#[derive(Debug)]
pub(super) struct LayerPanels {
    pub(super) qkv: Panels,
    pub(super) out: Panels,
    pub(super) up: Panels,
    pub(super) down: Panels,
}

#[derive(Debug)]
pub(super) struct NormWeights {
    pub(super) weight: Vec<f32>,
    pub(super) bias: Option<Vec<f32>>,
    pub(super) eps: f32,
}

#[derive(Debug)]
pub(super) struct LayerWeights {
    pub(super) path: String,
    pub(super) attention_norm: Option<NormWeights>,
    pub(super) shape: EncoderAttentionShape,
    pub(super) rope: Option<usize>,
    pub(super) qkv: LinearWeight,
    pub(super) out: LinearWeight,
    pub(super) mlp_norm: NormWeights,
    pub(super) up: LinearWeight,
    pub(super) down: LinearWeight,
    /// Channels between `up` and `down`.
    pub(super) width: usize,
    pub(super) activation: MlpActivation,
}

impl LayerWeights {
    /// The matrices, and the order in which products want their rows.
    fn matrices(&self) -> [(&Matrix, RowOrder); 4] {
        let up = match self.activation {
            MlpActivation::GeluGated => RowOrder::Gated,
            MlpActivation::Relu => RowOrder::Plain,
        };
        let plain = |linear| (linear, RowOrder::Plain);
        [plain(&self.qkv.weight), plain(&self.out.weight), (&self.up.weight, up), plain(&self.down.weight)]
    }
}

impl LayaModel {
    /// Resolves the weights of a checked model. Small tensors are widened; matrices stay as stored.
    pub fn load(laya: Laya, weights: &dyn Weights) -> Result<Self, Error> {
        let mut loader = Loader::of_tensors(weights);
        let layers = laya.encoder.layers.iter().map(|l| layer(&mut loader, l)).collect::<Result<_, _>>()?;
        let head = laya.head.iter().map(|l| layer(&mut loader, l)).collect::<Result<_, _>>()?;
        Ok(Self {
            embedding: Matrix::new(laya.encoder.embedding.load(weights)?),
            embedding_norm: norm(&loader, &laya.encoder.embedding_norm)?,
            layers,
            final_norm: norm(&loader, &laya.encoder.final_norm)?,
            kinds: loader.values(&laya.kind_embedding)?,
            head,
            scorer_norm: norm(&loader, &laya.scorer.norm)?,
            scorer_dense: loader.linear(&laya.scorer.dense)?,
            scorer_out: loader.linear(&laya.scorer.out)?,
            action: ActionWeights::load(&loader, &laya.action)?,
            ropes: loader.ropes,
            packed: Default::default(),
            laya,
        })
    }

    /// The layers' matrices laid out for f32 products, or for bf16 ones if `paired`. The first call copies them and gives the pages
    /// of the file back to the system.
    pub(super) fn packed(&self, context: &Context, paired: bool) -> Result<&Packed, Error> {
        let place = &self.packed[usize::from(paired)];
        if place.get().is_none() {
            // Whoever comes first lays out the same.
            let _ = place.set(self.pack(context, paired)?);
        }
        Ok(place.get().expect("set above"))
    }

    fn pack(&self, context: &Context, paired: bool) -> Result<Packed, Error> {
        let layers = || self.layers.iter().chain(&self.head);
        let sizes: Vec<usize> = layers()
            .flat_map(LayerWeights::matrices)
            .map(|(matrix, order)| Panels::size(matrix.view(), PanelPlan { order, paired }))
            .collect();
        let mut arena = Arena::reserve(&sizes)
            .map_err(|source| Error::Memory { mib: sizes.iter().sum::<usize>() >> 20, source })?;
        let mut lay = |layer: &LayerWeights| {
            let [qkv, out, up, down] = layer.matrices().map(|(matrix, order)| {
                let plan = PanelPlan { order, paired };
                let panels =
                    Panels::new(context, matrix.view(), plan, |len, fill| arena.push_with(len, fill));
                matrix.release();
                panels.expect("the arena was reserved for this")
            });
            LayerPanels { qkv, out, up, down }
        };
        let layers = self.layers.iter().map(&mut lay).collect();
        Ok(Packed { layers, head: self.head.iter().map(&mut lay).collect() })
    }

    /// The description the model was loaded from.
    pub fn laya(&self) -> &Laya {
        &self.laya
    }
}

fn layer(loader: &mut Loader<'_>, layer: &EncoderLayer) -> Result<LayerWeights, Error> {
    let SelfAttention { heads, head_dim, radius, .. } = layer.attention;
    Ok(LayerWeights {
        path: layer.path.clone(),
        attention_norm: layer.attention_norm.as_ref().map(|n| norm(loader, n)).transpose()?,
        shape: EncoderAttentionShape { heads, dim: head_dim, radius },
        rope: layer.attention.rope.map(|rope| loader.rope(rope)),
        qkv: loader.linear(&layer.attention.qkv)?,
        out: loader.linear(&layer.attention.out)?,
        mlp_norm: norm(loader, &layer.mlp_norm)?,
        up: loader.linear(&layer.mlp.up)?,
        down: loader.linear(&layer.mlp.down)?,
        width: layer.mlp.down.weight.shape[1],
        activation: layer.mlp.activation,
    })
}

fn norm(loader: &Loader<'_>, norm: &LayerNorm) -> Result<NormWeights, Error> {
    Ok(NormWeights {
        weight: loader.values(&norm.weight)?,
        bias: norm.bias.as_ref().map(|b| loader.values(b)).transpose()?,
        eps: norm.eps,
    })
}
