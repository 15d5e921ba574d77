use anemone_checkpoint::{Weights, scan_non_finite};
use anemone_kernels::{AttentionShape, MatrixView};
use anemone_models::{Ffn, Gated, Linear, Mixer, Norm, Rope, Stack, WeightRef};

use crate::matrix::Matrix;
use crate::promote::Promotion;
use crate::{Error, Layout};

/// A stack with its weights resolved, ready to run; immutable and shared by engines.
#[derive(Debug)]
pub struct Model {
    pub(crate) stack: Stack,
    /// The embedding, where it is not the head or the head is palettized.
    embedding: Option<Matrix>,
    pub(crate) blocks: Vec<Block>,
    pub(crate) final_norm: NormWeight,
    pub(crate) head: Matrix,
    pub(crate) promotion: Promotion,
    /// Distinct rotations, each layer refers to one.
    pub(crate) ropes: Vec<RopeTable>,
}

#[derive(Debug)]
pub(crate) struct RopeTable {
    rope: Rope,
    pub(crate) frequencies: Vec<f32>,
}

#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) path: String,
    pub(crate) mixer_norm: NormWeight,
    pub(crate) mixer: MixerWeights,
    pub(crate) post_mixer_norm: Option<NormWeight>,
    pub(crate) ffn_norm: NormWeight,
    pub(crate) ffn: FfnWeights,
    pub(crate) post_ffn_norm: Option<NormWeight>,
}

#[derive(Debug)]
pub(crate) struct NormWeight {
    pub(crate) weight: Vec<f32>,
    pub(crate) eps: f32,
}

#[derive(Debug)]
pub(crate) struct LinearWeight {
    pub(crate) name: String,
    pub(crate) weight: Matrix,
    pub(crate) bias: Option<Vec<f32>>,
}

#[derive(Debug)]
pub(crate) enum MixerWeights {
    Attention(Box<AttentionWeights>),
    ShortConv(ConvWeights),
}

#[derive(Debug)]
pub(crate) struct AttentionWeights {
    pub(crate) shape: AttentionShape,
    pub(crate) q: LinearWeight,
    pub(crate) k: LinearWeight,
    pub(crate) v: LinearWeight,
    pub(crate) o: LinearWeight,
    pub(crate) gate: Option<LinearWeight>,
    pub(crate) q_norm: Option<NormWeight>,
    pub(crate) k_norm: Option<NormWeight>,
    pub(crate) rope: usize,
    pub(crate) window: Option<usize>,
}

#[derive(Debug)]
pub(crate) struct ConvWeights {
    pub(crate) in_proj: LinearWeight,
    pub(crate) out_proj: LinearWeight,
    /// `[taps, hidden]`.
    pub(crate) taps: Vec<f32>,
    pub(crate) bias: Option<Vec<f32>>,
    /// Earlier tokens the filter needs.
    pub(crate) reach: usize,
}

#[derive(Debug)]
pub(crate) enum FfnWeights {
    Gated(GatedWeights),
    Moe(MoeWeights),
}

#[derive(Debug)]
pub(crate) struct GatedWeights {
    pub(crate) gate: LinearWeight,
    pub(crate) up: LinearWeight,
    pub(crate) down: LinearWeight,
    pub(crate) width: usize,
}

#[derive(Debug)]
pub(crate) struct MoeWeights {
    pub(crate) router: LinearWeight,
    pub(crate) bias: Option<Vec<f32>>,
    pub(crate) experts: Vec<GatedWeights>,
    pub(crate) top_k: usize,
    pub(crate) normalise: bool,
    pub(crate) scale: f32,
}

pub(crate) struct Loader<'a> {
    weights: &'a dyn Weights,
    /// Whether matrices may stay indices into tables.
    palettized: bool,
    pub(crate) ropes: Vec<RopeTable>,
}

impl Model {
    /// Resolves the weights of a checked stack. Small tensors are widened; matrices stay as stored.
    pub fn load(stack: Stack, weights: &dyn Weights, layout: Layout) -> Result<Self, Error> {
        let mut loader = Loader::new(weights);
        let tied = stack.is_tied();
        let head = Matrix::load(if tied { &stack.embedding } else { &stack.head }, weights)?;
        let shared = tied && (head.tensor().is_some() || head.is_coded());
        let embedding = if shared { None } else { Some(Matrix::rows_of(&stack.embedding, weights)?) };
        let blocks = stack.blocks.iter().map(|b| loader.block(b)).collect::<Result<_, _>>()?;
        let final_norm = loader.norm(&stack.final_norm)?;
        let promotion = Promotion::new(layout);
        let model = Self { embedding, blocks, final_norm, head, promotion, ropes: loader.ropes, stack };
        model.lay_out()?;
        Ok(model)
    }

    /// The embedding matrix, `[vocab_size, hidden]`.
    pub(crate) fn embedding(&self) -> MatrixView<'_> {
        self.embedding.as_ref().map_or_else(|| self.head.stored_view(), Matrix::view)
    }

    /// The embedding where it is a matrix of its own.
    pub(crate) fn embedding_matrix(&self) -> Option<&Matrix> {
        self.embedding.as_ref()
    }

    /// Whether any matrix is in coded blocks.
    pub fn is_coded(&self) -> bool {
        self.matrices().iter().any(|m| m.is_coded())
    }

    /// Name of the head's weight.
    pub(crate) fn head_name(&self) -> &str {
        if self.stack.is_tied() { &self.stack.embedding.name } else { &self.stack.head.name }
    }

    /// The description the model was loaded from.
    pub fn stack(&self) -> &Stack {
        &self.stack
    }

    /// Brings the pages of mapped matrices in before a pass needs them, unless they would crowd the memory.
    pub fn touch(&self) {
        // What was laid out at load is not read from the files again.
        let matrices: Vec<&Matrix> = self.matrices().into_iter().filter(|m| !m.is_coded()).collect();
        let bytes: u64 = matrices.iter().map(|m| m.len() as u64).sum();
        if crate::engine::available_mib().is_some_and(|free| bytes >> 20 < free) {
            for matrix in matrices {
                matrix.touch();
            }
        }
    }

    /// Bytes of weights a decode step reads as they lie now: every matrix once, one embedding row, only the chosen experts.
    pub fn bytes_per_token(&self) -> u64 {
        let size = |l: &LinearWeight| l.weight.bytes_read() as u64;
        let gated = |g: &GatedWeights| size(&g.gate) + size(&g.up) + size(&g.down);
        let mut bytes = self.head.bytes_read() as u64;
        for block in &self.blocks {
            bytes += match &block.mixer {
                MixerWeights::Attention(a) => {
                    [&a.q, &a.k, &a.v, &a.o].into_iter().chain(&a.gate).map(size).sum::<u64>()
                }
                MixerWeights::ShortConv(c) => size(&c.in_proj) + size(&c.out_proj) + 4 * c.taps.len() as u64,
            };
            bytes += match &block.ffn {
                FfnWeights::Gated(g) => gated(g),
                FfnWeights::Moe(m) => {
                    size(&m.router) + m.experts.iter().take(m.top_k).map(gated).sum::<u64>()
                }
            };
        }
        bytes
    }

    /// The first matrix that holds NaN or infinity, as an error; the small tensors were checked at load.
    pub(crate) fn find_non_finite(&self) -> Option<Error> {
        let bad = |name: &str, index: Option<usize>| {
            index.map(|index| Error::NonFiniteWeight { name: name.to_string(), index })
        };
        let embedding = self.embedding.as_ref().and_then(Matrix::find_non_finite);
        bad(&self.stack.embedding.name, embedding)
            .or_else(|| self.linears().into_iter().find_map(|l| bad(&l.name, l.weight.find_non_finite())))
            .or_else(|| bad(self.head_name(), self.head.find_non_finite()))
    }

    /// Every linear map of the blocks, in the order a pass reads them.
    fn linears(&self) -> Vec<&LinearWeight> {
        let mut all = Vec::new();
        for block in &self.blocks {
            match &block.mixer {
                MixerWeights::Attention(a) => {
                    all.extend([&a.q, &a.k, &a.v].into_iter().chain(&a.gate).chain([&a.o]));
                }
                MixerWeights::ShortConv(c) => all.extend([&c.in_proj, &c.out_proj]),
            }
            match &block.ffn {
                FfnWeights::Gated(g) => all.extend([&g.gate, &g.up, &g.down]),
                FfnWeights::Moe(m) => {
                    all.push(&m.router);
                    all.extend(m.experts.iter().flat_map(|g| [&g.gate, &g.up, &g.down]));
                }
            }
        }
        all
    }

    /// Every matrix a pass multiplies by, in the order it reads them.
    pub(crate) fn matrices(&self) -> Vec<&Matrix> {
        self.linears().into_iter().map(|l| &l.weight).chain([&self.head]).collect()
    }
}

impl<'a> Loader<'a> {
    pub(crate) fn new(weights: &'a dyn Weights) -> Self {
        Self { weights, palettized: true, ropes: Vec::new() }
    }

    /// A loader of tensors alone, for products that lay their weights out anew.
    pub(crate) fn of_tensors(weights: &'a dyn Weights) -> Self {
        Self { palettized: false, ..Self::new(weights) }
    }

    fn block(&mut self, block: &anemone_models::Block) -> Result<Block, Error> {
        Ok(Block {
            path: block.path.clone(),
            mixer_norm: self.norm(&block.mixer_norm)?,
            mixer: self.mixer(&block.mixer)?,
            post_mixer_norm: block.post_mixer_norm.as_ref().map(|n| self.norm(n)).transpose()?,
            ffn_norm: self.norm(&block.ffn_norm)?,
            ffn: match &block.ffn {
                Ffn::Gated(g) => FfnWeights::Gated(self.gated(g)?),
                Ffn::Moe(m) => FfnWeights::Moe(MoeWeights {
                    router: self.linear(&m.router)?,
                    bias: m.expert_bias.as_ref().map(|w| self.values(w)).transpose()?,
                    experts: m.experts.iter().map(|g| self.gated(g)).collect::<Result<_, _>>()?,
                    top_k: m.top_k,
                    normalise: m.normalise,
                    scale: m.scale,
                }),
            },
            post_ffn_norm: block.post_ffn_norm.as_ref().map(|n| self.norm(n)).transpose()?,
        })
    }

    fn mixer(&mut self, mixer: &Mixer) -> Result<MixerWeights, Error> {
        Ok(match mixer {
            Mixer::Attention(a) => MixerWeights::Attention(Box::new(AttentionWeights {
                shape: AttentionShape { heads: a.heads, kv_heads: a.kv_heads, dim: a.head_dim },
                q: self.linear(&a.q)?,
                k: self.linear(&a.k)?,
                v: self.linear(&a.v)?,
                o: self.linear(&a.o)?,
                gate: a.gate.as_ref().map(|l| self.linear(l)).transpose()?,
                q_norm: a.q_norm.as_ref().map(|n| self.norm(n)).transpose()?,
                k_norm: a.k_norm.as_ref().map(|n| self.norm(n)).transpose()?,
                rope: self.rope(a.rope),
                window: a.window,
            })),
            Mixer::ShortConv(c) => {
                let kernel = self.values(&c.kernel)?;
                let hidden = kernel.len() / c.taps;
                // [hidden, taps] to [taps, hidden]: one tap of all channels is then contiguous.
                let taps = (0..c.taps).flat_map(|j| (0..hidden).map(move |h| (h, j)));
                MixerWeights::ShortConv(ConvWeights {
                    in_proj: self.linear(&c.in_proj)?,
                    out_proj: self.linear(&c.out_proj)?,
                    taps: taps.map(|(h, j)| kernel[h * c.taps + j]).collect(),
                    bias: c.kernel_bias.as_ref().map(|w| self.values(w)).transpose()?,
                    reach: c.taps - 1,
                })
            }
        })
    }

    pub(crate) fn rope(&mut self, rope: Rope) -> usize {
        if let Some(i) = self.ropes.iter().position(|t| t.rope == rope) {
            return i;
        }
        self.ropes.push(RopeTable { rope, frequencies: rope.frequencies() });
        self.ropes.len() - 1
    }

    fn gated(&self, gated: &Gated) -> Result<GatedWeights, Error> {
        Ok(GatedWeights {
            gate: self.linear(&gated.gate)?,
            up: self.linear(&gated.up)?,
            down: self.linear(&gated.down)?,
            width: gated.gate.out_features(),
        })
    }

    pub(crate) fn linear(&self, linear: &Linear) -> Result<LinearWeight, Error> {
        Ok(LinearWeight {
            name: linear.weight.name.clone(),
            weight: if self.palettized {
                Matrix::load(&linear.weight, self.weights)?
            } else {
                Matrix::new(linear.weight.load(self.weights)?)
            },
            bias: linear.bias.as_ref().map(|b| self.values(b)).transpose()?,
        })
    }

    fn norm(&self, norm: &Norm) -> Result<NormWeight, Error> {
        Ok(NormWeight { weight: self.values(&norm.weight)?, eps: norm.eps })
    }

    pub(crate) fn values(&self, weight: &WeightRef) -> Result<Vec<f32>, Error> {
        let tensor = weight.load(self.weights)?;
        if let Some(index) = scan_non_finite(&tensor) {
            return Err(Error::NonFiniteWeight { name: weight.name.clone(), index });
        }
        let tensor_error = |source| anemone_models::Error::Tensor { name: weight.name.clone(), source };
        Ok(tensor.to_f32().map_err(tensor_error)?)
    }
}
