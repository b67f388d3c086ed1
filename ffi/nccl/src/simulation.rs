//! `ncclGroupSimulateEnd`: how long the calls of a group would take.

use std::collections::BTreeMap;
use std::ptr;

use spark_ccl::{Communicator, Extent, Operation, Side, UntypedCall};
use spark_ccl_abi::arguments::given;
use spark_ccl_abi::failure::{Failure, guarded};
use spark_ccl_abi::groups;

use crate::groups::refuse_theirs;
use crate::status::Status;
use crate::types::ncclSimInfo_t;

/// The number behind the size of the structure.
const MAGIC: u32 = 0x7468_5283;

/// Microseconds that a call between GPUs takes at least, and bytes that pass in one, as measured
/// between two H200 (docs/measurements/gpu.md). What the host carries has a cost model.
const LEAST: f64 = 2.4;
const BYTES: f64 = 330e3;

/// No call takes less.
const SOME: f64 = 0.1;

/// Closes the innermost group, also where this fails, and begins none of its calls. Says how many
/// microseconds they would take, if it was the outermost; otherwise they stay in the group around
/// it, and the structure is left as it is.
///
/// # Safety
/// `info` is null, or points to a structure as NCCL documents it.
pub(crate) unsafe fn simulate_end(info: *mut ncclSimInfo_t) -> Status {
    guarded(|| {
        refuse_theirs()?;
        // As with NCCL, the group is closed also where this fails.
        let calls = groups::abandon()?;
        let info = given(info, "simInfo")?;
        // SAFETY: `given` has refused null, and otherwise this is a structure (this function's
        // contract).
        let magic = unsafe { (*info).magic };
        if magic != MAGIC {
            return Err(Failure::invalid(format!(
                "magic of the ncclSimInfo_t is {magic:#x}, not {MAGIC:#x}: begin with NCCL's \
                 initializer"
            )));
        }
        let Some(calls) = calls else { return Ok(()) };
        let mut times = BTreeMap::<_, f64>::new();
        for (comm, call) in calls {
            let inner = comm.inner();
            // The calls of a communicator run one after the other.
            *times.entry(ptr::from_ref(inner)).or_default() += estimate(inner, &call)?;
        }
        let longest = times.into_values().fold(0.0, f64::max);
        // SAFETY: `info` is not null, and its magic says that it is a whole ncclSimInfo_t. Such a
        // structure can be written (this function's contract).
        unsafe { (*info).estimatedTime = longest as f32 };
        Ok(())
    })
}

/// Microseconds of a call. Of one with blocks, those of the rank that moves the most.
fn estimate(comm: &Communicator, call: &UntypedCall) -> Result<f64, Failure> {
    let (operation, ranks) = (call.operation(), comm.size());
    let count = call.count(ranks);
    if comm.is_between_gpus() {
        let others = (ranks - 1) as f64;
        let has_blocks = |side| operation.extent(side) == Extent::Blocks;
        let share = if operation == Operation::AllReduce {
            2.0 * others / ranks as f64
        } else if has_blocks(Side::Input) || has_blocks(Side::Output) {
            others
        } else {
            1.0
        };
        let bytes = (count * call.dtype().size()) as f64;
        return Ok(LEAST + bytes * share / BYTES);
    }
    let modelled = if operation.has_schedule() {
        operation
    } else {
        Operation::Broadcast
    };
    let explained = comm.explain(modelled, call.dtype(), count, false)?;
    Ok(explained.modelled_us.max(SOME))
}
