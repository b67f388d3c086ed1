//! Reductions that a program makes: sums with a factor.

use std::ffi::{c_int, c_void};

use spark_ccl_abi::arguments::{dtype, given};
use spark_ccl_abi::failure::{Failure, guarded};

use crate::comm::find;
use crate::factors::Factor;
use crate::status::Status;
use crate::types::{ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclScalarResidence_t};

/// `ncclScalarHostImmediate`.
const IMMEDIATE: c_int = 1;

/// `ncclRedOpCreatePreMulSum`.
///
/// # Safety
/// `op` is null or can be written, and `scalar` is null or points to an element of the type.
pub(crate) unsafe fn create(
    op: *mut ncclRedOp_t,
    scalar: *mut c_void,
    datatype: ncclDataType_t,
    residence: ncclScalarResidence_t,
    comm: ncclComm_t,
) -> Status {
    guarded(|| {
        let (op, scalar) = (given(op, "op")?, given(scalar, "scalar")?);
        let comm = find(comm)?;
        let dtype = dtype(datatype, "ncclDataType_t")?;
        if residence != IMMEDIATE {
            return Err(Failure::invalid(format!(
                "the factor's residence is {residence}: only ncclScalarHostImmediate (1) is \
                 implemented"
            )));
        }
        let mut bytes = [0; 8];
        // SAFETY: `given` has refused null, and otherwise `scalar` points to an element of the type
        // (this function's contract), which has at most 8 bytes.
        unsafe {
            scalar
                .cast::<u8>()
                .copy_to_nonoverlapping(bytes.as_mut_ptr(), dtype.size());
        }
        let number = comm.factors.insert(Factor { dtype, bytes })?;
        // SAFETY: `given` has refused null, and otherwise `op` can be written (this function's
        // contract).
        unsafe { op.write(number) };
        Ok(())
    })
}

/// `ncclRedOpDestroy`.
pub(crate) fn destroy(op: ncclRedOp_t, comm: ncclComm_t) -> Status {
    guarded(|| find(comm)?.factors.remove(op))
}
