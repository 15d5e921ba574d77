//! LFM2 and LFM2.5 with a mixture of experts (`model_type` `lfm2_moe`).

use crate::lfm2::Trunk;
use crate::parts::Names;
use crate::weights::Part;
use crate::{Config, Error, Ffn, Gated, Linear, Moe, Stack, WeightRef};

/// More experts than any model has; keeps a hostile file from asking for absurd memory.
const MAX_EXPERTS: usize = 1024;

pub(crate) fn stack(config: &Config<'_>, names: &Names<'_>) -> Result<Stack, Error> {
    let trunk = Trunk::read(config)?;
    let hidden = trunk.hidden;
    let dense_width = config.require(&["intermediate_size"])?;
    let width = config.require(&["moe_intermediate_size"])?;
    let experts = config.require(&["num_experts", "num_local_experts"])?;
    if experts > MAX_EXPERTS {
        return Err(config.error("num_experts", format!("is {experts}, more than {MAX_EXPERTS}")));
    }
    let top_k = config.require(&["num_experts_per_tok"])?;
    if top_k > experts {
        return Err(
            config.error("num_experts_per_tok", format!("is {top_k}, more than the {experts} experts"))
        );
    }
    let dense_layers = match config.get("num_dense_layers") {
        Some(v) if v.as_u64() == Some(0) => 0,
        _ => config.count("num_dense_layers")?.unwrap_or(0),
    };
    let with_bias = config.flag("use_expert_bias")?.unwrap_or(true);
    let normalise = config.flag("norm_topk_prob")?.unwrap_or(true);
    let scale = config.positive("routed_scaling_factor")?.unwrap_or(1.0) as f32;
    trunk.stack("lfm2_moe", config, names, |layer, i| {
        let module = format!("{layer}.feed_forward");
        if i < dense_layers {
            return Ok(Ffn::Gated(names.gated(&module, hidden, dense_width)));
        }
        let router = names.linear(&format!("{module}.gate"), experts, hidden, false);
        // Without it there is no such layer, and so no experts to list.
        if names.shape(&format!("{module}.gate.weight")).is_none() {
            return Err(Error::Missing(vec![router.weight.name]));
        }
        Ok(Ffn::Moe(Moe {
            router,
            expert_bias: with_bias.then(|| names.weight(&format!("{module}.expert_bias"), [experts])),
            experts: (0..experts).map(|e| expert(names, &module, e, experts, hidden, width)).collect(),
            top_k,
            normalise,
            scale,
        }))
    })
}

/// One expert, stored by itself or in the tensors transformers fuses (gate rows first, then up).
fn expert(names: &Names<'_>, module: &str, e: usize, experts: usize, hidden: usize, width: usize) -> Gated {
    let (gate_up, down) = (format!("{module}.experts.gate_up_proj"), format!("{module}.experts.down_proj"));
    if names.shape(&gate_up).is_none() {
        return names.gated(&format!("{module}.experts.{e}"), hidden, width);
    }
    let part = |name: &str, whole: [usize; 3], row, rows| Linear {
        weight: WeightRef {
            name: names.full(name),
            shape: [rows, whole[2]].into(),
            part: Some(Part { whole: whole.into(), index: e, row }),
        },
        bias: None,
    };
    Gated {
        gate: part(&gate_up, [experts, 2 * width, hidden], 0, width),
        up: part(&gate_up, [experts, 2 * width, hidden], width, width),
        down: part(&down, [experts, hidden, width], 0, hidden),
    }
}
