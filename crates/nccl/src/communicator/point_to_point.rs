use super::Communicator;
use crate::{DeviceSlice, Error, Stream};

impl Communicator {
    /// Sends to a peer, which receives as many elements of the same type. It ends when the peer
    /// receives: what must go on at the same time goes into one [`group`](crate::Library::group).
    ///
    /// # Errors
    ///
    /// An argument is wrong, the communicator has failed, or NCCL fails.
    pub fn send(&self, buffer: DeviceSlice, peer: usize, stream: Stream) -> Result<(), Error> {
        let call = self.begin("ncclSend")?;
        call.places(&[("send", Some(buffer))], Some(stream))?;
        let peer = call.rank("peer", peer)?;
        let dtype = buffer.dtype().code().into();
        // SAFETY: the communicator lives, and is this thread's; the buffer is as long as NCCL is
        // told, and lives as long as whoever made it promised.
        let code = unsafe {
            (call.api().ncclSend)(
                buffer.start(),
                buffer.len(),
                dtype,
                peer,
                call.raw,
                stream.raw(),
            )
        };
        call.finish(code)
    }

    /// Receives what a peer [`send`](Self::send)s.
    ///
    /// # Errors
    ///
    /// As for [`send`](Self::send).
    pub fn recv(&self, buffer: DeviceSlice, peer: usize, stream: Stream) -> Result<(), Error> {
        let call = self.begin("ncclRecv")?;
        call.places(&[("receive", Some(buffer))], Some(stream))?;
        let peer = call.rank("peer", peer)?;
        let dtype = buffer.dtype().code().into();
        // SAFETY: as in `send`.
        let code = unsafe {
            (call.api().ncclRecv)(
                buffer.start(),
                buffer.len(),
                dtype,
                peer,
                call.raw,
                stream.raw(),
            )
        };
        call.finish(code)
    }
}
