//! The properties of a communicator, and its statistics of GPU memory.

use std::ffi::c_int;
use std::mem::offset_of;

use spark_ccl_abi::arguments::given;
use spark_ccl_abi::failure::{Failure, Kind, guarded};

use crate::comm::find;
use crate::config::copy;
use crate::status::Status;
use crate::types::{ncclComm_t, ncclCommMemStat_t, ncclCommProperties_t};

/// `ncclCommQueryProperties`: fills the members that the caller's version has. Only the properties
/// of every communicator are set: there is no device API, and none of its kinds of memory and
/// networks.
///
/// # Safety
/// `properties` is null, or points to a structure that is as long as its `size` says, if that is
/// within reason, and that can be written.
pub(crate) unsafe fn query(comm: ncclComm_t, properties: *mut ncclCommProperties_t) -> Status {
    guarded(|| {
        const FIRST: usize = offset_of!(ncclCommProperties_t, rank);
        let comm = find(comm)?;
        let properties = given(properties, "props")?;
        let mut own = ncclCommProperties_t::UNSET;
        // SAFETY: `given` has refused null, so `properties` points to a structure as long as its
        // `size` says (this function's contract), and `own` is one, too.
        unsafe { copy(properties, &mut own, FIRST, "ncclCommProperties_t") }?;
        let narrow = |number: usize| c_int::try_from(number).unwrap_or(c_int::MAX);
        let size = narrow(comm.inner.size());
        let device = comm.inner.device().map_or(-1, narrow);
        let told = ncclCommProperties_t {
            size: own.size,
            magic: own.magic,
            version: own.version,
            rank: narrow(comm.inner.rank()),
            nRanks: size,
            cudaDev: device,
            nLsaTeams: size,
            commHash: comm.inner.context_id(),
            ..ncclCommProperties_t::UNSET
        };
        let known = own.size.min(size_of::<ncclCommProperties_t>());
        // SAFETY: the structure has `own.size` bytes, which can be written (this function's
        // contract), and `known` is no more. It does not overlap `told`, a variable of this
        // function.
        unsafe {
            std::ptr::from_ref(&told)
                .cast::<u8>()
                .copy_to_nonoverlapping(properties.cast(), known);
        }
        Ok(())
    })
}

/// `ncclCommMemStats`, for a communicator without a GPU.
///
/// # Safety
/// `value` is null or can be written.
pub(crate) unsafe fn memory(comm: ncclComm_t, stat: ncclCommMemStat_t, value: *mut u64) -> Status {
    guarded(|| {
        let comm = find(comm)?;
        let value = given(value, "value")?;
        if !(0..4).contains(&stat) {
            return Err(Failure::invalid(format!(
                "{stat} is no ncclCommMemStat_t (expected 0 to 3)"
            )));
        }
        if comm.inner.device().is_some() {
            return Err(Failure::new(
                Kind::Usage,
                "ncclCommMemStats is not implemented for communicators with a GPU",
            ));
        }
        // SAFETY: `given` has refused null, and otherwise `value` can be written (this function's
        // contract).
        unsafe { value.write(0) };
        Ok(())
    })
}
