//! Calls on tensors of GPUs, in candle's stream. Both libraries use cudarc's buffers, so nothing
//! here is unsafe.

use std::ops::Range;

use candle_core::backend::BackendStorage;
use candle_core::cuda::cudarc::driver::{CudaSlice, DeviceRepr, ValidAsZeroBits};
use candle_core::cuda::{CudaStorageSlice, WrapErr};
use candle_core::{CudaStorage, Layout, Result, Shape};
use spark_ccl::cuda::DevicePart;
use spark_ccl::{Element, RedOp};

use crate::copy::copied;
use crate::group::Group;
use crate::storage::{Checked, Kind, no_such_type};

/// Enqueues a call. The result is in memory of its own.
pub(crate) fn run(
    group: &Group,
    kind: Kind,
    tensor: &str,
    storage: &CudaStorage,
    layout: &Layout,
) -> Result<(CudaStorage, Shape)> {
    let checked = Checked::new(group, kind, tensor, layout)?;
    let device = storage.device().clone();
    macro_rules! typed {
        ($($dtype:ident)*) => {
            match &storage.slice {
                _ if kind == Kind::Same => copied(storage, layout)?.0,
                $(CudaStorageSlice::$dtype(values) => {
                    let result = values_of(group, kind, tensor, values, checked.elements)?;
                    CudaStorage::wrap_cuda_slice(result, device)
                })*
                _ => return Err(no_such_type(group, kind.name(), tensor, storage.dtype())),
            }
        };
    }
    Ok((typed!(F32 BF16 F16 F64 U8 U32 I64), checked.shape))
}

fn values_of<T: Element + DeviceRepr + ValidAsZeroBits>(
    group: &Group,
    kind: Kind,
    tensor: &str,
    values: &CudaSlice<T>,
    elements: Range<usize>,
) -> Result<CudaSlice<T>> {
    let (rank, size, len) = (group.rank(), group.size(), elements.len());
    let part = len / size;
    let (operation, bytes) = (kind.name(), len * size_of::<T>());
    let own = DevicePart::of(values, elements.clone());
    let stream = values.stream();
    match kind {
        Kind::Same => stream.clone_dtod(&values.slice(elements)).w(),
        Kind::Part => {
            let start = elements.start + part * rank;
            stream.clone_dtod(&values.slice(start..start + part)).w()
        }
        Kind::Sum => {
            let mut sum = stream.alloc_zeros(len).w()?;
            group.call(operation, tensor, bytes, |comm| {
                comm.all_reduce(own, &mut sum, RedOp::Sum)
                    .named(tensor)
                    .on(stream)
            })?;
            Ok(sum)
        }
        Kind::Gather => {
            let mut all = stream.alloc_zeros(len * size).w()?;
            group.call(operation, tensor, bytes, |comm| {
                comm.all_gather(own, &mut all).named(tensor).on(stream)
            })?;
            Ok(all)
        }
        Kind::Scatter => {
            let mut sum = stream.alloc_zeros(part).w()?;
            group.call(operation, tensor, bytes, |comm| {
                comm.reduce_scatter(own, &mut sum, RedOp::Sum)
                    .named(tensor)
                    .on(stream)
            })?;
            Ok(sum)
        }
    }
}
