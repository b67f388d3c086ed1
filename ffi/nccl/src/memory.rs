//! Memory that the user registers. Calls do not need that, so these functions change nothing.
//! Windows are null, which tells users that there are none.

use std::ffi::{c_int, c_void};

use spark_ccl_abi::arguments::given;
use spark_ccl_abi::failure::{Failure, guarded};

use crate::comm::find;
use crate::status::Status;
use crate::types::{ncclComm_t, ncclWindow_t};

/// `ncclCommRegister`. The handle is the buffer.
///
/// # Safety
/// `handle` is null or can be written.
pub(crate) unsafe fn register(
    comm: ncclComm_t,
    buffer: *mut c_void,
    _bytes: usize,
    handle: *mut *mut c_void,
) -> Status {
    guarded(|| {
        find(comm)?;
        let (buffer, handle) = (given(buffer, "buff")?, given(handle, "handle")?);
        // SAFETY: `given` has refused null, and otherwise `handle` can be written (this function's
        // contract).
        unsafe { handle.write(buffer) };
        Ok(())
    })
}

/// `ncclCommDeregister`.
pub(crate) fn deregister(comm: ncclComm_t, _handle: *mut c_void) -> Status {
    guarded(|| find(comm).map(drop))
}

/// `ncclCommWindowRegister`: the window is null.
///
/// # Safety
/// `window` is null or can be written.
pub(crate) unsafe fn register_window(
    comm: ncclComm_t,
    buffer: *mut c_void,
    _bytes: usize,
    window: *mut ncclWindow_t,
    _flags: c_int,
) -> Status {
    guarded(|| {
        find(comm)?;
        given(buffer, "buff")?;
        let window = given(window, "win")?;
        // SAFETY: `given` has refused null, and otherwise `window` can be written (this function's
        // contract).
        unsafe { window.write(std::ptr::null_mut()) };
        Ok(())
    })
}

/// `ncclCommWindowDeregister`, of null.
pub(crate) fn deregister_window(comm: ncclComm_t, window: ncclWindow_t) -> Status {
    guarded(|| {
        find(comm)?;
        known(window)
    })
}

/// `ncclWinGetUserPtr`: null for the null window.
///
/// # Safety
/// `pointer` is null or can be written.
pub(crate) unsafe fn pointer_of(
    comm: ncclComm_t,
    window: ncclWindow_t,
    pointer: *mut *mut c_void,
) -> Status {
    guarded(|| {
        find(comm)?;
        known(window)?;
        // SAFETY: `given` refuses null, and otherwise `pointer` can be written (this function's
        // contract).
        unsafe { given(pointer, "outUserPtr")?.write(std::ptr::null_mut()) };
        Ok(())
    })
}

fn known(window: ncclWindow_t) -> Result<(), Failure> {
    if window.is_null() {
        return Ok(());
    }
    Err(Failure::invalid(format!(
        "there is no window {window:p}: ncclCommWindowRegister has returned null here"
    )))
}
