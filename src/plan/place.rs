//! Whether the ranks can access each other's buffers in a call. Knows regions and signatures; it
//! reads and writes no memory.

use spark_ccl_config::Path;
use spark_ccl_types::{Operation, Side};

use super::Planner;
use super::tuner::may_be_one_sided;
use crate::error::Error;
use crate::memory::buffer::{Home, Region};
use crate::task::Task;

/// A code for the registered memory of a call's buffers, the same on every rank. It distinguishes
/// allocations and offsets. 0 for ordinary memory, where data goes through the links.
#[inline]
pub(super) fn place(task: &Task, planner: &Planner) -> Result<u64, Error> {
    // Ordinary memory, that of most small calls, is recognised first.
    let is_ordinary = task.input.home.is_none() && task.output.home.is_none();
    if planner.path == Path::Safe
        || planner.size == 1
        || is_ordinary && planner.path != Path::ZeroCopy
        || !may_be_one_sided(planner, task.operation())
    {
        return Ok(0);
    }
    // Only the rank itself knows its factor, so no other rank can reduce straight out of its
    // memory.
    let shared = match task.operation() {
        operation if !operation.moves_data() => return Ok(0),
        _ if task.reduction.differs_by_rank() => None,
        operation => operation.shared(task.in_place),
    };
    let home = |side| match side {
        Side::Input => task.input.home.as_ref(),
        Side::Output => task.output.home.as_ref(),
    };
    let registered = match shared.map(|sides| sides.map(home)) {
        Some([Some(a), Some(b)]) => code([a, b], planner.communicator),
        _ => None,
    };
    match registered {
        Some(code) => Ok(code),
        None if planner.path == Path::ZeroCopy && !task.by_any_path => {
            let within_reach = [&task.input, &task.output]
                .into_iter()
                .all(is_within_reach_of_devices);
            if planner.over_rdma() && within_reach {
                return Ok(0);
            }
            Err(refusal(task.operation(), planner))
        }
        None => Ok(0),
    }
}

/// Whether RDMA devices reach all of the region.
fn is_within_reach_of_devices(region: &Region) -> bool {
    let home = region.home.as_ref();
    region.len == 0 || home.is_some_and(|home| home.segment.is_within_reach_of_devices())
}

/// A number for a pair of places in memory that this rank has allocated with this communicator, and
/// that every rank has mapped. `None` for other memory, such as that of another rank of this
/// process, which no peer accesses in place.
fn code(homes: [&Home; 2], communicator: u64) -> Option<u64> {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for home in homes {
        let allocation = home.segment.allocation()?;
        if allocation.communicator != communicator || !allocation.reaches_all() {
            return None;
        }
        for word in [u64::from(allocation.id), home.offset as u64] {
            hash = (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3);
            hash ^= hash >> 29;
        }
    }
    // Errors show its low 16 bits, and these must not be 0, which stands for ordinary memory.
    Some(hash | 1)
}

fn refusal(operation: Operation, planner: &Planner) -> Error {
    let reason = if planner.all_share_memory {
        "the buffers are not registered: allocate them with Communicator::alloc on every rank \
         (spark-perf: --memory registered; and \
         a scatter or all_to_all must be of the kind that has a one-sided form, which a \
         pre-multiplied sum has not), or allow the safe \
         path (SPARK_CCL_PATH=auto)"
    } else if planner.over_rdma() {
        "the buffers are not registered with this rank's RDMA devices: allocate them with \
         Communicator::alloc, or register them (spark-perf: --memory registered; the log says \
         why a device cannot), or allow the safe path (SPARK_CCL_PATH=auto)"
    } else {
        "the ranks share no memory, and a link between them goes over TCP; allow the safe path \
         (SPARK_CCL_PATH=auto)"
    };
    Error::Unsupported {
        what: format!("{} on the zero-copy path", operation.name()),
        reason: reason.to_owned(),
    }
}
