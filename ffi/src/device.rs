//! The GPU of a communicator: its number, its streams, and device memory of the library's own.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use spark_ccl::cuda::{DeviceMemory, Registration};
use spark_ccl_abi::arguments::given;
use spark_ccl_abi::failure::{Failure, guarded};
use spark_ccl_abi::groups::must_be_closed;

use crate::comm::{Handle, find};
use crate::status::Status;

/// `spark_ccl_comm_device`.
///
/// # Safety
/// `device` is null or points to an `int` that can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_comm_device(comm: *mut Handle, device: *mut c_int) -> Status {
    guarded(|| {
        let device = given(device, "device")?;
        let own = find(comm)?.inner.device();
        let number = own.map_or(-1, |own| c_int::try_from(own).unwrap_or(c_int::MAX));
        // SAFETY: `given` has refused null, and otherwise `device` points to an `int` that can be
        // written (this function's contract).
        unsafe { device.write(number) };
        Ok(())
    })
}

/// `spark_ccl_stream_wait`.
///
/// # Safety
/// `stream` is a default one, or lives until this returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_stream_wait(comm: *mut Handle, stream: *mut c_void) -> Status {
    guarded(|| {
        must_be_closed("spark_ccl_stream_wait")?;
        // SAFETY: `stream` is a default one, or lives until this returns (this function's
        // contract).
        Ok(unsafe { find(comm)?.inner.wait_raw(stream.cast()) }?)
    })
}

/// `spark_ccl_device_alloc`.
///
/// # Safety
/// `memory` is null or points to a pointer that can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_device_alloc(
    comm: *mut Handle,
    bytes: usize,
    memory: *mut *mut c_void,
) -> Status {
    guarded(|| {
        let memory = given(memory, "memory")?;
        // SAFETY: `given` has refused null, and otherwise `memory` points to a pointer that can be
        // written (this function's contract).
        unsafe { memory.write(std::ptr::null_mut()) };
        let comm = find(comm)?;
        let made = Arc::new(comm.inner.alloc_device::<u8>(bytes)?);
        let start = std::ptr::without_provenance_mut(made.address() as usize);
        comm.device_memory.lock().push(made);
        // SAFETY: `given` has refused null, and `memory` points to a pointer that can be written
        // until this function returns (its contract).
        unsafe { memory.write(start) };
        Ok(())
    })
}

/// `spark_ccl_device_free`.
#[unsafe(no_mangle)]
pub extern "C" fn spark_ccl_device_free(comm: *mut Handle, memory: *mut c_void) -> Status {
    guarded(|| {
        if memory.is_null() {
            return Ok(());
        }
        let comm = find(comm)?;
        let mut all = comm.device_memory.lock();
        let index = place_of(&all, memory)?;
        let freed = all.swap_remove(index);
        // Not under the lock, since the driver may take long.
        drop(all);
        drop(freed);
        Ok(())
    })
}

/// `spark_ccl_device_register`.
///
/// # Safety
/// `used` is null or points to an `int` that can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_device_register(
    comm: *mut Handle,
    memory: *mut c_void,
    kind: c_int,
    used: *mut c_int,
) -> Status {
    guarded(|| {
        must_be_closed("spark_ccl_device_register")?;
        let kind = registration(kind)?;
        let comm = find(comm)?;
        let memory = given(memory, "memory")?;
        let registered = {
            let all = comm.device_memory.lock();
            Arc::clone(&all[place_of(&all, memory)?])
        };
        let is_used = comm.inner.register_device(&registered, kind)?;
        if !used.is_null() {
            // SAFETY: `used` is not null, so it points to an `int` that can be written (this
            // function's contract).
            unsafe { used.write(is_used.into()) };
        }
        Ok(())
    })
}

pub(crate) fn registration(code: c_int) -> Result<Registration, Failure> {
    match code {
        0 => Ok(Registration::Local),
        1 => Ok(Registration::Symmetric),
        _ => Err(Failure::invalid(format!(
            "{code} is no spark_ccl_registration (expected 0 or 1)"
        ))),
    }
}

/// The place of the memory that begins at an address.
fn place_of(all: &[Arc<DeviceMemory<u8>>], memory: *mut c_void) -> Result<usize, Failure> {
    let address = memory.addr() as u64;
    let found = all.iter().position(|one| one.address() == address);
    found.ok_or_else(|| {
        Failure::invalid(format!(
            "the communicator has allocated no device memory that begins at {address:#x}: pass \
             what spark_ccl_device_alloc has returned"
        ))
    })
}
