//! One checked task as calls of NCCL's. Nothing here waits, or keeps what is in flight.

use spark_ccl_nccl::{Communicator, DeviceSlice, Error, Library, RedOp, Stream};
use spark_ccl_types::{Operation, ReduceOp};

use crate::memory::blocks::Blocks;
use crate::task::Task;

/// Where a call goes: the communicator and the stream.
#[derive(Clone, Copy)]
pub(super) struct CallTarget<'a> {
    pub(super) library: Library,
    pub(super) nccl: &'a Communicator,
    pub(super) rank: usize,
    pub(super) size: usize,
    pub(super) stream: Stream,
}

impl CallTarget<'_> {
    /// Enqueues the call. In place, both buffers are the same, and as long as the larger one is.
    pub(super) fn enqueue(
        self,
        task: &Task,
        input: DeviceSlice,
        output: DeviceSlice,
    ) -> Result<(), Error> {
        let (nccl, stream, root) = (self.nccl, self.stream, task.signature.root as usize);
        let (to, from) = (task.to as usize, task.from as usize);
        match task.operation() {
            Operation::AllReduce => {
                self.reducing(task, |op| nccl.all_reduce(input, output, op, stream))
            }
            Operation::Reduce => self.reducing(task, |op| {
                nccl.reduce(input, self.at(root, output), op, root, stream)
            }),
            Operation::ReduceScatter => {
                let output = self.own_part(task, output);
                self.reducing(task, |op| nccl.reduce_scatter(input, output, op, stream))
            }
            Operation::AllGather => nccl.all_gather(self.own_part(task, input), output, stream),
            Operation::Broadcast => nccl.broadcast(self.at(root, input), output, root, stream),
            Operation::Gather => {
                let input = self.own_part(task, input);
                nccl.gather(input, self.at(root, output), root, stream)
            }
            Operation::Scatter => {
                let output = self.own_part(task, output);
                nccl.scatter(self.at(root, input), output, root, stream)
            }
            Operation::AllToAll => nccl.all_to_all(input, output, stream),
            Operation::AllToAllV => self.all_to_all_v(task, input, output),
            Operation::Send => nccl.send(input, to, stream),
            Operation::Recv => nccl.recv(output, from, stream),
            Operation::SendRecv => self.library.group(|| {
                nccl.send(input, to, stream)?;
                nccl.recv(output, from, stream)
            }),
            // They have no buffers, and so are never enqueued.
            Operation::Barrier | Operation::Alloc => Ok(()),
        }
    }

    /// A buffer that only the root needs. NCCL also gets another rank's buffer, since its choice of
    /// how to move the data may depend on it.
    fn at(self, root: usize, buffer: DeviceSlice) -> Option<DeviceSlice> {
        (self.rank == root || !buffer.is_empty()).then_some(buffer)
    }

    /// In place, this rank's part of a buffer that has one for each rank. A buffer that cannot be
    /// divided is returned whole, and NCCL's checks refuse it.
    fn own_part(self, task: &Task, buffer: DeviceSlice) -> DeviceSlice {
        if !task.in_place {
            return buffer;
        }
        let count = buffer.len() / self.size;
        buffer.part(self.rank * count, count).unwrap_or(buffer)
    }

    fn all_to_all_v(
        self,
        task: &Task,
        input: DeviceSlice,
        output: DeviceSlice,
    ) -> Result<(), Error> {
        let Some(tables) = &task.tables else {
            return Ok(());
        };
        let part = |buffer: DeviceSlice, blocks: &Blocks, peer: usize| {
            let part = buffer.part(blocks.begins[peer], blocks.counts[peer]);
            part.filter(|part| !part.is_empty())
        };
        self.library.group(|| {
            for peer in 0..self.size {
                if let Some(part) = part(input, &tables.send, peer) {
                    self.nccl.send(part, peer, self.stream)?;
                }
                if let Some(part) = part(output, &tables.recv, peer) {
                    self.nccl.recv(part, peer, self.stream)?;
                }
            }
            Ok(())
        })
    }

    fn reducing(
        self,
        task: &Task,
        call: impl FnOnce(RedOp<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let plain = match task.reduction.op {
            // Without a reduction, our kernels take `Sum`, too.
            Some(ReduceOp::Sum) | None => RedOp::Sum,
            Some(ReduceOp::Prod) => RedOp::Prod,
            Some(ReduceOp::Max) => RedOp::Max,
            Some(ReduceOp::Min) => RedOp::Min,
            Some(ReduceOp::Avg) => RedOp::Avg,
            Some(ReduceOp::PreMulSum) => return self.with_factor(task, call),
        };
        call(plain)
    }

    fn with_factor(
        self,
        task: &Task,
        call: impl FnOnce(RedOp<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let dtype = task.signature.dtype;
        let made = self.nccl.pre_mul_sum_of(dtype, task.reduction.factor)?;
        let called = call(RedOp::PreMulSum(&made));
        // Enqueued calls do not need the operator any more.
        let freed = self.nccl.destroy_op(made);
        called.and(freed)
    }
}
