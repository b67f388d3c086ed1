//! Copies of tensors, of the host and of devices.

use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::{Layout, Result, Shape};

/// A copy of a tensor's elements.
pub(crate) fn copied<S>(storage: &S, layout: &Layout) -> Result<(S, Shape)>
where
    S: BackendStorage,
    S::Device: BackendDevice<Storage = S>,
{
    let shape = layout.shape().clone();
    let mut copy = storage.device().zeros_impl(&shape, storage.dtype())?;
    storage.copy_strided_src(&mut copy, 0, layout)?;
    Ok((copy, shape))
}
