//! Collectives. They return as soon as they are enqueued in the stream.

use std::ffi::c_void;

use Peers::{All, One};

use super::{Communicator, RedOp};
use crate::{DeviceSlice, Error, Stream};

impl Communicator {
    /// Reduces the `send` buffers of all ranks, element by element, into the `recv` buffer of each.
    /// In place if both are the same.
    ///
    /// # Errors
    ///
    /// An argument is wrong, the communicator has failed, or NCCL fails.
    pub fn all_reduce(
        &self,
        send: DeviceSlice,
        recv: DeviceSlice,
        op: RedOp<'_>,
        stream: Stream,
    ) -> Result<(), Error> {
        let call = self.begin("ncclAllReduce")?;
        call.check_buffers(&[(SEND, Some(send)), (RECEIVE, Some(recv))], Some(stream))?;
        call.check_len(RECEIVE, recv, send.len())?;
        call.check_overlap(recv, send, SAME)?;
        let op = call.reduction(op, send.dtype())?;
        // SAFETY: `begin` returned the handle of a live communicator of this thread. Both buffers
        // have the length that NCCL is given, and the callers of `from_raw` promised that buffers
        // and stream live until the operation has run.
        let code = unsafe {
            (call.api().ncclAllReduce)(
                send.start(),
                recv.start(),
                send.len(),
                send.dtype().code().into(),
                op,
                call.raw,
                stream.raw(),
            )
        };
        call.finish(code)
    }

    /// Reduces the `send` buffers of all ranks into the root's `recv`, which other ranks need not
    /// pass. In place if both are the same.
    ///
    /// # Errors
    ///
    /// Those of [`all_reduce`](Self::all_reduce).
    pub fn reduce(
        &self,
        send: DeviceSlice,
        recv: Option<DeviceSlice>,
        op: RedOp<'_>,
        root: usize,
        stream: Stream,
    ) -> Result<(), Error> {
        let call = self.begin("ncclReduce")?;
        call.check_buffers(&[(SEND, Some(send)), (RECEIVE, recv)], Some(stream))?;
        let root_rank = call.rank(ROOT, root)?;
        if let Some(recv) = call.root_buffer(root, RECEIVE, recv)? {
            call.check_len(RECEIVE, recv, send.len())?;
            call.check_overlap(recv, send, SAME)?;
        }
        let op = call.reduction(op, send.dtype())?;
        // SAFETY: `begin` returned the handle of a live communicator of this thread. Only the
        // root's receive buffer is written, and there both buffers have the length that NCCL is
        // given. The callers of `from_raw` promised that buffers and stream live until the
        // operation has run.
        let code = unsafe {
            (call.api().ncclReduce)(
                send.start(),
                start(recv),
                send.len(),
                send.dtype().code().into(),
                op,
                root_rank,
                call.raw,
                stream.raw(),
            )
        };
        call.finish(code)
    }

    /// Copies the root's `send`, which other ranks need not pass, into the `recv` buffer of each
    /// rank. In place if both are the same.
    ///
    /// # Errors
    ///
    /// Those of [`all_reduce`](Self::all_reduce).
    pub fn broadcast(
        &self,
        send: Option<DeviceSlice>,
        recv: DeviceSlice,
        root: usize,
        stream: Stream,
    ) -> Result<(), Error> {
        let call = self.begin("ncclBroadcast")?;
        call.check_buffers(&[(RECEIVE, Some(recv)), (SEND, send)], Some(stream))?;
        let root_rank = call.rank(ROOT, root)?;
        if let Some(send) = call.root_buffer(root, SEND, send)? {
            call.check_len(SEND, send, recv.len())?;
            call.check_overlap(recv, send, SAME)?;
        }
        // SAFETY: `begin` returned the handle of a live communicator of this thread. Only the
        // root's send buffer is read, and there both buffers have the length that NCCL is given.
        // The callers of `from_raw` promised that buffers and stream live until the operation has
        // run.
        let code = unsafe {
            (call.api().ncclBroadcast)(
                start(send),
                recv.start(),
                recv.len(),
                recv.moved_as(),
                root_rank,
                call.raw,
                stream.raw(),
            )
        };
        call.finish(code)
    }

    /// Concatenates the `send` buffers of all ranks in the `recv` buffer of each. In place if
    /// `send` is this rank's part of `recv`.
    ///
    /// # Errors
    ///
    /// Those of [`all_reduce`](Self::all_reduce).
    pub fn all_gather(
        &self,
        send: DeviceSlice,
        recv: DeviceSlice,
        stream: Stream,
    ) -> Result<(), Error> {
        let call = self.begin("ncclAllGather")?;
        call.check_buffers(&[(SEND, Some(send)), (RECEIVE, Some(recv))], Some(stream))?;
        call.check_len(SEND, send, call.per_rank(RECEIVE, recv)?)?;
        call.check_overlap(recv, send, Some(own_part(self.rank()?, send.len())))?;
        // SAFETY: `begin` returned the handle of a live communicator of this thread. The receive
        // buffer has a part for each rank, as long as the send buffer. The callers of `from_raw`
        // promised that buffers and stream live until the operation has run.
        let code = unsafe {
            (call.api().ncclAllGather)(
                send.start(),
                recv.start(),
                send.len(),
                send.moved_as(),
                call.raw,
                stream.raw(),
            )
        };
        call.finish(code)
    }

    /// Reduces the `send` buffers of all ranks, and gives each rank one part of the result. In
    /// place if `recv` is this rank's part of `send`.
    ///
    /// # Errors
    ///
    /// Those of [`all_reduce`](Self::all_reduce).
    pub fn reduce_scatter(
        &self,
        send: DeviceSlice,
        recv: DeviceSlice,
        op: RedOp<'_>,
        stream: Stream,
    ) -> Result<(), Error> {
        let call = self.begin("ncclReduceScatter")?;
        call.check_buffers(&[(SEND, Some(send)), (RECEIVE, Some(recv))], Some(stream))?;
        call.check_len(RECEIVE, recv, call.per_rank(SEND, send)?)?;
        call.check_overlap(send, recv, Some(own_part(self.rank()?, recv.len())))?;
        let op = call.reduction(op, send.dtype())?;
        // SAFETY: `begin` returned the handle of a live communicator of this thread. The send
        // buffer has a part for each rank, as long as the receive buffer. The callers of `from_raw`
        // promised that buffers and stream live until the operation has run.
        let code = unsafe {
            (call.api().ncclReduceScatter)(
                send.start(),
                recv.start(),
                recv.len(),
                send.dtype().code().into(),
                op,
                call.raw,
                stream.raw(),
            )
        };
        call.finish(code)
    }

    /// Copies part `r` of `send` to rank `r`, where it becomes part `self.rank()` of `recv`. Never
    /// in place. Before NCCL 2.28.3 this is done with sends and receives.
    ///
    /// # Errors
    ///
    /// Those of [`all_reduce`](Self::all_reduce).
    pub fn all_to_all(
        &self,
        send: DeviceSlice,
        recv: DeviceSlice,
        stream: Stream,
    ) -> Result<(), Error> {
        let call = self.begin("ncclAlltoAll")?;
        call.check_buffers(&[(SEND, Some(send)), (RECEIVE, Some(recv))], Some(stream))?;
        call.check_len(RECEIVE, recv, send.len())?;
        let count = call.per_rank(SEND, send)?;
        call.check_overlap(send, recv, None)?;
        let Ok(function) = call.api().ncclAlltoAll() else {
            return self.send_and_receive(Some((send, All)), Some((recv, All)), stream);
        };
        // SAFETY: `begin` returned the handle of a live communicator of this thread. Both buffers
        // have a part of `count` elements for each rank. The callers of `from_raw` promised that
        // buffers and stream live until the operation has run.
        let code = unsafe {
            function(
                send.start(),
                recv.start(),
                count,
                send.moved_as(),
                call.raw,
                stream.raw(),
            )
        };
        call.finish(code)
    }

    /// Concatenates the `send` buffers of all ranks in the root's `recv`, which other ranks need
    /// not pass. In place if `send` is the root's part of `recv`. Before NCCL 2.28.3 this is done
    /// with sends and receives.
    ///
    /// # Errors
    ///
    /// Those of [`all_reduce`](Self::all_reduce).
    pub fn gather(
        &self,
        send: DeviceSlice,
        recv: Option<DeviceSlice>,
        root: usize,
        stream: Stream,
    ) -> Result<(), Error> {
        let call = self.begin("ncclGather")?;
        call.check_buffers(&[(SEND, Some(send)), (RECEIVE, recv)], Some(stream))?;
        let root_rank = call.rank(ROOT, root)?;
        let used = call.root_buffer(root, RECEIVE, recv)?;
        if let Some(recv) = used {
            call.check_len(SEND, send, call.per_rank(RECEIVE, recv)?)?;
            call.check_overlap(recv, send, Some(own_part(root, send.len())))?;
        }
        let Ok(function) = call.api().ncclGather() else {
            let all = used.map(|recv| (recv, All));
            return self.send_and_receive(Some((send, One(root))), all, stream);
        };
        // SAFETY: `begin` returned the handle of a live communicator of this thread. Only the
        // root's receive buffer is written, and it has a part for each rank, as long as the send
        // buffer. The callers of `from_raw` promised that buffers and stream live until the
        // operation has run.
        let code = unsafe {
            function(
                send.start(),
                start(recv),
                send.len(),
                send.moved_as(),
                root_rank,
                call.raw,
                stream.raw(),
            )
        };
        call.finish(code)
    }

    /// Copies part `r` of the root's `send`, which other ranks need not pass, to the `recv` buffer
    /// of rank `r`. In place if `recv` is the root's part of `send`. Before NCCL 2.28.3 this is
    /// done with sends and receives.
    ///
    /// # Errors
    ///
    /// Those of [`all_reduce`](Self::all_reduce).
    pub fn scatter(
        &self,
        send: Option<DeviceSlice>,
        recv: DeviceSlice,
        root: usize,
        stream: Stream,
    ) -> Result<(), Error> {
        let call = self.begin("ncclScatter")?;
        call.check_buffers(&[(RECEIVE, Some(recv)), (SEND, send)], Some(stream))?;
        let root_rank = call.rank(ROOT, root)?;
        let used = call.root_buffer(root, SEND, send)?;
        if let Some(send) = used {
            call.check_len(RECEIVE, recv, call.per_rank(SEND, send)?)?;
            call.check_overlap(send, recv, Some(own_part(root, recv.len())))?;
        }
        let Ok(function) = call.api().ncclScatter() else {
            let all = used.map(|send| (send, All));
            return self.send_and_receive(all, Some((recv, One(root))), stream);
        };
        // SAFETY: `begin` returned the handle of a live communicator of this thread. Only the
        // root's send buffer is read, and it has a part for each rank, as long as the receive
        // buffer. The callers of `from_raw` promised that buffers and stream live until the
        // operation has run.
        let code = unsafe {
            function(
                start(send),
                recv.start(),
                recv.len(),
                recv.moved_as(),
                root_rank,
                call.raw,
                stream.raw(),
            )
        };
        call.finish(code)
    }

    /// Sends and receives the parts of the buffers to and from their peers, in one group.
    fn send_and_receive(
        &self,
        send: Option<(DeviceSlice, Peers)>,
        recv: Option<(DeviceSlice, Peers)>,
        stream: Stream,
    ) -> Result<(), Error> {
        let ranks = self.size()?;
        self.inner.library.group(|| {
            for (part, peer) in parts(send, ranks) {
                self.send(part, peer, stream)?;
            }
            for (part, peer) in parts(recv, ranks) {
                self.recv(part, peer, stream)?;
            }
            Ok(())
        })
    }
}

/// The peers that a buffer's elements go to or come from.
#[derive(Clone, Copy)]
enum Peers {
    /// All ranks, each with one part.
    All,
    /// One rank, with the whole buffer.
    One(usize),
}

fn parts(
    buffer: Option<(DeviceSlice, Peers)>,
    ranks: usize,
) -> impl Iterator<Item = (DeviceSlice, usize)> {
    buffer.into_iter().flat_map(move |(slice, peers)| {
        let (first, peers) = match peers {
            All => (0, ranks),
            One(peer) => (peer, 1),
        };
        let count = slice.len() / peers;
        let part = move |index| Some((slice.part(index * count, count)?, first + index));
        (0..peers).filter_map(part)
    })
}

/// The address of a buffer that only the root needs. NCCL does not access those of other ranks, but
/// its choices may depend on the address.
fn start(buffer: Option<DeviceSlice>) -> *mut c_void {
    buffer.map_or(std::ptr::null_mut(), DeviceSlice::start)
}

const SEND: &str = "send";
const RECEIVE: &str = "receive";
const ROOT: &str = "root";

/// In place, if both buffers have the same length.
const SAME: Option<(usize, &str)> = Some((0, "the same"));

/// In place, if one buffer has a part for each rank.
fn own_part(rank: usize, count: usize) -> (usize, &'static str) {
    (rank * count, "one this rank's part of the other")
}
