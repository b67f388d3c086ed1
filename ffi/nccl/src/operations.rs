//! Reductions that the user makes: sums with a factor.

use std::ffi::{c_int, c_void};

use spark_ccl_abi::arguments::{dtype, given};
use spark_ccl_abi::failure::{Failure, guarded};

use crate::comm::find;
use crate::factors::{Factor, Value};
use crate::status::Status;
use crate::types::{ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclScalarResidence_t};

/// `ncclScalarDevice`: each call reads the factor where it is.
const DEVICE: c_int = 0;
/// `ncclScalarHostImmediate`: the factor is copied.
const IMMEDIATE: c_int = 1;

/// `ncclRedOpCreatePreMulSum`.
///
/// # Safety
/// `op` is null or can be written. `scalar` is null or points to an element of the type: in the
/// host's memory if `residence` says so; otherwise it stays there until the calls with it have run.
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
        let value = match residence {
            DEVICE if comm.inner.device().is_some() => Value::At(scalar.addr()),
            DEVICE => {
                return Err(Failure::invalid(
                    "the factor's residence is ncclScalarDevice, and the communicator has no GPU",
                ));
            }
            IMMEDIATE => {
                let mut bytes = [0; 8];
                // SAFETY: `given` has refused null, and otherwise `scalar` points to an element of
                // the type (this function's contract), which has at most 8 bytes.
                unsafe {
                    scalar
                        .cast::<u8>()
                        .copy_to_nonoverlapping(bytes.as_mut_ptr(), dtype.size());
                }
                Value::Bytes(bytes)
            }
            other => {
                return Err(Failure::invalid(format!(
                    "{other} is no ncclScalarResidence_t (expected 0 or 1)"
                )));
            }
        };
        let number = comm.factors.insert(Factor { dtype, value })?;
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
