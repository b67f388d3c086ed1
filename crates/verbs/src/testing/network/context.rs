//! Contexts of the network.

use super::super::calls;
use super::{own, pair, queue};
use crate::raw;

/// # Safety
///
/// The device is from `get_device_list`.
pub(super) unsafe extern "C" fn open_device(device: *mut raw::ibv_device) -> *mut raw::ibv_context {
    // SAFETY: `calls::open_device` only keeps the pointer, and returns null or a context that
    // nothing else uses yet.
    let context = unsafe { calls::open_device(device) };
    // SAFETY: the context is null, or was just opened, and nothing else uses it yet.
    if let Some(context) = unsafe { context.as_mut() } {
        context.ops.poll_cq = Some(queue::poll_cq);
        context.ops.req_notify_cq = Some(queue::req_notify_cq);
        context.ops.post_send = Some(pair::post_send);
        context.ops.post_recv = Some(pair::post_recv);
        // These devices have no interrupts, so they keep their network there.
        context.num_comp_vectors = own();
    }
    context
}
