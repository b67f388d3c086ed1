//! Sends and receives between two ranks.

use super::Communicator;
use crate::{DeviceSlice, Error, Stream};

impl Communicator {
    /// Sends to a peer, which receives the same number of elements of the same type. The send
    /// completes when the peer receives: put sends and receives that must progress together into
    /// one [`group`](crate::Library::group).
    ///
    /// # Errors
    ///
    /// An argument is wrong, the communicator has failed, or NCCL fails.
    pub fn send(&self, buffer: DeviceSlice, peer: usize, stream: Stream) -> Result<(), Error> {
        let call = self.begin("ncclSend")?;
        call.check_buffers(&[("send", Some(buffer))], Some(stream))?;
        let peer = call.rank("peer", peer)?;
        // SAFETY: `begin` returned the handle of a live communicator of this thread. NCCL is given
        // the buffer's own length, and the callers of `from_raw` promised that buffer and stream
        // live until the send has run.
        let code = unsafe {
            (call.api().ncclSend)(
                buffer.start(),
                buffer.len(),
                buffer.moved_as(),
                peer,
                call.raw,
                stream.raw(),
            )
        };
        call.finish(code)
    }

    /// Receives a message that a peer sends with [`send`](Self::send).
    ///
    /// # Errors
    ///
    /// Those of [`send`](Self::send).
    pub fn recv(&self, buffer: DeviceSlice, peer: usize, stream: Stream) -> Result<(), Error> {
        let call = self.begin("ncclRecv")?;
        call.check_buffers(&[("receive", Some(buffer))], Some(stream))?;
        let peer = call.rank("peer", peer)?;
        // SAFETY: `begin` returned the handle of a live communicator of this thread. NCCL is given
        // the buffer's own length, and the callers of `from_raw` promised that buffer and stream
        // live until the receive has run.
        let code = unsafe {
            (call.api().ncclRecv)(
                buffer.start(),
                buffer.len(),
                buffer.moved_as(),
                peer,
                call.raw,
                stream.raw(),
            )
        };
        call.finish(code)
    }
}
