//! Core ML itself: every raw call of this crate. Compiled for Apple's systems only, where it has not been run yet.

#![allow(unsafe_code, reason = "messages to Objective-C objects")]

mod arrays;
mod plan;
mod power;

pub use power::Energy;

use std::path::Path;
use std::sync::mpsc::channel;

use anemone_mil::{Array, DataType, Signature, States, TensorType};
use block2::RcBlock;
use objc2::AnyThread as _;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::{AnyObject, ProtocolObject};
use objc2_core_ml::{
    MLComputeUnits, MLDictionaryFeatureProvider, MLFeatureProvider, MLFeatureValue, MLModel,
    MLModelConfiguration, MLMultiArray, MLOptimizationHints, MLPredictionOptions, MLReshapeFrequencyHint,
    MLSpecializationStrategy, MLState,
};
use objc2_foundation::{NSDictionary, NSError, NSProcessInfo, NSString, NSURL};

use crate::{Backend, ComputePlan, ComputeUnits, Failure, FailureKind};

/// Core ML of this machine.
#[derive(Debug, Default)]
pub struct System(());

/// Output buffers a model has in turn: the Neural Engine may still read one when the next call begins.
const BUFFERS: usize = 2;

/// A loaded function with the buffers its tensors live in.
pub struct SystemModel {
    model: Retained<MLModel>,
    inputs: Vec<Port>,
    provider: Retained<ProtocolObject<dyn MLFeatureProvider>>,
    outputs: Vec<(Vec<Port>, Retained<MLPredictionOptions>)>,
    state: Option<State>,
    turn: usize,
}

impl std::fmt::Debug for SystemModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SystemModel").field("model", &self.model).finish_non_exhaustive()
    }
}

/// States of a function, all in one object, with their names and types.
type State = (Retained<MLState>, Vec<(String, TensorType)>);

/// A tensor by name with its buffer.
struct Port {
    name: String,
    ty: TensorType,
    array: Retained<MLMultiArray>,
}

impl System {
    /// Core ML as this process has it; errors on a macOS that is too old.
    pub fn new() -> Result<Self, Failure> {
        // Other systems of Apple count their versions otherwise, and refuse packages that they do not know by themselves.
        if cfg!(target_os = "macos") {
            let (major, minor) = Self::version();
            crate::check_macos(major, minor)?;
        }
        Ok(Self::default())
    }

    /// Version of the system.
    pub fn version() -> (u64, u64) {
        let version = NSProcessInfo::processInfo().operatingSystemVersion();
        let part = |number: isize| u64::try_from(number).unwrap_or(0);
        (part(version.majorVersion), part(version.minorVersion))
    }
}

impl Backend for System {
    type Model = SystemModel;

    fn compile(&mut self, package: &Path, compiled: &Path) -> Result<(), Failure> {
        autoreleasepool(|_| {
            let url = url(package);
            let (done, made) = channel();
            let handler = RcBlock::new(move |url: *mut NSURL, error: *mut NSError| {
                // SAFETY: the handler gets an object or nil in each place, alive for its duration.
                let (url, error) = unsafe { (url.as_ref(), error.as_ref()) };
                let result = match url {
                    Some(url) => Ok(url.path().map(|path| path.to_string()).unwrap_or_default()),
                    None => Err(failure(FailureKind::Compile, error)),
                };
                let _ = done.send(result);
            });
            // SAFETY: the URL names a file; the handler is sent to once, from any thread, and owns all that it uses.
            unsafe { MLModel::compileModelAtURL_completionHandler(&url, &handler) };
            // Core ML has a reference of its own; when it lets go of that without a call, the sender goes and the wait ends.
            drop(handler);
            let lost = || Failure::new(FailureKind::Compile, None, "the compiler did not answer");
            let temporary = made.recv().map_err(|_| lost())??;
            relocate(Path::new(&temporary), compiled).map_err(|error| {
                Failure::classify(
                    FailureKind::Compile,
                    i64::from(error.raw_os_error().unwrap_or(0)),
                    &error.to_string(),
                )
            })
        })
    }

    fn load(
        &mut self,
        compiled: &Path,
        function: &str,
        signature: &Signature,
        units: ComputeUnits,
    ) -> Result<SystemModel, Failure> {
        autoreleasepool(|_| {
            let configuration = configuration(function, units);
            // SAFETY: the URL names a compiled model, which Core ML checks; the configuration was made for it here.
            let model = unsafe {
                MLModel::modelWithContentsOfURL_configuration_error(&url(compiled), &configuration)
            };
            let model = model.map_err(|error| failure(FailureKind::Load, Some(&error)))?;
            SystemModel::new(model, signature)
        })
    }

    fn plan(
        &mut self,
        compiled: &Path,
        function: &str,
        units: ComputeUnits,
    ) -> Result<Option<ComputePlan>, Failure> {
        autoreleasepool(|_| plan::of(&url(compiled), &configuration(function, units), function))
    }

    fn predict(
        &mut self,
        model: &mut SystemModel,
        inputs: &[(String, Array)],
        states: &mut States,
    ) -> Result<Vec<Array>, Failure> {
        autoreleasepool(|_| model.predict(inputs, states))
    }
}

impl SystemModel {
    fn new(model: Retained<MLModel>, signature: &Signature) -> Result<Self, Failure> {
        let port = |(name, ty): &(String, TensorType)| {
            Ok(Port { name: name.clone(), ty: ty.clone(), array: arrays::buffer(ty)? })
        };
        let ports =
            |all: &[(String, TensorType)]| all.iter().map(port).collect::<Result<Vec<Port>, Failure>>();
        let inputs = ports(&signature.inputs)?;
        let provider = provider(&inputs)?;
        let mut outputs = Vec::with_capacity(BUFFERS);
        for _ in 0..BUFFERS {
            let buffers = ports(&signature.outputs)?;
            let names: Vec<Retained<NSString>> =
                buffers.iter().map(|port| NSString::from_str(&port.name)).collect();
            let names: Vec<&NSString> = names.iter().map(|name| &**name).collect();
            let values: Vec<&AnyObject> = buffers.iter().map(|port| port.array.as_ref()).collect();
            let backings = NSDictionary::<NSString, AnyObject>::from_slices(&names, &values);
            // SAFETY: the backings are arrays of the types and shapes the model declares, and live as long as the options.
            let options = unsafe {
                let options = MLPredictionOptions::new();
                options.setOutputBackings(&backings);
                options
            };
            outputs.push((buffers, options));
        }
        // SAFETY: a model without states has none to make one of, so it is asked only when it has.
        let state =
            (!signature.states.is_empty()).then(|| (unsafe { model.newState() }, signature.states.clone()));
        Ok(Self { model, inputs, provider, outputs, state, turn: 0 })
    }

    fn predict(&mut self, inputs: &[(String, Array)], states: &mut States) -> Result<Vec<Array>, Failure> {
        for port in &self.inputs {
            let given = inputs.iter().find(|(name, _)| *name == port.name);
            let missing =
                || Failure::new(FailureKind::Predict, None, format!("input '{}' is missing", port.name));
            arrays::write(&port.array, &port.ty, &given.ok_or_else(missing)?.1.data)?;
        }
        if let Some((state, types)) = &self.state {
            for (name, ty) in types {
                let values = states.get(name).map(|array| array.data.as_slice());
                arrays::with_state(state, name, |array| match values {
                    Some(values) => arrays::write(array, ty, values),
                    None => arrays::write(array, ty, &vec![0.0; ty.shape.iter().product()]),
                })?;
            }
        }
        let (buffers, options) = &self.outputs[self.turn];
        self.turn = (self.turn + 1) % BUFFERS;
        // SAFETY: the provider has every input of the model in its type and shape; no other call is at work on this model, which
        // one thread owns.
        let result = unsafe {
            match &self.state {
                None => self.model.predictionFromFeatures_options_error(&self.provider, options),
                Some((state, _)) => {
                    self.model.predictionFromFeatures_usingState_options_error(&self.provider, state, options)
                }
            }
        };
        let features = result.map_err(|error| failure(FailureKind::Predict, Some(&error)))?;
        if let Some((state, types)) = &self.state {
            for (name, ty) in types {
                let mut values = Vec::new();
                arrays::with_state(state, name, |array| {
                    values = arrays::read(array, ty)?;
                    Ok(())
                })?;
                states.insert(name.clone(), Array { shape: ty.shape.clone(), data: values });
            }
        }
        buffers
            .iter()
            .map(|port| {
                // A model may decline a backing and give an array of its own.
                // SAFETY: the provider and its values are alive here.
                let own = unsafe {
                    features
                        .featureValueForName(&NSString::from_str(&port.name))
                        .and_then(|v| v.multiArrayValue())
                };
                let missing =
                    || Failure::new(FailureKind::Predict, None, format!("output '{}' is missing", port.name));
                let data = arrays::read(&*own.ok_or_else(missing)?, &port.ty)?;
                Ok(Array { shape: port.ty.shape.clone(), data })
            })
            .collect()
    }
}

fn provider(inputs: &[Port]) -> Result<Retained<ProtocolObject<dyn MLFeatureProvider>>, Failure> {
    let names: Vec<Retained<NSString>> = inputs.iter().map(|port| NSString::from_str(&port.name)).collect();
    let names: Vec<&NSString> = names.iter().map(|name| &**name).collect();
    // SAFETY: a value over an array retains it.
    let values: Vec<Retained<MLFeatureValue>> = inputs
        .iter()
        .map(|port| unsafe { MLFeatureValue::featureValueWithMultiArray(&port.array) })
        .collect();
    let values: Vec<&AnyObject> = values.iter().map(AsRef::as_ref).collect();
    let dictionary = NSDictionary::<NSString, AnyObject>::from_slices(&names, &values);
    // SAFETY: the dictionary has feature values under strings, as the initialiser wants.
    let provider = unsafe {
        MLDictionaryFeatureProvider::initWithDictionary_error(
            MLDictionaryFeatureProvider::alloc(),
            &dictionary,
        )
    };
    let provider = provider.map_err(|error| failure(FailureKind::Load, Some(&error)))?;
    Ok(ProtocolObject::from_retained(provider))
}

fn configuration(function: &str, units: ComputeUnits) -> Retained<MLModelConfiguration> {
    let units = match units {
        ComputeUnits::CpuAndNe => MLComputeUnits::CPUAndNeuralEngine,
        ComputeUnits::CpuAndGpu => MLComputeUnits::CPUAndGPU,
        ComputeUnits::CpuOnly => MLComputeUnits::CPUOnly,
        ComputeUnits::All => MLComputeUnits::All,
    };
    // SAFETY: setters of objects that were just made and that nobody else has.
    unsafe {
        let configuration = MLModelConfiguration::new();
        configuration.setComputeUnits(units);
        configuration.setFunctionName(Some(&NSString::from_str(function)));
        let hints = MLOptimizationHints::new();
        hints.setSpecializationStrategy(MLSpecializationStrategy::FastPrediction);
        hints.setReshapeFrequency(MLReshapeFrequencyHint::Infrequent);
        configuration.setOptimizationHints(&hints);
        configuration
    }
}

fn url(path: &Path) -> Retained<NSURL> {
    NSURL::fileURLWithPath(&NSString::from_str(&path.to_string_lossy()))
}

/// What an error says, or that there is none.
fn failure(what: FailureKind, error: Option<&NSError>) -> Failure {
    let Some(error) = error else { return Failure::new(what, None, "") };
    Failure::classify(what, error.code() as i64, &error.localizedDescription().to_string())
}

/// Moves a directory, also to another disk.
fn relocate(from: &Path, to: &Path) -> std::io::Result<()> {
    if std::fs::rename(from, to).is_ok() {
        return Ok(());
    }
    copy(from, to)?;
    std::fs::remove_dir_all(from)
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

/// Whether a type can be a tensor of a model.
fn is_half(ty: &TensorType) -> bool {
    ty.dtype == DataType::Float16
}
