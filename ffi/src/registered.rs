//! Buffers in registered memory, if the options of a call say so.

use spark_ccl::InPlaceRule;
use spark_ccl_abi::draft::{CallMemory, Draft};
use spark_ccl_abi::failure::Failure;

use crate::comm::Comm;

/// Takes all buffers of a draft as registered.
///
/// # Errors
/// A buffer lies in no memory that [`spark_ccl_alloc`](crate::memory::spark_ccl_alloc) made for the
/// communicator, or the operation cannot use registered memory.
pub(crate) fn within(draft: &mut Draft<'_>, comm: &Comm) -> Result<(), Failure> {
    for CallMemory { name, start, bytes } in draft.memory() {
        // Ranks other than the root have only one buffer, so their blocks would be at other offsets
        // than the root's.
        let operation = draft.operation();
        let is_alone = operation.is_rooted() && operation.in_place() == InPlaceRule::AlikeIfShared;
        if name == "in-place" && is_alone {
            return Err(Failure::invalid(format!(
                "{operation} of registered buffers cannot be in place, and is at root {}: pass \
                 another buffer there, or leave `registered` 0 on all ranks",
                draft.comm().rank()
            )));
        }
        // Null pointers and impossible lengths are refused later, with a better reason.
        let (false, Some(bytes @ 1..)) = (start.is_null(), bytes) else {
            continue;
        };
        let memory = comm.memory.lock();
        let home = memory.iter().find(|one| {
            let offset = (start as usize).wrapping_sub(one.as_mut_ptr() as usize);
            offset
                .checked_add(bytes)
                .is_some_and(|end| end <= one.len())
        });
        let home = home.cloned();
        drop(memory);
        let Some(home) = home else {
            return Err(Failure::invalid(format!(
                "the options of rank {} say that buffers are registered, and its {name} buffer \
                 of {bytes} bytes lies in no memory that spark_ccl_alloc made for this \
                 communicator: pass such memory on all ranks, at the same offsets, or leave \
                 `registered` 0 on all of them",
                draft.comm().rank()
            )));
        };
        draft.within(&home);
    }
    Ok(())
}
