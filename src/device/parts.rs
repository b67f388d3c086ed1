//! This rank's parts in a call of the user.

use spark_ccl_control::DevicePart;
use spark_ccl_types::Operation;

use crate::task::Task;

/// One part for a collective; for messages, one for each that is sent or received.
pub(super) fn parts_of(task: &Task) -> impl Iterator<Item = DevicePart> + use<> {
    let (to, from) = (
        DevicePart::SendTo(task.to),
        DevicePart::ReceiveFrom(task.from),
    );
    let parts = match task.operation() {
        Operation::Send => [Some(to), None],
        Operation::Recv => [None, Some(from)],
        Operation::SendRecv => [Some(to), Some(from)],
        _ => [Some(DevicePart::Collective), None],
    };
    parts.into_iter().flatten()
}
