//! Compute plans.

use std::sync::mpsc::channel;

use block2::RcBlock;
use objc2::rc::Retained;
use objc2::runtime::{AnyObject, ProtocolObject};
use objc2_core_ml::{
    MLCPUComputeDevice, MLComputeDeviceProtocol, MLComputePlan, MLGPUComputeDevice, MLModelConfiguration,
    MLNeuralEngineComputeDevice,
};
use objc2_foundation::{NSError, NSString, NSURL};

use crate::{ComputePlan, Device, Failure, FailureKind, PlannedOp};

/// The plan of a function of a compiled model; none where it is no program.
pub(super) fn of(
    url: &NSURL,
    configuration: &MLModelConfiguration,
    function: &str,
) -> Result<Option<ComputePlan>, Failure> {
    let (done, made) = channel();
    let handler = RcBlock::new(move |plan: *mut MLComputePlan, error: *mut NSError| {
        // SAFETY: the handler gets an object or nil in each place, alive for its duration; the plan is retained to outlive it.
        let (plan, error) = unsafe { (Retained::retain(plan), error.as_ref()) };
        let result = plan.ok_or_else(|| super::failure(FailureKind::Load, error));
        let _ = done.send(result);
    });
    // SAFETY: the handler is sent to once, from any thread, and owns all that it uses.
    unsafe { MLComputePlan::loadContentsOfURL_configuration_completionHandler(url, configuration, &handler) };
    // Core ML has a reference of its own; when it lets go of that without a call, the sender goes and the wait ends.
    drop(handler);
    let lost = || Failure::new(FailureKind::Load, None, "the plan did not come");
    let plan = made.recv().map_err(|_| lost())??;
    // SAFETY: plain properties of live objects, which the plan keeps alive.
    unsafe {
        let Some(program) = plan.modelStructure().program() else { return Ok(None) };
        let functions = program.functions();
        let Some(function) = functions.objectForKey(&NSString::from_str(function)) else { return Ok(None) };
        let mut ops = Vec::new();
        for op in &function.block().operations() {
            let usage = plan.computeDeviceUsageForMLProgramOperation(&op);
            let supported = usage.as_ref().map(|usage| usage.supportedComputeDevices());
            ops.push(PlannedOp {
                name: op.outputs().firstObject().map(|first| first.name().to_string()).unwrap_or_default(),
                operator: op.operatorName().to_string().rsplit('.').next().unwrap_or_default().to_owned(),
                device: usage.as_ref().and_then(|usage| device(&usage.preferredComputeDevice())),
                supported: supported
                    .iter()
                    .flat_map(|all| all.iter())
                    .filter_map(|one| device(&one))
                    .collect(),
                cost: plan.estimatedCostOfMLProgramOperation(&op).map(|cost| cost.weight()),
            });
        }
        Ok(Some(ComputePlan { ops }))
    }
}

fn device(device: &ProtocolObject<dyn MLComputeDeviceProtocol>) -> Option<Device> {
    let object: &AnyObject = device.as_ref();
    if object.downcast_ref::<MLNeuralEngineComputeDevice>().is_some() {
        return Some(Device::Ane);
    }
    if object.downcast_ref::<MLGPUComputeDevice>().is_some() {
        return Some(Device::Gpu);
    }
    object.downcast_ref::<MLCPUComputeDevice>().map(|_| Device::Cpu)
}
