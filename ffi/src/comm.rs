//! Communicators: how they are made, what they say of themselves, and how they end.

use crate::arguments::{given, natural, slice, text};
use crate::handles::Table;
use crate::status::{Failure, Status, guarded};
use parking_lot::Mutex;
use spark_ccl::{Builder, Communicator, Registered, UniqueId};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::Arc;
use std::time::Duration;

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
}

static COMMS: Table<Comm> = Table::new("communicator");

/// The communicator of a handle.
pub(crate) fn find(comm: *const Handle) -> Result<Arc<Comm>, Failure> {
    COMMS.get(comm as u64)
}

fn insert(comm: Communicator) -> *mut Handle {
    let memory = Mutex::default();
    COMMS.insert(Comm {
        inner: comm,
        memory,
    }) as *mut Handle
}

/// `spark_ccl_unique_id`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Id {
    bytes: [u8; UniqueId::LEN],
}

/// `spark_ccl_setting`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    name: *const c_char,
    value: *const c_char,
}

/// `spark_ccl_get_unique_id`.
///
/// # Safety
/// `id` is null or points to a `spark_ccl_unique_id` that can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_get_unique_id(id: *mut Id) -> Status {
    guarded(|| {
        let id = given(id, "id")?;
        let bytes = *Communicator::builder().unique_id()?.as_bytes();
        // SAFETY: not null, and then writable by this function's contract.
        unsafe { id.write(Id { bytes }) };
        Ok(())
    })
}

/// `spark_ccl_comm_create`.
///
/// # Safety
/// `id` is null or points to a `spark_ccl_unique_id`, `settings` to as many as `count` says, whose strings end in a null
/// character, and `comm` to a pointer that can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_comm_create(
    id: *const Id,
    rank: c_int,
    size: c_int,
    settings: *const Setting,
    count: usize,
    comm: *mut *mut Handle,
) -> Status {
    guarded(|| {
        let comm = Output::new(comm)?;
        let (rank, size) = (natural(rank, "rank")?, natural(size, "size")?);
        // SAFETY: not null, and then readable by this function's contract.
        let bytes = unsafe { *given(id, "id")? }.bytes;
        let id = UniqueId::from_bytes(&bytes).map_err(spark_ccl::Error::from)?;
        // SAFETY: this function's contract.
        let builder = unsafe { builder(settings, count) }?;
        comm.give(builder.connect(&id, rank, size)?);
        Ok(())
    })
}

/// `spark_ccl_comm_from_env`.
///
/// # Safety
/// As of [`spark_ccl_comm_create`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_comm_from_env(
    settings: *const Setting,
    count: usize,
    comm: *mut *mut Handle,
) -> Status {
    guarded(|| {
        let comm = Output::new(comm)?;
        // SAFETY: this function's contract.
        let builder = unsafe { builder(settings, count) }?;
        comm.give(builder.from_env()?);
        Ok(())
    })
}

/// `spark_ccl_comm_split`.
///
/// # Safety
/// `part` is null or points to a pointer that can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_comm_split(
    comm: *mut Handle,
    color: c_int,
    key: c_int,
    part: *mut *mut Handle,
) -> Status {
    guarded(|| {
        let part = Output::new(part)?;
        // Any number below 0 means that the rank is in none.
        if let Some(made) = find(comm)?.inner.split(u32::try_from(color).ok(), key)? {
            part.give(made);
        }
        Ok(())
    })
}

/// `spark_ccl_comm_shrink`.
///
/// # Safety
/// `lost` points to as many ranks as `count` says, and `rest` is null or points to a pointer that can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_comm_shrink(
    comm: *mut Handle,
    lost: *const c_int,
    count: usize,
    rest: *mut *mut Handle,
) -> Status {
    guarded(|| {
        let rest = Output::new(rest)?;
        // SAFETY: this function's contract.
        let lost = unsafe { slice(lost, count, "lost") }?;
        let lost = lost.iter().map(|&rank| natural(rank, "a lost rank"));
        let lost = lost.collect::<Result<Vec<_>, _>>()?;
        rest.give(find(comm)?.inner.shrink(&lost)?);
        Ok(())
    })
}

/// `spark_ccl_comm_rank`.
///
/// # Safety
/// `rank` is null or points to an `int` that can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_comm_rank(comm: *mut Handle, rank: *mut c_int) -> Status {
    // SAFETY: this function's contract.
    unsafe { number(comm, rank, "rank", Communicator::rank) }
}

/// `spark_ccl_comm_size`.
///
/// # Safety
/// `size` is null or points to an `int` that can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_comm_size(comm: *mut Handle, size: *mut c_int) -> Status {
    // SAFETY: this function's contract.
    unsafe { number(comm, size, "size", Communicator::size) }
}

/// `spark_ccl_comm_set_timeout`.
#[unsafe(no_mangle)]
pub extern "C" fn spark_ccl_comm_set_timeout(comm: *mut Handle, milliseconds: c_uint) -> Status {
    guarded(|| {
        let timeout = Duration::from_millis(milliseconds.into());
        find(comm)?.inner.set_timeout(timeout);
        Ok(())
    })
}

/// `spark_ccl_comm_check`.
#[unsafe(no_mangle)]
pub extern "C" fn spark_ccl_comm_check(comm: *mut Handle) -> Status {
    guarded(|| Ok(find(comm)?.inner.check()?))
}

/// `spark_ccl_comm_abort`.
///
/// # Safety
/// `reason` is null or a string that ends in a null character.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_comm_abort(comm: *mut Handle, reason: *const c_char) -> Status {
    guarded(|| {
        // SAFETY: this function's contract.
        let reason = unsafe { text(reason) };
        let reason = reason.as_deref().unwrap_or("no reason given");
        find(comm)?.inner.abort(reason);
        Ok(())
    })
}

/// `spark_ccl_comm_finalize`.
#[unsafe(no_mangle)]
pub extern "C" fn spark_ccl_comm_finalize(comm: *mut Handle) -> Status {
    guarded(|| Ok(find(comm)?.inner.finalize()?))
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

/// `spark_ccl_alloc`.
///
/// # Safety
/// `memory` is null or points to a pointer that can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_alloc(
    comm: *mut Handle,
    bytes: usize,
    memory: *mut *mut c_void,
) -> Status {
    guarded(|| {
        let memory = given(memory, "memory")?;
        // SAFETY: not null, and then writable by this function's contract.
        unsafe { memory.write(std::ptr::null_mut()) };
        let comm = find(comm)?;
        let made = Arc::new(comm.inner.alloc::<u8>(bytes)?);
        let start = made.as_ptr().cast_mut().cast();
        comm.memory.lock().push(made);
        // SAFETY: as above.
        unsafe { memory.write(start) };
        Ok(())
    })
}

/// `spark_ccl_free`.
#[unsafe(no_mangle)]
pub extern "C" fn spark_ccl_free(comm: *mut Handle, memory: *mut c_void) -> Status {
    guarded(|| {
        if memory.is_null() {
            return Ok(());
        }
        let comm = find(comm)?;
        let mut all = comm.memory.lock();
        let known = all
            .iter()
            .position(|one| std::ptr::eq(one.as_ptr(), memory.cast()));
        let Some(index) = known else {
            return Err(Failure::invalid(
                "the communicator has allocated no memory that begins there".to_owned(),
            ));
        };
        drop(all.swap_remove(index));
        Ok(())
    })
}

/// Where a new communicator goes: null until there is one.
struct Output(*mut *mut Handle);

impl Output {
    /// The pointer must be null, or writable.
    fn new(to: *mut *mut Handle) -> Result<Self, Failure> {
        let to = given(to, "the pointer to the new communicator")?;
        // SAFETY: not null, and then writable by the contract of the functions that pass it.
        unsafe { to.write(std::ptr::null_mut()) };
        Ok(Self(to))
    }

    fn give(&self, comm: Communicator) {
        // SAFETY: as in `new`.
        unsafe { self.0.write(insert(comm)) };
    }
}

/// # Safety
/// As of [`spark_ccl_comm_create`].
unsafe fn builder(settings: *const Setting, count: usize) -> Result<Builder, Failure> {
    let mut builder = Communicator::builder();
    // SAFETY: this function's contract.
    for setting in unsafe { slice(settings, count, "settings") }? {
        // SAFETY: this function's contract.
        let (name, value) = unsafe { (text(setting.name), text(setting.value)) };
        let (Some(name), Some(value)) = (name, value) else {
            return Err(Failure::invalid(
                "a setting has no name or no value".to_owned(),
            ));
        };
        builder = builder.set(&name, &value);
    }
    Ok(builder)
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
        // SAFETY: not null, and then writable by this function's contract.
        unsafe { given(out, name)?.write(value) };
        Ok(())
    })
}
