//! The context that is current in a thread. Calls of this library change it; users with contexts of
//! their own must not notice.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr;

use cudarc::driver::{CudaContext, result, sys};

use crate::{Error, checked, open};

thread_local! {
    /// Whether a guard of this thread will restore its context.
    static IS_KEPT: Cell<bool> = const { Cell::new(false) };
}

/// When dropped, restores the context that was current in this thread when this was made.
#[derive(Debug)]
#[must_use = "the context is restored when this is dropped"]
pub struct KeptContext {
    /// Null if there was none. `None` if another guard restores it, or nothing can change it.
    before: Option<sys::CUcontext>,
    /// The context is this thread's.
    not_send: PhantomData<*mut ()>,
}

/// Keeps the context that is current in this thread, for a whole call: guards within it do nothing.
/// Without a driver there is nothing to keep.
pub fn keep_context() -> KeptContext {
    // A thread that ends has no guards, and no use for its context.
    let is_first = || IS_KEPT.try_with(|kept| !kept.replace(true));
    let before = (open().is_ok() && is_first().unwrap_or(false)).then(current);
    KeptContext {
        before,
        not_send: PhantomData,
    }
}

/// The current context; null if there is none, or CUDA was not initialised yet.
fn current() -> sys::CUcontext {
    let current = result::ctx::get_current();
    current.ok().flatten().unwrap_or(ptr::null_mut())
}

/// The device whose context is current in this thread; `None` if there is none, or no driver.
pub fn current_device() -> Option<usize> {
    open().ok()?;
    let mut device = 0;
    // SAFETY: the driver is there, and writes one number, to a variable of this function.
    unsafe { sys::cuCtxGetDevice(&raw mut device) }
        .result()
        .ok()?;
    usize::try_from(device).ok()
}

impl Drop for KeptContext {
    fn drop(&mut self) {
        let Some(before) = self.before else { return };
        let _ = IS_KEPT.try_with(|kept| kept.set(false));
        if current() == before {
            return;
        }
        // SAFETY: null means no context. Any other context was current when the call began, and
        // only the user destroys it, but not while the user's thread is in this call. If CUDA was
        // not initialised, the driver only returns an error.
        let _ = unsafe { result::ctx::set_current(before) };
    }
}

/// Makes a context current on this thread, and returns its device. Asking which one is current
/// costs less than setting it. Unlike cudarc's function, this does not take the error that cudarc
/// stores for its next call, which may come from another thread.
///
/// # Errors
/// The driver fails.
pub fn make_current(context: &CudaContext) -> Result<usize, Error> {
    if current() == context.cu_ctx() {
        return Ok(context.ordinal());
    }
    // SAFETY: the context is borrowed, so it has not been destroyed.
    let entered = unsafe { result::ctx::set_current(context.cu_ctx()) };
    checked("cuCtxSetCurrent", context.ordinal(), entered)?;
    Ok(context.ordinal())
}
