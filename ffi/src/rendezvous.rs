//! How ranks meet in communicators, and how they part.

use std::ffi::{c_char, c_int};

use spark_ccl::{Builder, Communicator};
use spark_ccl_abi::arguments::{given, natural, slice, text};
use spark_ccl_abi::failure::{Failure, guarded};
use spark_ccl_abi::groups::must_be_closed;

use crate::comm::{Handle, find, insert};
use crate::status::Status;
use crate::unique_id::Id;

/// `spark_ccl_setting`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    pub(crate) name: *const c_char,
    pub(crate) value: *const c_char,
}

/// `spark_ccl_comm_create`.
///
/// # Safety
/// `id` is null or points to a `spark_ccl_unique_id`. `settings` is null or points to `count`
/// settings; their strings are null or end in a null character. Nobody writes any of them until
/// this returns. `comm` is null or points to a pointer that can be written.
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
        // SAFETY: `comm` is null or can be written (this function's contract), and the output does
        // not outlive this call.
        let comm = unsafe { Output::new(comm) }?;
        must_be_closed("spark_ccl_comm_create")?;
        let (rank, size) = (natural(rank, "rank")?, natural(size, "size")?);
        // SAFETY: `given` refuses null, and otherwise `id` points to a `spark_ccl_unique_id` (this
        // function's contract), which is an array of bytes and needs no alignment.
        let id = unsafe { given(id, "id")?.read() }.known()?;
        // SAFETY: `settings` is null or points to `count` settings, with strings that are null or
        // end in a null character, and nobody writes them until this returns (this function's
        // contract).
        let builder = unsafe { builder(settings, count) }?;
        comm.give(builder.connect(&id, rank, size)?);
        Ok(())
    })
}

/// `spark_ccl_comm_from_env`.
///
/// # Safety
/// `settings` is null or points to `count` settings; their strings are null or end in a null
/// character. Nobody writes any of them until this returns. `comm` is null or points to a pointer
/// that can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_comm_from_env(
    settings: *const Setting,
    count: usize,
    comm: *mut *mut Handle,
) -> Status {
    guarded(|| {
        // SAFETY: `comm` is null or can be written (this function's contract), and the output does
        // not outlive this call.
        let comm = unsafe { Output::new(comm) }?;
        must_be_closed("spark_ccl_comm_from_env")?;
        // SAFETY: `settings` is null or points to `count` settings, with strings that are null or
        // end in a null character, and nobody writes them until this returns (this function's
        // contract).
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
        // SAFETY: `part` is null or can be written (this function's contract), and the output does
        // not outlive this call.
        let part = unsafe { Output::new(part) }?;
        must_be_closed("spark_ccl_comm_split")?;
        // With a negative color, the rank is in no part.
        if let Some(made) = find(comm)?.inner.split(u32::try_from(color).ok(), key)? {
            part.give(made);
        }
        Ok(())
    })
}

/// `spark_ccl_comm_recover`.
///
/// # Safety
/// `rest` is null or points to a pointer that can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_comm_recover(
    comm: *mut Handle,
    rest: *mut *mut Handle,
) -> Status {
    guarded(|| {
        // SAFETY: `rest` is null or can be written (this function's contract), and the output does
        // not outlive this call.
        let rest = unsafe { Output::new(rest) }?;
        must_be_closed("spark_ccl_comm_recover")?;
        rest.give(find(comm)?.inner.recover()?);
        Ok(())
    })
}

/// `spark_ccl_comm_shrink`.
///
/// # Safety
/// `lost` is null or points to `count` ranks, which nobody writes until this returns. `rest` is
/// null or points to a pointer that can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_comm_shrink(
    comm: *mut Handle,
    lost: *const c_int,
    count: usize,
    rest: *mut *mut Handle,
) -> Status {
    guarded(|| {
        // SAFETY: `rest` is null or can be written (this function's contract), and the output does
        // not outlive this call.
        let rest = unsafe { Output::new(rest) }?;
        must_be_closed("spark_ccl_comm_shrink")?;
        // SAFETY: `lost` is null or points to `count` ranks, which nobody writes until this returns
        // (this function's contract). They are copied within this closure.
        let lost = unsafe { slice(lost, count, "lost") }?;
        let lost = lost.iter().map(|&rank| natural(rank, "a lost rank"));
        let lost = lost.collect::<Result<Vec<_>, _>>()?;
        rest.give(find(comm)?.inner.shrink(&lost)?);
        Ok(())
    })
}

/// `spark_ccl_comm_finalize`.
#[unsafe(no_mangle)]
pub extern "C" fn spark_ccl_comm_finalize(comm: *mut Handle) -> Status {
    guarded(|| {
        must_be_closed("spark_ccl_comm_finalize")?;
        Ok(find(comm)?.inner.finalize()?)
    })
}

/// Where a new communicator goes: null until there is one.
struct Output(*mut *mut Handle);

impl Output {
    /// # Safety
    /// `to` is null or points to a pointer that can be written as long as the output lives.
    unsafe fn new(to: *mut *mut Handle) -> Result<Self, Failure> {
        let to = given(to, "the pointer to the new communicator")?;
        // SAFETY: `given` has refused null, so `to` can be written (this function's contract).
        unsafe { to.write(std::ptr::null_mut()) };
        Ok(Self(to))
    }

    fn give(&self, comm: Communicator) {
        // SAFETY: the pointer is not null, and can be written as long as the output lives (contract
        // of `new`).
        unsafe { self.0.write(insert(comm)) };
    }
}

/// A builder with the settings.
///
/// # Safety
/// `settings` is null or points to `count` settings; their strings are null or end in a null
/// character. Nobody writes any of them until this returns.
unsafe fn builder(settings: *const Setting, count: usize) -> Result<Builder, Failure> {
    let mut builder = Communicator::builder();
    // SAFETY: `settings` is null or points to `count` settings, which nobody writes until this
    // returns (this function's contract). The slice is not used longer.
    for setting in unsafe { slice(settings, count, "settings") }? {
        // SAFETY: the strings of each setting are null or end in a null character, and nobody
        // writes them until this returns (this function's contract). The texts are not used longer:
        // the builder copies them.
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
