//! What was measured on the engine and published, by the profiles that are made of it.

#![allow(clippy::unwrap_used, reason = "a failed expectation is a failed test")]

mod m1;
mod m4;

use std::collections::BTreeMap;

use anemone_emulator::{Emulator, Profile};
use anemone_mil::{
    Array, DataType, Executor, FunctionBuilder, Program, States, TensorType, Value, VarId, Weight, WeightId,
    WeightSource, write_package,
};
use half::f16;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};

pub(crate) fn fp16(v: f64) -> f32 {
    f16::from_f64(v).to_f32()
}

pub(crate) fn array(shape: &[usize], data: Vec<f32>) -> Array {
    assert_eq!(shape.iter().product::<usize>(), data.len());
    Array { shape: shape.to_vec(), data }
}

/// Normal numbers in fp16.
pub(crate) fn normal(seed: u64, deviation: f64, count: usize) -> Vec<f32> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut uniform = || (f64::from(random.next_u32()) + 0.5) / f64::from(u32::MAX);
    (0..count)
        .map(|_| {
            let (a, b) = (uniform(), uniform());
            fp16(deviation * (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos())
        })
        .collect()
}

/// A function under construction, with its weights.
pub(crate) struct Graph {
    b: FunctionBuilder,
    weights: Vec<Weight>,
}

impl Graph {
    pub(crate) fn op(&mut self, kind: &str, name: &str, inputs: &[(&str, anemone_mil::Arg)]) -> VarId {
        self.b.op(kind, name, inputs).unwrap()
    }

    pub(crate) fn split(&mut self, name: &str, inputs: &[(&str, anemone_mil::Arg)]) -> Vec<VarId> {
        self.b.ops("split", name, inputs, &["part_0", "part_1"]).unwrap()
    }

    /// A weight of the package, so that products take the path of stored weights.
    pub(crate) fn weight(&mut self, name: &str, shape: &[usize], values: &[f32]) -> VarId {
        let bytes: Vec<u8> = values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect();
        let ty = TensorType::fp16(shape);
        let id = WeightId(self.weights.len());
        self.weights.push(Weight {
            name: name.into(),
            ty: ty.clone(),
            source: WeightSource::Bytes(bytes.into()),
        });
        self.b.constant(name, Value::Weight(ty, id)).unwrap()
    }

    /// A 1×1 convolution with `weight [rows, channels]`.
    pub(crate) fn conv(
        &mut self,
        name: &str,
        x: VarId,
        rows: usize,
        weight: &[f32],
        bias: Option<f32>,
    ) -> VarId {
        let channels = weight.len() / rows;
        let w = self.weight(&format!("{name}_weight"), &[rows, channels, 1, 1], weight);
        let mut inputs = vec![("x", x.into()), ("weight", w.into())];
        if let Some(bias) = bias {
            inputs.push(("bias", self.weight(&format!("{name}_bias"), &[rows], &vec![bias; rows]).into()));
        }
        self.op("conv", name, &inputs)
    }

    pub(crate) fn times(&mut self, name: &str, x: VarId, factor: f32) -> VarId {
        let factor = Value::float(DataType::Float16, factor);
        self.op("mul", name, &[("x", x.into()), ("y", factor.into())])
    }
}

/// What a graph over fp16 inputs gives in a profile.
pub(crate) fn run(
    profile: &str,
    inputs: &[&Array],
    build: &dyn Fn(&mut Graph, &[VarId]) -> VarId,
) -> Vec<f32> {
    let mut g = Graph { b: FunctionBuilder::new("main", 9), weights: Vec::new() };
    let names: Vec<String> = (0..inputs.len()).map(|i| format!("in_{i}")).collect();
    let ids: Vec<VarId> = names
        .iter()
        .zip(inputs)
        .map(|(name, a)| g.b.input(name, TensorType::fp16(a.shape.clone())).unwrap())
        .collect();
    let out = build(&mut g, &ids);
    let function = g.b.finish(&[out]).unwrap();
    let program = Program {
        spec_version: 9,
        functions: [("main".to_string(), function)].into(),
        default_function: "main".into(),
        weights: g.weights,
        metadata: BTreeMap::default(),
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p.mlpackage");
    write_package(&program, &path).unwrap();
    let profile: Profile = profile.parse().unwrap();
    let mut function = Emulator::new(profile, 2).load(&path, "main").unwrap();
    let given: Vec<(&str, &Array)> = names.iter().map(String::as_str).zip(inputs.iter().copied()).collect();
    function.predict(&given, &mut States::new()).unwrap().remove(0).data
}
