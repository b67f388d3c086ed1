//! Communicators: queries about them, abort and destroy. How they are made is in `rendezvous.rs`.

use std::ffi::{c_char, c_int, c_uint};
use std::sync::Arc;
use std::time::Duration;

use spark_ccl::cuda::DeviceMemory;
use spark_ccl::{Communicator, DType, Registered};
use spark_ccl_abi::arguments::{given, natural, text};
use spark_ccl_abi::failure::{Failure, guarded};
use spark_ccl_abi::handles::Table;
use spark_ccl_log::Mutex;

use crate::status::Status;

/// `spark_ccl_comm`: only its address is used, which is a handle.
#[repr(C)]
#[derive(Debug)]
pub struct Handle {
    _private: [u8; 0],
}

/// A communicator, and the memory that was allocated with it.
pub(crate) struct Comm {
    pub(crate) inner: Communicator,
    pub(crate) memory: Mutex<Vec<Arc<Registered<u8>>>>,
    pub(crate) device_memory: Mutex<Vec<Arc<DeviceMemory<u8>>>>,
}

impl spark_ccl_abi::Comm for Comm {
    fn inner(&self) -> &Communicator {
        &self.inner
    }
}

static COMMS: Table<Comm> = Table::new("communicator");

/// The communicator of a handle.
pub(crate) fn find(comm: *const Handle) -> Result<Arc<Comm>, Failure> {
    COMMS.get(comm as u64)
}

/// Makes a handle for a new communicator.
pub(crate) fn insert(comm: Communicator) -> *mut Handle {
    COMMS.insert(Comm {
        inner: comm,
        memory: Mutex::default(),
        device_memory: Mutex::default(),
    }) as *mut Handle
}

/// `spark_ccl_comm_rank`.
///
/// # Safety
/// `rank` is null or points to an `int` that can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_comm_rank(comm: *mut Handle, rank: *mut c_int) -> Status {
    // SAFETY: `number` needs a pointer that is null or can be written: `rank` is (this function's
    // contract).
    unsafe { number(comm, rank, "rank", Communicator::rank) }
}

/// `spark_ccl_comm_size`.
///
/// # Safety
/// `size` is null or points to an `int` that can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_comm_size(comm: *mut Handle, size: *mut c_int) -> Status {
    // SAFETY: `number` needs a pointer that is null or can be written: `size` is (this function's
    // contract).
    unsafe { number(comm, size, "size", Communicator::size) }
}

/// `spark_ccl_comm_set_timeout`.
#[unsafe(no_mangle)]
pub extern "C" fn spark_ccl_comm_set_timeout(comm: *mut Handle, milliseconds: c_uint) -> Status {
    guarded(|| {
        let timeout = Duration::from_millis(milliseconds.into());
        Ok(find(comm)?.inner.set_timeout(timeout)?)
    })
}

/// `spark_ccl_comm_check`.
#[unsafe(no_mangle)]
pub extern "C" fn spark_ccl_comm_check(comm: *mut Handle) -> Status {
    guarded(|| Ok(find(comm)?.inner.check()?))
}

/// `spark_ccl_probe`.
///
/// # Safety
/// `count` is null or points to a `size_t`, and `dtype` and `there` are null or point to an `int`
/// each, which can all be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_probe(
    comm: *mut Handle,
    from: c_int,
    count: *mut usize,
    dtype: *mut c_int,
    there: *mut c_int,
) -> Status {
    guarded(|| {
        let (count, dtype) = (given(count, "count")?, given(dtype, "dtype")?);
        let there = given(there, "there")?;
        let found = find(comm)?.inner.probe(natural(from, "from")?)?;
        let (kind, elements) = found.unwrap_or((DType::I8, 0));
        // SAFETY: `given` has refused null, and otherwise all three point to numbers that can be
        // written (this function's contract).
        unsafe {
            count.write(elements);
            dtype.write(kind.code().into());
            there.write(found.is_some().into());
        }
        Ok(())
    })
}

/// `spark_ccl_comm_abort`.
///
/// # Safety
/// `reason` is null, or points to a string that ends in a null character, and that nobody writes
/// until this returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_comm_abort(comm: *mut Handle, reason: *const c_char) -> Status {
    guarded(|| {
        // SAFETY: `reason` is null, or points to a string that ends in a null character, and that
        // nobody writes until this returns (this function's contract). The text is used within this
        // closure only, which has ended by then.
        let reason = unsafe { text(reason) };
        let reason = reason.as_deref().unwrap_or("no reason given");
        find(comm)?.inner.abort(reason);
        Ok(())
    })
}

/// `spark_ccl_comm_destroy`.
#[unsafe(no_mangle)]
pub extern "C" fn spark_ccl_comm_destroy(comm: *mut Handle) -> Status {
    guarded(|| {
        if !comm.is_null() {
            drop(COMMS.remove(comm as u64)?);
        }
        Ok(())
    })
}

/// Writes a communicator's rank or size.
///
/// # Safety
/// `out` is null or points to an `int` that can be written.
unsafe fn number(
    comm: *mut Handle,
    out: *mut c_int,
    name: &'static str,
    get: impl FnOnce(&Communicator) -> usize,
) -> Status {
    guarded(|| {
        let comm = find(comm)?;
        let value = c_int::try_from(get(&comm.inner)).unwrap_or(c_int::MAX);
        // SAFETY: `given` refuses null, and otherwise `out` points to an `int` that can be written
        // (this function's contract).
        unsafe { given(out, name)?.write(value) };
        Ok(())
    })
}
