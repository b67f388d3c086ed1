//! C ABI of spark-ccl; `include/spark_ccl.h` is its documentation.
//!
//! Every function checks its pointers for null, catches panics, and returns a result code; the
//! message behind the code is the calling thread's [`spark_ccl_last_error`].

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod reduce;
mod status;

use spark_ccl::{Communicator, UniqueId};
use std::ffi::{CStr, c_char, c_int, c_void};

use reduce::{Arguments, reduce_all};
use status::{Failure, Status, guarded};

/// `spark_ccl_unique_id`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Id {
    bytes: [u8; UniqueId::LEN],
}

/// `spark_ccl_get_unique_id`.
///
/// # Safety
/// `id` is null or points to a `spark_ccl_unique_id` that can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_get_unique_id(id: *mut Id) -> Status {
    guarded(|| {
        not_null(id, "id")?;
        let bytes = *Communicator::builder().unique_id()?.as_bytes();
        // SAFETY: not null, and then writable by this function's contract.
        unsafe { id.write(Id { bytes }) };
        Ok(())
    })
}

/// `spark_ccl_comm_create`.
///
/// # Safety
/// `id` is null or points to a `spark_ccl_unique_id`; `comm` is null or points to a pointer that
/// can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_comm_create(
    id: *const Id,
    rank: c_int,
    size: c_int,
    comm: *mut *mut Communicator,
) -> Status {
    // SAFETY: this function's contract.
    unsafe {
        give(comm, || {
            not_null(id, "id")?;
            let (rank, size) = (natural(rank, "rank")?, natural(size, "size")?);
            // SAFETY: not null, and then readable by the function's contract.
            let id = UniqueId::from_bytes(&(*id).bytes).map_err(spark_ccl::Error::from)?;
            Ok(Communicator::connect(&id, rank, size)?)
        })
    }
}

/// `spark_ccl_comm_from_env`.
///
/// # Safety
/// `comm` is null or points to a pointer that can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_comm_from_env(comm: *mut *mut Communicator) -> Status {
    // SAFETY: this function's contract.
    unsafe { give(comm, || Ok(Communicator::from_env()?)) }
}

/// `spark_ccl_comm_rank`.
///
/// # Safety
/// `comm` is null or a communicator that is not destroyed meanwhile; `rank` is null or points to an
/// `int` that can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_comm_rank(
    comm: *const Communicator,
    rank: *mut c_int,
) -> Status {
    // SAFETY: this function's contract.
    unsafe { number(comm, rank, "rank", Communicator::rank) }
}

/// `spark_ccl_comm_size`.
///
/// # Safety
/// As for [`spark_ccl_comm_rank`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_comm_size(
    comm: *const Communicator,
    size: *mut c_int,
) -> Status {
    // SAFETY: this function's contract.
    unsafe { number(comm, size, "size", Communicator::size) }
}

/// `spark_ccl_all_reduce`.
///
/// # Safety
/// `comm` is null or a communicator that is not destroyed meanwhile. `send` and `recv` point to
/// `count` elements that nobody else writes (`recv`: or reads) meanwhile, or `count` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_all_reduce(
    comm: *const Communicator,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: c_int,
    op: c_int,
) -> Status {
    guarded(|| {
        // SAFETY: this function's contract.
        let comm = unsafe { borrow(comm) }?;
        let arguments = Arguments { send, recv, count };
        // SAFETY: this function's contract.
        unsafe { reduce_all(comm, &arguments, dtype, op) }
    })
}

/// `spark_ccl_barrier`.
///
/// # Safety
/// `comm` is null or a communicator that is not destroyed meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_barrier(comm: *const Communicator) -> Status {
    // SAFETY: this function's contract.
    guarded(|| Ok(unsafe { borrow(comm) }?.barrier().run()?))
}

/// `spark_ccl_comm_abort`.
///
/// # Safety
/// `comm` is null or a communicator that is not destroyed meanwhile; `reason` is null or a string
/// that ends in a null character.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_comm_abort(
    comm: *const Communicator,
    reason: *const c_char,
) -> Status {
    guarded(|| {
        // SAFETY: this function's contract.
        let comm = unsafe { borrow(comm) }?;
        if reason.is_null() {
            comm.abort("no reason given");
        } else {
            // SAFETY: not null, and then a string by this function's contract.
            comm.abort(&unsafe { CStr::from_ptr(reason) }.to_string_lossy());
        }
        Ok(())
    })
}

/// `spark_ccl_comm_destroy`.
///
/// # Safety
/// `comm` is null or a communicator that nobody else uses, now or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_comm_destroy(comm: *mut Communicator) -> Status {
    guarded(|| {
        if !comm.is_null() {
            // SAFETY: it came from `Box::into_raw` in `give`, and nobody else uses it.
            drop(unsafe { Box::from_raw(comm) });
        }
        Ok(())
    })
}

/// `spark_ccl_result_string`.
#[unsafe(no_mangle)]
pub extern "C" fn spark_ccl_result_string(result: c_int) -> *const c_char {
    status::name(result).as_ptr()
}

/// `spark_ccl_last_error`.
#[unsafe(no_mangle)]
pub extern "C" fn spark_ccl_last_error() -> *const c_char {
    status::last_error()
}

/// Hands a new communicator to the caller, or null.
///
/// # Safety
/// `comm` is null or points to a pointer that can be written.
unsafe fn give(
    comm: *mut *mut Communicator,
    make: impl FnOnce() -> Result<Communicator, Failure>,
) -> Status {
    guarded(|| {
        not_null(comm, "comm")?;
        // SAFETY: not null, and then writable by this function's contract.
        unsafe { comm.write(std::ptr::null_mut()) };
        let made = Box::into_raw(Box::new(make()?));
        // SAFETY: it is not null, and then writable by this function's contract.
        unsafe { comm.write(made) };
        Ok(())
    })
}

/// Writes a communicator's rank or size.
///
/// # Safety
/// `comm` is null or a communicator that is not destroyed meanwhile; `out` is null or points to an
/// `int` that can be written.
unsafe fn number(
    comm: *const Communicator,
    out: *mut c_int,
    name: &'static str,
    get: impl FnOnce(&Communicator) -> usize,
) -> Status {
    guarded(|| {
        // SAFETY: this function's contract.
        let comm = unsafe { borrow(comm) }?;
        not_null(out, name)?;
        let value = c_int::try_from(get(comm)).unwrap_or(c_int::MAX);
        // SAFETY: not null, and then writable by this function's contract.
        unsafe { out.write(value) };
        Ok(())
    })
}

/// # Safety
/// `comm` is null or a communicator that is not destroyed while the reference is used.
unsafe fn borrow<'a>(comm: *const Communicator) -> Result<&'a Communicator, Failure> {
    not_null(comm, "comm")?;
    // SAFETY: not null, and then a communicator by this function's contract.
    Ok(unsafe { &*comm })
}

fn not_null<T>(pointer: *const T, name: &str) -> Result<(), Failure> {
    if pointer.is_null() {
        return Err(Failure::invalid(format!("{name} is a null pointer")));
    }
    Ok(())
}

fn natural(value: c_int, name: &str) -> Result<usize, Failure> {
    usize::try_from(value).map_err(|_| Failure::invalid(format!("{name} is {value}, below 0")))
}
