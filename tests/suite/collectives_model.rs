//! The expected results of every collective: inputs that are exact in any order of reduction, the
//! naive results, and one call compared with them.

use spark_ccl::{Communicator, Error, Operation, RecvBuf, ReduceOp, Reducer, SendBuf};

use super::buffers::{Buffer, Memory};
use super::types::Number;
use super::values::whole_value;

pub(crate) const COLLECTIVES: [Operation; 8] = [
    Operation::AllReduce,
    Operation::AllGather,
    Operation::ReduceScatter,
    Operation::Broadcast,
    Operation::Reduce,
    Operation::Gather,
    Operation::Scatter,
    Operation::AllToAll,
];

/// The factor of [`ReduceOp::PreMulSum`]: exact in every type.
const FACTOR: i64 = 2;

/// One call, the same on every rank.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Case {
    pub(crate) collective: Operation,
    pub(crate) in_place: bool,
    /// Elements per rank or block.
    pub(crate) count: usize,
    pub(crate) op: ReduceOp,
    pub(crate) root: usize,
    /// Elements by which the buffers are shifted from the start of their memory.
    pub(crate) offset: usize,
    pub(crate) memory: Memory,
}

impl Case {
    pub(crate) fn new(collective: Operation, count: usize) -> Self {
        Self {
            collective,
            in_place: false,
            count,
            op: ReduceOp::Sum,
            root: 0,
            offset: 0,
            memory: Memory::Ordinary,
        }
    }

    /// Makes the call, which must succeed, and compares.
    pub(crate) fn check<T: Number>(&self, comm: &Communicator) {
        if let Err(error) = self.attempt::<T>(comm) {
            panic!("rank {} of {}: {self:?}: {error}", comm.rank(), comm.size());
        }
    }

    /// Makes the call. If it succeeds, compares all memory with the model: what it must write, and
    /// what it must not.
    pub(crate) fn attempt<T: Number>(&self, comm: &Communicator) -> Result<(), Error> {
        if self.in_place {
            self.attempt_in_place::<T>(comm)
        } else {
            self.attempt_out_of_place::<T>(comm)
        }
    }

    fn attempt_out_of_place<T: Number>(&self, comm: &Communicator) -> Result<(), Error> {
        let (n, rank) = (comm.size(), comm.rank());
        let (give, take) = self.lengths(n);
        let contribution = self.contribution::<T>(rank, give);
        let send = self.buffer::<T>(comm, give, |i| contribution[i])?;
        let mut recv = self.buffer::<T>(comm, take, |_| untouched())?;
        match (&send, &mut recv) {
            (Buffer::Ordinary(send), Buffer::Ordinary(recv)) => {
                let send = &send[self.offset..self.offset + give];
                self.call(comm, send, &mut recv[self.offset..self.offset + take])?;
            }
            (Buffer::Registered(send), Buffer::Registered(recv)) => {
                let send = send.view(self.offset..self.offset + give).unwrap();
                let recv = recv.view_mut(self.offset..self.offset + take).unwrap();
                self.call(comm, send, recv)?;
            }
            _ => unreachable!("both buffers are of the case's kind"),
        }
        self.compare(n, rank, "receive buffer", recv.as_slice(), |i| {
            let i = i.checked_sub(self.offset).filter(|&i| i < take)?;
            self.result(n, rank, i)
        });
        self.compare(n, rank, "send buffer", send.as_slice(), |i| {
            let i = i.checked_sub(self.offset).filter(|&i| i < give)?;
            Some(Expected::Exactly(contribution[i]))
        });
        Ok(())
    }

    fn attempt_in_place<T: Number>(&self, comm: &Communicator) -> Result<(), Error> {
        let (n, rank) = (comm.size(), comm.rank());
        let (give, take) = self.lengths(n);
        let len = give.max(take);
        let block = match self.collective {
            Operation::AllGather | Operation::Gather => rank * self.count,
            _ => 0,
        };
        let contribution = self.contribution::<T>(rank, give);
        let before = |i: usize| match i.checked_sub(block) {
            Some(i) if i < give => contribution[i],
            _ => untouched(),
        };
        let mut buffer = self.buffer::<T>(comm, len, before)?;
        match &mut buffer {
            Buffer::Ordinary(memory) => {
                self.call_in_place(comm, &mut memory[self.offset..self.offset + len])?;
            }
            Buffer::Registered(memory) => {
                let view = memory.view_mut(self.offset..self.offset + len).unwrap();
                self.call_in_place(comm, view)?;
            }
        }
        self.compare(n, rank, "buffer", buffer.as_slice(), |i| {
            let i = i.checked_sub(self.offset).filter(|&i| i < len)?;
            match self.collective {
                Operation::ReduceScatter | Operation::Scatter => {
                    match i.checked_sub(rank * self.count).filter(|&i| i < self.count) {
                        Some(i) => self.result(n, rank, i),
                        None if self.collective == Operation::Scatter => {
                            Some(Expected::Exactly(before(i)))
                        }
                        None => Some(Expected::Anything),
                    }
                }
                _ if self.is_kept(rank) => Some(Expected::Exactly(before(i))),
                _ => self.result(n, rank, i),
            }
        });
        Ok(())
    }

    /// The lengths of the root's send and receive buffers.
    fn lengths(&self, n: usize) -> (usize, usize) {
        let (one, all) = (self.count, self.count * n);
        match self.collective {
            Operation::AllReduce | Operation::Broadcast | Operation::Reduce => (one, one),
            Operation::AllGather | Operation::Gather => (one, all),
            Operation::ReduceScatter | Operation::Scatter => (all, one),
            Operation::AllToAll => (all, all),
            other => no_model(other),
        }
    }

    /// Whether the call must not write the rank's receive buffer.
    fn is_kept(&self, rank: usize) -> bool {
        matches!(self.collective, Operation::Reduce | Operation::Gather) && rank != self.root
    }

    fn call<T, S, R>(&self, comm: &Communicator, send: S, recv: R) -> Result<(), Error>
    where
        T: Number,
        S: SendBuf<T>,
        R: RecvBuf<T>,
    {
        let (op, root) = (self.reducer(), self.root);
        match self.collective {
            Operation::AllReduce => comm.all_reduce(send, recv, op).run(),
            Operation::AllGather => comm.all_gather(send, recv).run(),
            Operation::ReduceScatter => comm.reduce_scatter(send, recv, op).run(),
            Operation::Broadcast => comm.broadcast(send, recv, root).run(),
            Operation::Reduce => comm.reduce(send, recv, op, root).run(),
            Operation::Gather => comm.gather(send, recv, root).run(),
            Operation::Scatter => comm.scatter(send, recv, root).run(),
            Operation::AllToAll => comm.all_to_all(send, recv).run(),
            other => no_model(other),
        }
        .map(drop)
    }

    fn call_in_place<T, B>(&self, comm: &Communicator, buffer: B) -> Result<(), Error>
    where
        T: Number,
        B: RecvBuf<T>,
    {
        let (op, root) = (self.reducer(), self.root);
        match self.collective {
            Operation::AllReduce => comm.all_reduce_in_place(buffer, op).run(),
            Operation::AllGather => comm.all_gather_in_place(buffer).run(),
            Operation::ReduceScatter => comm.reduce_scatter_in_place(buffer, op).run(),
            Operation::Broadcast => comm.broadcast_in_place(buffer, root).run(),
            Operation::Reduce => comm.reduce_in_place(buffer, op, root).run(),
            Operation::Gather => comm.gather_in_place(buffer, root).run(),
            Operation::Scatter => comm.scatter_in_place(buffer, root).run(),
            Operation::AllToAll => comm.all_to_all_in_place(buffer).run(),
            other => no_model(other),
        }
        .map(drop)
    }

    fn reducer<T: Number>(&self) -> Reducer<T> {
        let op = self.op.without_factor();
        op.map_or_else(|| Reducer::PreMulSum(T::of(FACTOR)), Reducer::Op)
    }

    /// Memory with `fill` where the call may look, and [`untouched`] around it.
    fn buffer<T: Number>(
        &self,
        comm: &Communicator,
        len: usize,
        fill: impl Fn(usize) -> T,
    ) -> Result<Buffer<T>, Error> {
        let mut elements = vec![untouched(); self.offset + len + GUARD];
        for i in 0..len {
            elements[self.offset + i] = fill(i);
        }
        Buffer::new(comm, self.memory, elements)
    }

    pub(crate) fn contribution<T: Number>(&self, rank: usize, len: usize) -> Vec<T> {
        (0..len).map(|i| T::of(self.input::<T>(rank, i))).collect()
    }

    /// The `i`-th element that `rank` contributes.
    fn input<T: Number>(&self, rank: usize, i: usize) -> i64 {
        let value = whole_value::<T>(rank as u64, i);
        // Only one factor may be large, so the product is exact.
        if self.op != ReduceOp::Prod || rank == i % 3 {
            value
        } else {
            1 - 2 * i64::from(value < 0)
        }
    }

    /// The expected element at `i` of the rank's receive buffer; `None` for its former value.
    fn result<T: Number>(&self, n: usize, rank: usize, i: usize) -> Option<Expected<T>> {
        let from = |rank, i| Some(Expected::Exactly(T::of(self.input::<T>(rank, i))));
        let (block, inner) = (i.checked_div(self.count)?, i % self.count);
        match self.collective {
            _ if self.is_kept(rank) => None,
            Operation::AllReduce | Operation::Reduce => Some(self.reduced(n, i)),
            Operation::ReduceScatter => Some(self.reduced(n, rank * self.count + i)),
            Operation::AllGather | Operation::Gather => from(block, inner),
            Operation::Broadcast => from(self.root, i),
            Operation::Scatter => from(self.root, rank * self.count + i),
            Operation::AllToAll => from(block, rank * self.count + inner),
            other => no_model(other),
        }
    }

    fn reduced<T: Number>(&self, n: usize, i: usize) -> Expected<T> {
        let inputs = (0..n).map(|rank| self.input::<T>(rank, i));
        let sum: i64 = inputs.clone().sum();
        let exact = match self.op {
            ReduceOp::Sum => sum,
            ReduceOp::Prod => inputs.product(),
            ReduceOp::Min => inputs.min().unwrap(),
            ReduceOp::Max => inputs.max().unwrap(),
            ReduceOp::PreMulSum => sum * FACTOR,
            ReduceOp::Avg if T::EPSILON > 0.0 => {
                // Each factor 1/n and each sum may be rounded.
                let error = T::EPSILON * (n as f64 + 1.0) * T::LIMIT as f64;
                return Expected::Within(sum as f64 / n as f64, error);
            }
            ReduceOp::Avg => sum / n as i64,
        };
        Expected::Exactly(T::of(exact))
    }

    fn compare<T: Number>(
        &self,
        n: usize,
        rank: usize,
        name: &str,
        seen: &[T],
        expected: impl Fn(usize) -> Option<Expected<T>>,
    ) {
        if let Some(difference) = difference(seen, expected) {
            let dtype = T::DTYPE.name();
            panic!("rank {rank} of {n}, {dtype} {self:?}: {name}: {difference}");
        }
    }
}

fn no_model(operation: Operation) -> ! {
    panic!("there is no model of {operation}")
}

/// The first unexpected element. `None` is expected of elements that no call may write.
fn difference<T: Number>(
    seen: &[T],
    expected: impl Fn(usize) -> Option<Expected<T>>,
) -> Option<String> {
    seen.iter().enumerate().find_map(|(i, &seen)| {
        let expected = expected(i).unwrap_or(Expected::Exactly(untouched()));
        let is_right = match expected {
            Expected::Exactly(value) => seen == value,
            Expected::Within(value, error) => (seen.to_f64() - value).abs() <= error,
            Expected::Anything => true,
        };
        (!is_right).then(|| format!("element {i} is {seen:?}, not {expected:?}"))
    })
}

/// Elements after each buffer that no call may write.
const GUARD: usize = 3;

/// The value of elements that no call may write; hardly ever an input or a result.
fn untouched<T: Number>() -> T {
    // Representable in every type.
    T::of(if T::SIGNED { -64 } else { 64 })
}

#[derive(Debug)]
enum Expected<T> {
    Exactly(T),
    Within(f64, f64),
    Anything,
}

/// The model itself must be able to fail.
#[cfg(test)]
mod tests {
    use spark_ccl::{F8E4M3, F8E5M2, bf16, f16};

    use super::*;
    use crate::types::for_every_type;

    const RANKS: usize = 4;
    const COUNT: usize = 96;

    /// The correct content of the rank's receive buffer.
    fn right<T: Number>(case: &Case, rank: usize) -> Vec<T> {
        let (_, take) = case.lengths(RANKS);
        let element = |i| match case.result(RANKS, rank, i) {
            Some(Expected::Exactly(value)) => value,
            None => untouched(),
            other => unreachable!("{other:?}"),
        };
        (0..take).map(element).collect()
    }

    /// Whether the model tells these elements from the correct ones.
    fn refuses<T: Number>(case: &Case, rank: usize, seen: &[T]) -> bool {
        difference(seen, |i| case.result(RANKS, rank, i)).is_some()
    }

    /// Errors of mixed-up messages, applied to correct elements.
    fn mix_ups<T: Number>(right: &[T], elsewhere: &[T]) -> Vec<(&'static str, Vec<T>)> {
        let (half, slice) = (right.len() / 2, COUNT / 4);
        let changed = |change: &dyn Fn(&mut Vec<T>)| {
            let mut all = right.to_vec();
            change(&mut all);
            all
        };
        vec![
            (
                "two slices swapped",
                changed(&|all| all[..2 * slice].rotate_left(slice)),
            ),
            (
                "a slice twice",
                changed(&|all| all.copy_within(..slice, slice)),
            ),
            (
                "a slice of the other half",
                changed(&|all| all.copy_within(half..half + slice, 0)),
            ),
            (
                "a slice left out",
                changed(&|all| all[slice..2 * slice].fill(untouched())),
            ),
            ("one element off", changed(&|all| all.rotate_left(1))),
            ("another rank's", elsewhere.to_vec()),
            (
                "a slice of another rank's",
                changed(&|all| {
                    all[slice..2 * slice].copy_from_slice(&elsewhere[slice..2 * slice]);
                }),
            ),
        ]
    }

    fn check<T: Number>(collective: Operation) {
        let case = Case {
            root: 1,
            ..Case::new(collective, COUNT)
        };
        for rank in 0..RANKS {
            let mine = right::<T>(&case, rank);
            assert!(!refuses(&case, rank, &mine), "{case:?}");
            if case.is_kept(rank) {
                continue;
            }
            let elsewhere = right::<T>(&case, (rank + 1) % RANKS);
            for (name, seen) in mix_ups(&mine, &elsewhere) {
                // Some results are the same on all ranks.
                let is_other = name.contains("another rank's");
                assert_eq!(
                    refuses(&case, rank, &seen),
                    !is_other || mine != elsewhere,
                    "{name}: rank {rank}, {} {case:?}",
                    T::DTYPE.name()
                );
            }
        }
    }

    #[test]
    fn the_model_sees_what_was_mixed_up() {
        for collective in COLLECTIVES {
            for_every_type!(T => check::<T>(collective));
        }
    }

    #[test]
    #[should_panic(expected = "rank 1 of 2, float Case")]
    fn the_model_names_a_wrong_element() {
        let case = Case::new(Operation::Broadcast, 9);
        let mut seen = case.contribution::<f32>(0, 9);
        seen[5] += 1.0;
        case.compare(2, 1, "receive buffer", &seen, |i| case.result(2, 1, i));
    }
}
