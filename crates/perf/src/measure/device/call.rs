//! A rank's call on device memory.

use std::ops::Range;

use spark_ccl::cuda::{DeviceOperands, DeviceSlice, Group};
use spark_ccl::{Element, Error};

use super::gpu::Gpu;
use crate::call::collective::Collective;
use crate::call::invocation::{BufferMode, Case, Invocation};

/// A call that uses the parts of the buffers in turn.
#[derive(Debug)]
pub(super) struct Call<T> {
    pub(super) invocation: Invocation<T>,
    /// A collective without an in-place form is called out of place instead, from the receive
    /// buffer to the send buffer.
    pub(super) mode: BufferMode,
    send: DeviceSlice<T>,
    pub(super) recv: DeviceSlice<T>,
    /// The number of parts of the buffers that calls use in turn.
    turns: usize,
}

/// The GPU on which a call starts, and when.
#[derive(Clone, Copy)]
pub(super) struct Start<'a, 'g> {
    pub(super) gpu: &'a Gpu,
    /// If there is a group, the call starts at its end.
    pub(super) group: Option<&'g Group<'a>>,
}

impl<T: Element> Call<T> {
    /// The call of `rank`, on buffers in which a call of the largest size uses `largest` elements.
    pub(super) fn new(
        case: &Case,
        mode: BufferMode,
        rank: usize,
        [send, recv]: [DeviceSlice<T>; 2],
        largest: usize,
    ) -> Self {
        let invocation = Invocation::new(case, rank);
        let swapped = mode == BufferMode::InPlace && !has_in_place_form(case.collective);
        let (send, recv) = if swapped { (recv, send) } else { (send, recv) };
        Self {
            turns: largest
                .checked_div(invocation.layout.larger())
                .unwrap_or(1)
                .max(1),
            invocation,
            mode: if swapped {
                BufferMode::OutOfPlace
            } else {
                mode
            },
            send,
            recv,
        }
    }

    /// The part of the send buffer in a checked run.
    pub(super) fn sent(&self, range: &Range<usize>) -> Result<DeviceSlice<T>, Error> {
        part(self.send, range.clone())
    }

    /// The part of the receive buffer in a checked run.
    pub(super) fn received(&self, range: &Range<usize>) -> Result<DeviceSlice<T>, Error> {
        part(self.recv, range.clone())
    }

    /// The number of the library's calls that this call consists of, which run one after the other.
    pub(super) fn rounds(&self) -> u32 {
        match self.invocation.collective {
            Collective::Hypercube => self.invocation.ranks.ilog2().max(1),
            _ => 1,
        }
    }

    /// Enqueues one round of the call, on the parts of the buffers for turn `turn`: now, or when
    /// the group ends.
    pub(super) fn enqueue(
        &self,
        start: Start<'_, '_>,
        turn: usize,
        round: u32,
    ) -> Result<(), Error> {
        let layout = &self.invocation.layout;
        let first = turn % self.turns * layout.larger();
        match self.mode {
            BufferMode::OutOfPlace => {
                let send = part(self.send, first..first + layout.send)?;
                let recv = part(self.recv, first..first + layout.recv)?;
                self.out_of_place(start, send, recv, round)
            }
            BufferMode::InPlace => {
                let both = part(self.recv, first..first + layout.larger())?;
                self.in_place(start, both, round)
            }
        }
    }

    fn out_of_place(
        &self,
        start: Start<'_, '_>,
        send: DeviceSlice<T>,
        recv: DeviceSlice<T>,
        round: u32,
    ) -> Result<(), Error> {
        let comm = &start.gpu.comm;
        let call = &self.invocation;
        let (op, root) = (call.reducer, call.root);
        match call.collective {
            Collective::AllReduce => start.call(comm.all_reduce(send, recv, op)),
            Collective::AllGather => start.call(comm.all_gather(send, recv)),
            Collective::ReduceScatter => start.call(comm.reduce_scatter(send, recv, op)),
            Collective::Broadcast => start.call(comm.broadcast(send, recv, root)),
            Collective::Reduce => start.call(comm.reduce(send, recv, op, root)),
            Collective::Gather => start.call(comm.gather(send, recv, root)),
            Collective::Scatter => start.call(comm.scatter(send, recv, root)),
            Collective::AllToAll => start.call(comm.all_to_all(send, recv)),
            Collective::AllToAllV => {
                let (s, r) = (call.uneven_sends(), call.uneven_receives());
                start.call(comm.all_to_all_v(send, s, recv, r))
            }
            Collective::SendRecv => {
                start.call(comm.send_recv(send, call.next(), recv, call.previous()))
            }
            Collective::Hypercube => {
                if round == 0 {
                    start.gpu.copy(send, part(recv, call.own_block())?)?;
                }
                self.edge(start, recv, round)
            }
        }
    }

    fn in_place(
        &self,
        start: Start<'_, '_>,
        both: DeviceSlice<T>,
        round: u32,
    ) -> Result<(), Error> {
        let comm = &start.gpu.comm;
        let (op, root) = (self.invocation.reducer, self.invocation.root);
        match self.invocation.collective {
            Collective::AllReduce => start.call(comm.all_reduce_in_place(both, op)),
            Collective::AllGather => start.call(comm.all_gather_in_place(both)),
            Collective::ReduceScatter => start.call(comm.reduce_scatter_in_place(both, op)),
            Collective::Broadcast => start.call(comm.broadcast_in_place(both, root)),
            Collective::Reduce => start.call(comm.reduce_in_place(both, op, root)),
            Collective::Gather => start.call(comm.gather_in_place(both, root)),
            Collective::Scatter => start.call(comm.scatter_in_place(both, root)),
            Collective::Hypercube => self.edge(start, both, round),
            // `new` has turned these into out-of-place calls.
            Collective::AllToAll | Collective::AllToAllV | Collective::SendRecv => Ok(()),
        }
    }

    /// All-gather, one edge of the hypercube: both ends exchange all blocks that they have.
    fn edge(&self, start: Start<'_, '_>, whole: DeviceSlice<T>, round: u32) -> Result<(), Error> {
        let call = &self.invocation;
        let width = 1 << round;
        if width >= call.ranks {
            return Ok(());
        }
        let peer = call.rank ^ width;
        let block = |rank: usize| {
            let first = (rank & !(width - 1)) * call.layout.count;
            part(whole, first..first + width * call.layout.count)
        };
        let (mine, theirs) = (block(call.rank)?, block(peer)?);
        start.call(start.gpu.comm.send_recv(mine, peer, theirs, peer))
    }
}

impl<'a> Start<'a, '_> {
    fn call<T: Element, O: DeviceOperands<T> + 'a>(
        self,
        call: spark_ccl::Call<'a, T, O>,
    ) -> Result<(), Error> {
        match self.group {
            None => call.on(&self.gpu.stream).map(drop),
            Some(group) => {
                call.within(group, &self.gpu.stream);
                Ok(())
            }
        }
    }
}

/// Whether it has an in-place form in device memory.
fn has_in_place_form(collective: Collective) -> bool {
    !matches!(
        collective,
        Collective::AllToAll | Collective::AllToAllV | Collective::SendRecv
    )
}

fn part<T: Element>(slice: DeviceSlice<T>, range: Range<usize>) -> Result<DeviceSlice<T>, Error> {
    slice
        .part(range.start, range.len())
        .ok_or_else(|| Error::Invalid {
            operation: "spark-perf",
            problem: format!(
                "elements {range:?} of a buffer of {}; this is a defect of spark-perf, please \
                 report it",
                slice.len()
            ),
        })
}

#[cfg(test)]
#[allow(unsafe_code)]
mod tests {
    use spark_ccl::ReduceOp;

    use super::*;

    fn call(collective: Collective, bytes: u64, mode: BufferMode) -> Call<f32> {
        let case = Case {
            collective,
            bytes,
            op: ReduceOp::Sum,
            root: 0,
            ranks: 4,
        };
        // SAFETY: the slices are not used in any call.
        let slice = |address| unsafe { DeviceSlice::from_raw(address, 1 << 20, 0) };
        Call::new(&case, mode, 1, [slice(1 << 30), slice(1 << 40)], 1 << 20)
    }

    #[test]
    fn turns_go_through_the_buffers_as_in_nccl_tests() {
        assert_eq!(
            call(Collective::AllReduce, 8, BufferMode::OutOfPlace).turns,
            1 << 19
        );
        assert_eq!(
            call(Collective::AllReduce, 4 << 20, BufferMode::InPlace).turns,
            1
        );
        // 3 MiB fit once; so does nothing.
        assert_eq!(
            call(Collective::AllGather, 3 << 20, BufferMode::InPlace).turns,
            1
        );
        assert_eq!(call(Collective::AllGather, 8, BufferMode::InPlace).turns, 1);
    }

    #[test]
    fn collectives_without_an_in_place_form_swap_the_buffers() {
        for collective in [Collective::AllToAll, Collective::SendRecv] {
            let call = call(collective, 64, BufferMode::InPlace);
            assert_eq!(call.mode, BufferMode::OutOfPlace);
            assert_eq!(
                (call.send.address(), call.recv.address()),
                (1 << 40, 1 << 30)
            );
        }
        let call = call(Collective::AllReduce, 64, BufferMode::InPlace);
        assert_eq!(
            (call.mode, call.recv.address()),
            (BufferMode::InPlace, 1 << 40)
        );
    }
}
