//! Arrays of Core ML and numbers of the host.

use std::cell::RefCell;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::slice;

use anemone_mil::{DataType, TensorType};
use block2::RcBlock;
use half::f16;
use objc2::AnyThread as _;
use objc2::rc::Retained;
use objc2_core_foundation::{CFDictionary, CFRetained, CFType};
use objc2_core_ml::{MLMultiArray, MLMultiArrayDataType, MLState};
use objc2_core_video::{
    CVPixelBuffer, CVPixelBufferCreate, kCVPixelBufferIOSurfacePropertiesKey,
    kCVPixelFormatType_OneComponent16Half, kCVReturnSuccess,
};
use objc2_foundation::{NSArray, NSInteger, NSNumber, NSString};

use crate::{Failure, FailureKind};

/// An array of a type: half floats in a surface that the Neural Engine reads where it lies, others in plain memory.
pub(super) fn buffer(ty: &TensorType) -> Result<Retained<MLMultiArray>, Failure> {
    let shape = numbers(&ty.shape);
    if super::is_half(ty) && !ty.shape.is_empty() {
        return surface(ty, &shape);
    }
    let kind = match ty.dtype {
        DataType::Float16 => MLMultiArrayDataType::Float16,
        DataType::Float32 => MLMultiArrayDataType::Float32,
        DataType::Int32 => MLMultiArrayDataType::Int32,
        other => {
            let problem = format!("a tensor of {other} cannot be given to a model");
            return Err(Failure::new(FailureKind::Load, None, problem));
        }
    };
    // SAFETY: shape and type are valid; the array owns its memory.
    let made = unsafe { MLMultiArray::initWithShape_dataType_error(MLMultiArray::alloc(), &shape, kind) };
    made.map_err(|error| super::failure(FailureKind::Memory, Some(&error)))
}

/// Half floats in an `IOSurface`: a picture as wide as the last axis and as high as all others.
fn surface(ty: &TensorType, shape: &NSArray<NSNumber>) -> Result<Retained<MLMultiArray>, Failure> {
    let width = ty.shape.last().copied().unwrap_or(1);
    let height = ty.shape[..ty.shape.len() - 1].iter().product::<usize>();
    let empty = CFDictionary::<CFType, CFType>::empty();
    // SAFETY: the key is a constant of the framework.
    let key: &CFType = unsafe { kCVPixelBufferIOSurfacePropertiesKey };
    let attributes = CFDictionary::from_slices(&[key], &[empty.as_ref() as &CFType]);
    let mut buffer: *mut CVPixelBuffer = std::ptr::null_mut();
    // SAFETY: the place for the result is valid for the call; sizes and format are plain values.
    let status = unsafe {
        CVPixelBufferCreate(
            None,
            width,
            height,
            kCVPixelFormatType_OneComponent16Half,
            Some(attributes.as_ref()),
            NonNull::from(&mut buffer),
        )
    };
    let Some(buffer) = NonNull::new(buffer).filter(|_| status == kCVReturnSuccess) else {
        let problem = format!("a surface of {width} by {height} half floats cannot be made");
        return Err(Failure::new(FailureKind::Memory, Some(i64::from(status)), problem));
    };
    // SAFETY: the call above gave it with a count of one, which this takes over; the array retains it.
    unsafe {
        let buffer = CFRetained::from_raw(buffer);
        Ok(MLMultiArray::initWithPixelBuffer_shape(MLMultiArray::alloc(), &buffer, shape))
    }
}

/// Puts numbers in an array, rounded to its type.
pub(super) fn write(array: &MLMultiArray, ty: &TensorType, values: &[f32]) -> Result<(), Failure> {
    let outcome = RefCell::new(Ok(()));
    let handler =
        RcBlock::new(|bytes: NonNull<c_void>, size: NSInteger, strides: NonNull<NSArray<NSNumber>>| {
            // SAFETY: the strides are an array of numbers that is alive in the handler.
            let strides = unsafe { usizes(strides.as_ref()) };
            // SAFETY: the handler gets the array's memory of `size` bytes for its duration.
            *outcome.borrow_mut() = unsafe { scatter(bytes, size as usize, &strides, ty, values) };
        });
    // SAFETY: the handler is called before this returns and borrows only what outlives it.
    unsafe { array.getMutableBytesWithHandler(&handler) };
    drop(handler);
    outcome.into_inner()
}

/// The numbers of an array, row-major.
pub(super) fn read(array: &MLMultiArray, ty: &TensorType) -> Result<Vec<f32>, Failure> {
    // SAFETY: plain properties of a live object.
    let (strides, shape, kind) =
        unsafe { (usizes(&array.strides()), usizes(&array.shape()), array.dataType()) };
    let is_declared = kind
        == match ty.dtype {
            DataType::Float16 => MLMultiArrayDataType::Float16,
            DataType::Int32 => MLMultiArrayDataType::Int32,
            _ => MLMultiArrayDataType::Float32,
        };
    if shape != ty.shape || !is_declared {
        let problem = format!(
            "an output has the shape {shape:?} and type {}, expected {:?} and {}",
            kind.0, ty.shape, ty.dtype
        );
        return Err(Failure::new(FailureKind::Predict, None, problem));
    }
    let outcome = RefCell::new(Ok(Vec::new()));
    let handler = RcBlock::new(|bytes: NonNull<c_void>, size: NSInteger| {
        // SAFETY: the handler gets the array's memory of `size` bytes for its duration.
        *outcome.borrow_mut() = unsafe { gather(bytes, size as usize, &strides, ty) };
    });
    // SAFETY: the handler is called before this returns and borrows only what outlives it.
    unsafe { array.getBytesWithHandler(&handler) };
    drop(handler);
    outcome.into_inner()
}

/// Shows a state's array.
pub(super) fn with_state(
    state: &MLState,
    name: &str,
    look: impl FnMut(&MLMultiArray) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let missing = Failure::new(FailureKind::Predict, None, format!("the state '{name}' is missing"));
    let (outcome, look) = (RefCell::new(Err(missing)), RefCell::new(look));
    let handler = RcBlock::new(|array: NonNull<MLMultiArray>| {
        // SAFETY: the handler gets an array that is alive for its duration.
        *outcome.borrow_mut() = (look.borrow_mut())(unsafe { array.as_ref() });
    });
    // SAFETY: the handler is called before this returns and borrows only what outlives it.
    unsafe { state.getMultiArrayForStateNamed_handler(&NSString::from_str(name), &handler) };
    drop(handler);
    outcome.into_inner()
}

/// Offsets of every element in order, in elements.
fn offsets<'a>(shape: &'a [usize], strides: &'a [usize]) -> impl Iterator<Item = usize> + 'a {
    let count = shape.iter().product::<usize>();
    (0..count).map(move |mut index| {
        let mut offset = 0;
        for (size, stride) in shape.iter().zip(strides).rev() {
            offset += index % size * stride;
            index /= size;
        }
        offset
    })
}

/// Elements of `T` that a memory must have for a shape and strides, if it has them.
fn fits<T>(bytes: usize, shape: &[usize], strides: &[usize]) -> Result<usize, Failure> {
    let last: usize = shape.iter().zip(strides).map(|(size, stride)| (size.max(&1) - 1) * stride).sum();
    let held = bytes / size_of::<T>();
    if strides.len() == shape.len() && last < held {
        return Ok(held);
    }
    let problem =
        format!("a buffer of {bytes} bytes does not hold the shape {shape:?} with the strides {strides:?}");
    Err(Failure::new(FailureKind::Predict, None, problem))
}

/// Writes numbers into memory with strides.
///
/// # Safety
///
/// The memory is valid for writes of `size` bytes and aligned for the type.
unsafe fn scatter(
    bytes: NonNull<c_void>,
    size: usize,
    strides: &[usize],
    ty: &TensorType,
    values: &[f32],
) -> Result<(), Failure> {
    let shape = &ty.shape;
    let into = offsets(shape, strides).zip(values);
    match ty.dtype {
        DataType::Float16 => {
            let held = fits::<f16>(size, shape, strides)?;
            // SAFETY: as the caller promises; half floats are any two bytes.
            let to = unsafe { slice::from_raw_parts_mut(bytes.cast::<f16>().as_ptr(), held) };
            into.for_each(|(at, value)| to[at] = f16::from_f32(*value));
        }
        DataType::Int32 => {
            let held = fits::<i32>(size, shape, strides)?;
            // SAFETY: as the caller promises.
            let to = unsafe { slice::from_raw_parts_mut(bytes.cast::<i32>().as_ptr(), held) };
            into.for_each(|(at, value)| to[at] = *value as i32);
        }
        _ => {
            let held = fits::<f32>(size, shape, strides)?;
            // SAFETY: as the caller promises.
            let to = unsafe { slice::from_raw_parts_mut(bytes.cast::<f32>().as_ptr(), held) };
            into.for_each(|(at, value)| to[at] = *value);
        }
    }
    Ok(())
}

/// Reads numbers from memory with strides.
///
/// # Safety
///
/// The memory is valid for reads of `size` bytes and aligned for the type.
unsafe fn gather(
    bytes: NonNull<c_void>,
    size: usize,
    strides: &[usize],
    ty: &TensorType,
) -> Result<Vec<f32>, Failure> {
    let shape = &ty.shape;
    let from = offsets(shape, strides);
    Ok(match ty.dtype {
        DataType::Float16 => {
            let held = fits::<f16>(size, shape, strides)?;
            // SAFETY: as the caller promises; half floats are any two bytes.
            let all = unsafe { slice::from_raw_parts(bytes.cast::<f16>().as_ptr(), held) };
            from.map(|at| all[at].to_f32()).collect()
        }
        DataType::Int32 => {
            let held = fits::<i32>(size, shape, strides)?;
            // SAFETY: as the caller promises.
            let all = unsafe { slice::from_raw_parts(bytes.cast::<i32>().as_ptr(), held) };
            from.map(|at| all[at] as f32).collect()
        }
        _ => {
            let held = fits::<f32>(size, shape, strides)?;
            // SAFETY: as the caller promises.
            let all = unsafe { slice::from_raw_parts(bytes.cast::<f32>().as_ptr(), held) };
            from.map(|at| all[at]).collect()
        }
    })
}

fn numbers(values: &[usize]) -> Retained<NSArray<NSNumber>> {
    let numbers: Vec<Retained<NSNumber>> = values.iter().map(|&value| NSNumber::new_usize(value)).collect();
    NSArray::from_retained_slice(&numbers)
}

fn usizes(numbers: &NSArray<NSNumber>) -> Vec<usize> {
    numbers.iter().map(|number| number.as_usize()).collect()
}
