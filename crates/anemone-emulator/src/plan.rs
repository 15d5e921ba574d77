//! A function ready to run.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anemone_kernels::Context;
use anemone_mil::{
    Array, DataType, Executable, ExecutorError, Function, Op, Signature, States, TensorType, Type, VarId,
};

use crate::constants::Constants;
use crate::emulator::{Observed, Tap};
use crate::site::Site;
use crate::value::Rules;
use crate::value::{Buffers, Call, Data, Run};
use crate::{Error, ops};

/// Elements that may be held at once: 8 GiB of f32.
pub(crate) const LIMIT: usize = 1 << 31;

pub(crate) struct Plan {
    function: Function,
    signature: Signature,
    rules: Rules,
    /// Name of its package, without an extension.
    package: String,
    context: Arc<Context>,
    tap: Option<Tap>,
    constants: BTreeMap<VarId, Data>,
    steps: Vec<Step>,
    buffers: Buffers,
}

struct Step {
    /// Index into the function's operations.
    op: usize,
    what: What,
    inputs: Vec<VarId>,
    /// Values nobody needs afterwards.
    dead: Vec<VarId>,
}

enum What {
    Compute(Run),
    ReadState(VarId),
    WriteState(VarId),
}

impl Plan {
    pub(crate) fn new(
        function: &Function,
        constants: &mut Constants,
        package: String,
        rules: Rules,
        context: Arc<Context>,
        tap: Option<Tap>,
    ) -> Result<Self, Error> {
        let mut steps = Vec::new();
        constants.start_function();
        for (index, op) in function.ops.iter().enumerate() {
            if op.kind == "const" {
                continue;
            }
            let error =
                |problem: String| Error::Op { op: op.kind.clone(), at: name_of(function, op), problem };
            let site =
                Site { op, function, constants: RefCell::new(&mut *constants), slots: RefCell::default() };
            if op.kind.starts_with("constexpr_") {
                ops::expand(&site).map_err(error)?;
                continue;
            }
            let what = match op.kind.as_str() {
                "read_state" => {
                    What::ReadState(state(op, "input").ok_or_else(|| error("has no state".into()))?)
                }
                "write_state" => {
                    site.slot("data").map_err(error)?;
                    What::WriteState(state(op, "input").ok_or_else(|| error("has no state".into()))?)
                }
                _ => What::Compute(ops::prepare(&site).map_err(error)?),
            };
            let inputs = site.slots.into_inner();
            steps.push(Step { op: index, what, inputs, dead: Vec::new() });
        }
        let mut known = BTreeMap::new();
        let needed = steps.iter().flat_map(|s| &s.inputs).chain(&function.outputs);
        for id in needed {
            let var = function.var(*id);
            if !known.contains_key(id)
                && let Some(data) = constants.operand(*id, var)
            {
                let constant = |problem| Error::Constant { name: var.name.clone(), problem };
                known.insert(*id, data.map_err(constant)?);
            }
        }
        let mut plan = Self {
            signature: Signature::of(function),
            function: function.clone(),
            rules,
            package,
            context,
            tap,
            constants: known,
            steps,
            buffers: Buffers::default(),
        };
        plan.find_last_uses();
        plan.check_memory()?;
        Ok(plan)
    }

    fn find_last_uses(&mut self) {
        let mut used: BTreeSet<VarId> = self.function.outputs.iter().copied().collect();
        for step in self.steps.iter_mut().rev() {
            let results = &self.function.ops[step.op].outputs;
            for id in step.inputs.iter().chain(results) {
                if !self.constants.contains_key(id) && used.insert(*id) {
                    step.dead.push(*id);
                }
            }
        }
    }

    fn check_memory(&self) -> Result<(), Error> {
        let size = |id: &VarId| self.function.var(*id).ty.tensor().numel();
        let mut held = self.function.inputs.iter().map(size).fold(0, usize::saturating_add);
        for step in &self.steps {
            let op = &self.function.ops[step.op];
            held = op.outputs.iter().map(size).fold(held, usize::saturating_add);
            if held > LIMIT {
                let (function, at) = (self.function.name.clone(), name_of(&self.function, op));
                return Err(Error::Memory { function, at, elements: held, limit: LIMIT });
            }
            held = held.saturating_sub(step.dead.iter().map(size).fold(0, usize::saturating_add));
        }
        Ok(())
    }

    fn run(&mut self, inputs: &[(&str, &Array)], states: &mut States) -> Result<Vec<Array>, Error> {
        let mut values: Vec<Option<Data>> = vec![None; self.function.vars.len()];
        for (id, data) in &self.constants {
            values[id.0] = Some(data.clone());
        }
        self.bind(inputs, &mut values)?;
        let mut live_states = self.open_states(states)?;
        let mut written = BTreeSet::new();
        let buffers = RefCell::new(std::mem::take(&mut self.buffers));
        for step in &self.steps {
            let op = &self.function.ops[step.op];
            let error =
                |problem: String| Error::Op { op: op.kind.clone(), at: name_of(&self.function, op), problem };
            let given = step.inputs.iter().map(|id| values[id.0].clone());
            let given: Option<Vec<Data>> = given.collect();
            let given = given.ok_or_else(|| error("uses a value before it is there".into()))?;
            match &step.what {
                What::Compute(run) => {
                    let result = op.outputs.first().map(|id| self.function.var(*id));
                    let call = Call {
                        inputs: &given,
                        context: &self.context,
                        buffers: &buffers,
                        rules: &self.rules,
                        half: result.is_some_and(|var| var.ty.tensor().dtype == DataType::Float16),
                        label: [&self.package, result.map_or("", |var| &var.name)],
                    };
                    let results = run(&call).map_err(error)?;
                    for (id, data) in op.outputs.iter().zip(results) {
                        values[id.0] = Some(self.finish(op, *id, data));
                    }
                }
                What::ReadState(state) => {
                    values[op.outputs[0].0] = live_states.get(state).cloned();
                }
                What::WriteState(state) => {
                    live_states.insert(*state, given[0].clone());
                    written.insert(*state);
                }
            }
            drop(given);
            for id in &step.dead {
                if let Some(data) = values[id.0].take() {
                    buffers.borrow_mut().give(data);
                }
            }
        }
        for id in written {
            let var = self.function.var(id);
            let data = live_states[&id].to_f32();
            states.insert(var.name.clone(), Array { shape: var.ty.tensor().shape.clone(), data });
        }
        let mut outputs = Vec::new();
        for id in &self.function.outputs {
            let var = self.function.var(*id);
            let data = values[id.0].as_ref().map(Data::to_f32).unwrap_or_default();
            outputs.push(Array { shape: var.ty.tensor().shape.clone(), data });
        }
        for data in values.into_iter().flatten() {
            buffers.borrow_mut().give(data);
        }
        self.buffers = buffers.into_inner();
        Ok(outputs)
    }

    /// Rounds a result to its declared type and shows it.
    fn finish(&self, op: &Op, id: VarId, mut data: Data) -> Data {
        let var = self.function.var(id);
        let ty = var.ty.tensor();
        // What is shared is a rearrangement of values that are rounded already.
        if let Data::Floats(values) = &mut data
            && let Some(values) = Arc::get_mut(values)
            && !ops::moves_only(&op.kind)
        {
            self.rules.profile.round(ty.dtype, values);
        }
        if let Some(tap) = &self.tap {
            tap(&Observed { op: &op.kind, name: &var.name, ty, values: &data.to_f32() });
        }
        data
    }

    fn bind(&self, inputs: &[(&str, &Array)], values: &mut [Option<Data>]) -> Result<(), Error> {
        let error = |name: &str, problem: String| Error::Input { name: name.to_string(), problem };
        for (name, array) in inputs {
            let known = self.function.inputs.iter().find(|id| {
                let var = self.function.var(**id);
                var.name == *name && matches!(var.ty, Type::Tensor(_))
            });
            let id = known.ok_or_else(|| {
                let names: Vec<_> = self.signature.inputs.iter().map(|(n, _)| format!("`{n}`")).collect();
                let (function, names) = (&self.function.name, names.join(", "));
                error(name, format!("is not an input of function `{function}`; those are {names}"))
            })?;
            if values[id.0].is_some() {
                return Err(error(name, "is given twice".into()));
            }
            let data = self.import(self.function.var(*id).ty.tensor(), array).map_err(|p| error(name, p))?;
            values[id.0] = Some(data);
        }
        match self.signature.inputs.iter().find(|(name, _)| inputs.iter().all(|(n, _)| n != name)) {
            Some((name, ty)) => Err(error(name, format!("is missing; give {ty}"))),
            None => Ok(()),
        }
    }

    /// A host array as a value of a declared type.
    fn import(&self, ty: &TensorType, array: &Array) -> Result<Data, String> {
        if array.shape != ty.shape || array.data.len() != ty.numel() {
            return Err(format!("is {:?} with {} elements, expected {ty}", array.shape, array.data.len()));
        }
        if ty.dtype.is_float() {
            let mut data = array.data.clone();
            self.rules.profile.round(ty.dtype, &mut data);
            return Ok(Data::floats(data));
        }
        let (low, high) =
            range(ty.dtype).ok_or_else(|| format!("is {}, which has no host form", ty.dtype))?;
        let whole = |v: &f32| {
            let fits = v.fract() == 0.0 && f64::from(*v) >= low && f64::from(*v) <= high;
            if fits { Ok(*v as i32) } else { Err(format!("holds {v}, which is no {}", ty.dtype)) }
        };
        Ok(Data::ints(array.data.iter().map(whole).collect::<Result<_, _>>()?))
    }

    fn open_states(&self, states: &States) -> Result<BTreeMap<VarId, Data>, Error> {
        let mut open = BTreeMap::new();
        for id in &self.function.inputs {
            let var = self.function.var(*id);
            let Type::State(ty) = &var.ty else { continue };
            let data = match states.get(&var.name) {
                Some(array) => self
                    .import(ty, array)
                    .map_err(|problem| Error::State { name: var.name.clone(), problem })?,
                None if ty.dtype.is_float() => Data::floats(vec![0.0; ty.numel()]),
                None => Data::ints(vec![0; ty.numel()]),
            };
            open.insert(*id, data);
        }
        Ok(open)
    }
}

impl Executable for Plan {
    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn predict(
        &mut self,
        inputs: &[(&str, &Array)],
        states: &mut States,
    ) -> Result<Vec<Array>, ExecutorError> {
        Ok(self.run(inputs, states)?)
    }
}

fn name_of(function: &Function, op: &Op) -> String {
    let name = |id: &VarId| function.var(*id).name.clone();
    op.outputs.first().map(name).or_else(|| state(op, "input").as_ref().map(name)).unwrap_or_default()
}

fn state(op: &Op, input: &str) -> Option<VarId> {
    match op.inputs.get(input)? {
        anemone_mil::Arg::Var(id) => Some(*id),
        _ => None,
    }
}

fn range(dtype: DataType) -> Option<(f64, f64)> {
    Some(match dtype {
        DataType::Bool => (0.0, 1.0),
        DataType::Int8 => (f64::from(i8::MIN), f64::from(i8::MAX)),
        DataType::Uint8 => (0.0, f64::from(u8::MAX)),
        DataType::Int16 => (f64::from(i16::MIN), f64::from(i16::MAX)),
        DataType::Uint16 => (0.0, f64::from(u16::MAX)),
        DataType::Int32 => (f64::from(i32::MIN), f64::from(i32::MAX)),
        DataType::Uint32 => (0.0, f64::from(i32::MAX)),
        _ => return None,
    })
}
