//! Passes calls on to the fallback: functions that are not done here, and every function of a
//! communicator that is not ours. Calls with a foreign communicator come from the fallback itself:
//! where the user has mapped it, too, it calls some of its functions by their names, and so reaches
//! ours.

use std::any::Any;
use std::sync::Arc;

use spark_ccl_abi::failure::{Failure, Kind, guarded};
use spark_ccl_abi::groups;

use crate::comm::{Comm, enter, find, is_ours};
use crate::fallback::Real;
use crate::groups::keep;
use crate::refusal::Answer;
use crate::shadow::InUse;
use crate::status::Status;
use crate::types::ncclComm_t;

/// Functions that all ranks call, so that they can make a communicator of the fallback.
const COLLECTIVE: [&str; 2] = ["ncclCommWindowRegister", "ncclDevCommCreate"];

/// Whether an argument is a communicator of another library.
pub(crate) fn is_foreign<T: 'static>(argument: &T) -> bool {
    let argument: &dyn Any = argument;
    let comm = argument.downcast_ref::<ncclComm_t>();
    comm.is_some_and(|comm| !comm.is_null() && !is_ours(*comm))
}

/// One of our communicators, and its shadow, while a function of the fallback uses it. Fields are
/// dropped in their order.
pub(crate) struct Passed {
    in_use: InUse,
    /// Whose drop ends the shadow, after the use.
    comm: Arc<Comm>,
}

/// An argument for a function of the fallback: one of our communicators is replaced by its shadow,
/// which is in use until it is no longer among `used`.
pub(crate) fn passed<T: 'static>(
    mut argument: T,
    used: &mut Vec<Passed>,
    name: &str,
    real: &'static Real,
) -> Result<T, Failure> {
    let any: &mut dyn Any = &mut argument;
    let comm = any.downcast_mut::<ncclComm_t>();
    let Some(comm) = comm.filter(|comm| is_ours(**comm)) else {
        return Ok(argument);
    };
    let own = if COLLECTIVE.contains(&name) {
        let own = enter(*comm)?;
        *comm = made(&own, name, real)?;
        own
    } else {
        let own = find(*comm)?;
        *comm = own.shadow.get().ok_or_else(|| {
            Failure::new(
                Kind::Usage,
                format!(
                    "{name} goes to {}, which has no communicator yet: the ranks make it in {}, or \
                     {}",
                    real.name(),
                    COLLECTIVE[0],
                    COLLECTIVE[1]
                ),
            )
        })?;
        own
    };
    used.push(Passed {
        in_use: own.shadow.enter()?,
        comm: own,
    });
    Ok(argument)
}

/// The shadow of our communicator. Makes it first, with all ranks, if the function is collective.
/// Not within a group, where the fallback would make it only at the group's end.
fn made(own: &Comm, name: &str, real: &'static Real) -> Result<ncclComm_t, Failure> {
    if let Some(made) = own.shadow.get() {
        return Ok(made);
    }
    groups::must_be_closed(name).inspect_err(groups::keep_failure)?;
    own.shadow.made(&own.inner, real)
}

/// Ends the use of communicators by a function that has returned. In a group of the fallback, its
/// call is still to come: the communicators stay until the group has ended.
pub(crate) fn returned(used: Vec<Passed>) {
    for Passed { in_use, comm } in used {
        drop(in_use);
        keep(comm);
    }
}

/// Calls a function of the fallback, and keeps the message of a failure.
pub(crate) fn send<A: Answer>(
    name: &str,
    real: &Real,
    call: impl FnOnce() -> Result<A::Raw, Failure>,
) -> A {
    let mut raw = None;
    let called: Status = guarded(|| {
        raw = Some(call()?);
        Ok(())
    });
    match raw {
        None => A::nothing(called),
        Some(raw) => A::of(raw, |code| guarded(|| real.passed(name, code))),
    }
}
