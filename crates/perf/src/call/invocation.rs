//! One measured call: the method of the communicator, and the parts of the buffers that it uses.

use std::ops::Range;

use spark_ccl::{Blocks, Communicator, Element, ReduceOp, Reducer};

use crate::call::buffer::Buffer;
use crate::call::collective::{Collective, Layout};
use crate::call::uneven;
use crate::error::Error;
use crate::exact::{Reduction, from_bits};

/// Bytes of a page; larger pages make no difference here.
const PAGE: usize = 4096;

/// Whether the result replaces the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BufferMode {
    OutOfPlace,
    InPlace,
}

/// The call for one size: the same on every rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) collective: Collective,
    pub(crate) bytes: u64,
    /// Only used if the collective reduces.
    pub(crate) op: ReduceOp,
    /// Only used if the collective has a root.
    pub(crate) root: usize,
    pub(crate) ranks: usize,
}

impl Case {
    /// The lengths of a rank's buffers.
    pub(crate) fn layout<T>(&self) -> Layout {
        self.collective
            .layout(self.bytes, size_of::<T>(), self.ranks)
    }
}

/// One rank's call, without the buffers.
#[derive(Debug)]
pub(crate) struct Invocation<T> {
    pub(crate) collective: Collective,
    pub(crate) layout: Layout,
    pub(crate) op: ReduceOp,
    pub(crate) root: usize,
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    pub(crate) reducer: Reducer<T>,
    /// For alltoallv.
    sends: Blocks,
    receives: Blocks,
}

impl<T: Element> Invocation<T> {
    /// The call of `rank` in a case.
    pub(crate) fn new(case: &Case, rank: usize) -> Self {
        let Case {
            collective,
            op,
            root,
            ranks,
            ..
        } = *case;
        let layout = case.layout::<T>();
        let whole = if collective == Collective::AllToAllV {
            layout.count * ranks
        } else {
            0
        };
        Self {
            collective,
            layout,
            op,
            root,
            rank,
            ranks,
            reducer: reducer(op, rank),
            sends: uneven::sends(whole, size_of::<T>(), ranks, rank),
            receives: uneven::receives(whole, size_of::<T>(), ranks, rank),
        }
    }

    /// The range of the send buffer that the call uses in turn `turn`.
    pub(crate) fn send_range(&self, base: usize, turn: usize) -> Range<usize> {
        let start = base + turn * self.send_stride();
        start..start + self.layout.send
    }

    /// The same for the receive buffer; in place, it holds the larger of both.
    pub(crate) fn recv_range(&self, base: usize, turn: usize, mode: BufferMode) -> Range<usize> {
        let len = match mode {
            BufferMode::OutOfPlace => self.layout.recv,
            BufferMode::InPlace => self.layout.larger(),
        };
        let start = base + turn * self.recv_stride();
        start..start + len
    }

    /// The distance in elements between the parts of the send buffer.
    pub(crate) fn send_stride(&self) -> usize {
        whole_pages::<T>(self.layout.send)
    }

    /// The same for the receive buffer.
    pub(crate) fn recv_stride(&self) -> usize {
        whole_pages::<T>(self.layout.larger())
    }

    /// This rank's block in a buffer with one block for each rank.
    pub(crate) fn own_block(&self) -> Range<usize> {
        let start = self.rank * self.layout.count;
        start..start + self.layout.count
    }

    /// The offset of the block for this rank in what `source` sends (alltoallv).
    pub(crate) fn uneven_offset(&self, source: usize) -> usize {
        let whole = self.layout.count * self.ranks;
        uneven::sends(whole, size_of::<T>(), self.ranks, source).begins()[self.rank]
    }

    /// The blocks of what this rank sends (alltoallv).
    #[cfg(feature = "cuda")]
    pub(crate) fn uneven_sends(&self) -> &Blocks {
        &self.sends
    }

    /// The blocks of what this rank receives (alltoallv).
    pub(crate) fn uneven_receives(&self) -> &Blocks {
        &self.receives
    }

    /// Runs the call on the parts of both buffers for turn `turn`.
    pub(crate) fn run<B: Buffer<T>>(
        &self,
        comm: &Communicator,
        send: &mut B,
        recv: &mut B,
        base: usize,
        turn: usize,
        mode: BufferMode,
    ) -> Result<(), Error> {
        let (from, to) = (
            self.send_range(base, turn),
            self.recv_range(base, turn, mode),
        );
        match mode {
            BufferMode::OutOfPlace => self.out_of_place(comm, send, from, recv, to),
            BufferMode::InPlace => self.in_place(comm, send, from, recv, to),
        }
    }

    fn out_of_place<B: Buffer<T>>(
        &self,
        comm: &Communicator,
        send: &B,
        from: Range<usize>,
        recv: &mut B,
        to: Range<usize>,
    ) -> Result<(), Error> {
        if self.collective == Collective::Hypercube {
            let own = to.start + self.own_block().start..to.start + self.own_block().end;
            recv[own].copy_from_slice(&send[from]);
            return self.hypercube(comm, &mut recv[to]);
        }
        let (source, target) = (send.part(from)?, recv.part_mut(to)?);
        match self.collective {
            Collective::AllReduce => comm
                .all_reduce(source, target, self.reducer)
                .run()
                .map(drop),
            Collective::AllGather => comm.all_gather(source, target).run().map(drop),
            Collective::ReduceScatter => comm
                .reduce_scatter(source, target, self.reducer)
                .run()
                .map(drop),
            Collective::Broadcast => comm.broadcast(source, target, self.root).run().map(drop),
            Collective::Reduce => comm
                .reduce(source, target, self.reducer, self.root)
                .run()
                .map(drop),
            Collective::Gather => comm.gather(source, target, self.root).run().map(drop),
            Collective::Scatter => comm.scatter(source, target, self.root).run().map(drop),
            Collective::AllToAll => comm.all_to_all(source, target).run().map(drop),
            Collective::AllToAllV => {
                let (s, r) = (&self.sends, &self.receives);
                comm.all_to_all_v(source, s, target, r).run().map(drop)
            }
            Collective::SendRecv => comm
                .send_recv(source, self.next(), target, self.previous())
                .run()
                .map(drop),
            Collective::Hypercube => Ok(()),
        }?;
        Ok(())
    }

    fn in_place<B: Buffer<T>>(
        &self,
        comm: &Communicator,
        send: &mut B,
        from: Range<usize>,
        recv: &mut B,
        to: Range<usize>,
    ) -> Result<(), Error> {
        match self.collective {
            // These have no in-place form: a copy keeps what is sent, while the buffer receives.
            Collective::SendRecv | Collective::AllToAllV => {
                send[from.clone()].copy_from_slice(&recv[to.clone()]);
                return self.out_of_place(comm, send, from, recv, to);
            }
            Collective::Hypercube => return self.hypercube(comm, &mut recv[to]),
            _ => {}
        }
        let buffer = recv.part_mut(to)?;
        match self.collective {
            Collective::AllReduce => comm
                .all_reduce_in_place(buffer, self.reducer)
                .run()
                .map(drop),
            Collective::AllGather => comm.all_gather_in_place(buffer).run().map(drop),
            Collective::ReduceScatter => comm
                .reduce_scatter_in_place(buffer, self.reducer)
                .run()
                .map(drop),
            Collective::Broadcast => comm.broadcast_in_place(buffer, self.root).run().map(drop),
            Collective::Reduce => comm
                .reduce_in_place(buffer, self.reducer, self.root)
                .run()
                .map(drop),
            Collective::Gather => comm.gather_in_place(buffer, self.root).run().map(drop),
            Collective::Scatter => comm.scatter_in_place(buffer, self.root).run().map(drop),
            Collective::AllToAll => comm.all_to_all_in_place(buffer).run().map(drop),
            Collective::AllToAllV | Collective::SendRecv | Collective::Hypercube => Ok(()),
        }?;
        Ok(())
    }

    /// All-gather: at each edge of the hypercube, both ends exchange all blocks that they have.
    fn hypercube(&self, comm: &Communicator, whole: &mut [T]) -> Result<(), Error> {
        let mut width = 1;
        while width < self.ranks {
            let peer = self.rank ^ width;
            let mine = (self.rank & !(width - 1)) * self.layout.count;
            let theirs = (peer & !(width - 1)) * self.layout.count;
            let len = width * self.layout.count;
            let (low, high) = whole.split_at_mut(mine.max(theirs));
            let (source, target) = if mine < theirs {
                (&low[mine..mine + len], &mut high[..len])
            } else {
                (&high[..len], &mut low[theirs..theirs + len])
            };
            comm.send_recv(source, peer, target, peer).run()?;
            width *= 2;
        }
        Ok(())
    }

    /// The rank to which sendrecv sends.
    pub(crate) fn next(&self) -> usize {
        (self.rank + 1) % self.ranks
    }

    /// The rank from which sendrecv receives.
    pub(crate) fn previous(&self) -> usize {
        (self.rank + self.ranks - 1) % self.ranks
    }
}

/// Parts start on separate pages: otherwise the hardware would prefetch small parts into the caches
/// together with the part before.
fn whole_pages<T>(elements: usize) -> usize {
    elements.next_multiple_of(PAGE / size_of::<T>())
}

fn reducer<T: Element>(op: ReduceOp, rank: usize) -> Reducer<T> {
    let factor = || crate::exact::whole_number(T::DTYPE, Reduction::factor(rank));
    op.without_factor()
        .map_or_else(|| Reducer::PreMulSum(from_bits(factor())), Reducer::Op)
}
