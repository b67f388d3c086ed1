//! Checks the arguments of a call: a pure function of the task, the rank and the number of ranks.

use spark_ccl_types::{Extent, Operation, Side};

use super::{NO_TIME, Ranks, Spec, Tables, Task};
use crate::error::Error;
use crate::memory::blocks::Blocks;
use crate::memory::buffer::Region;

impl Spec {
    /// The task of a call with the buffers that the caller passed.
    ///
    /// # Errors
    /// [`Error::Invalid`] for ranks that do not exist, a timeout of 0, and buffers that do not fit
    /// the operation or each other.
    pub(crate) fn checked(&self, regions: (Region, Region), ranks: Ranks) -> Result<Task, Error> {
        let mut task = self.task(regions);
        self.check(&mut task, ranks)?;
        Ok(task)
    }

    /// Checks the task of this call, and counts its elements.
    ///
    /// By reference, for the shortest calls: a task is several cache lines that were written a
    /// moment ago, and a copy would wait for those stores.
    ///
    /// # Errors
    /// Those of [`checked`](Self::checked).
    pub(crate) fn check(&self, task: &mut Task, ranks: Ranks) -> Result<(), Error> {
        let call = Examined { spec: self, ranks };
        if self.limit.is_some_and(|limit| limit.is_zero()) {
            return Err(call.invalid(NO_TIME.to_owned()));
        }
        let count = match self.operation {
            Operation::Send | Operation::Recv | Operation::SendRecv => call.message(task)?,
            Operation::AllToAllV => call.tables(&task.input, &task.output).map(|()| 0)?,
            _ => call.count(&task.input, &task.output)?,
        };
        task.signature.count = count as u64;
        Ok(())
    }
}

/// A call under examination.
struct Examined<'a> {
    spec: &'a Spec,
    ranks: Ranks,
}

impl Examined<'_> {
    /// The elements that are sent and received.
    fn message(&self, task: &Task) -> Result<usize, Error> {
        if self.spec.operation != Operation::Recv {
            self.peer("destination", self.spec.to)?;
        }
        if self.spec.operation != Operation::Send {
            self.peer("source", self.spec.from)?;
        }
        self.disjoint(&task.input, &task.output)?;
        Ok(task.input.len + task.output.len)
    }

    /// The elements that the operation counts, if the buffers fit it and each other.
    // It and the ones below are part of `check`, as calls of a few bytes take it: their time counts
    // each function.
    #[inline]
    fn count(&self, input: &Region, output: &Region) -> Result<usize, Error> {
        let operation = self.spec.operation;
        if operation.is_rooted() {
            self.peer("root", self.spec.root)?;
        }
        if !operation.moves_data() {
            return Ok(self.spec.elements);
        }
        if self.spec.in_place {
            return self.share(output.len, operation.is_divided());
        }
        let uses_both = self.uses(Side::Input) && self.uses(Side::Output);
        let counted = operation.counted();
        let (counting, other) = match counted {
            Side::Input => (input.len, output.len),
            Side::Output => (output.len, input.len),
        };
        if uses_both {
            self.fits(counting, other)?;
        }
        let count = self.share(counting, operation.extent(counted) == Extent::Blocks)?;
        if uses_both {
            self.disjoint(input, output)?;
        }
        Ok(count)
    }

    /// Checks the length of one buffer against that of the one that determines the count.
    #[inline]
    fn fits(&self, counting: usize, other: usize) -> Result<(), Error> {
        let operation = self.spec.operation;
        let what = match operation.counted() {
            Side::Input => "receive buffer",
            Side::Output => "send buffer",
        };
        // Where one buffer is a block, the other has one for each rank.
        let expected = match operation.own_block() {
            Some(_) => counting.saturating_mul(self.ranks.size),
            None => counting,
        };
        self.equal(what, expected, other)
    }

    /// A rank's share of a buffer, or all of it where it is not divided.
    #[inline]
    fn share(&self, len: usize, is_divided: bool) -> Result<usize, Error> {
        if !is_divided {
            return Ok(len);
        }
        self.divisible(len)?;
        Ok(len / self.ranks.size)
    }

    /// Whether this rank takes part with a buffer.
    #[inline]
    fn uses(&self, side: Side) -> bool {
        let is_root = self.ranks.own == self.spec.root;
        self.spec.operation.uses(side, is_root)
    }

    /// Checks the counts and displacements of an `all_to_all_v`.
    fn tables(&self, input: &Region, output: &Region) -> Result<(), Error> {
        let Some(tables) = self.spec.tables.as_deref() else {
            return Err(self.invalid("no tables of counts".to_owned()));
        };
        let Tables { send, recv } = tables;
        self.table("send", send, input.len)?;
        self.table("receive", recv, output.len)?;
        self.apart(recv)?;
        let own = self.ranks.own;
        let (give, take) = (send.counts[own], recv.counts[own]);
        if give != take {
            return Err(self.invalid(format!(
                "rank {own} sends itself {give} elements and receives {take} from itself"
            )));
        }
        self.disjoint(input, output)
    }

    fn table(&self, side: &str, blocks: &Blocks, len: usize) -> Result<(), Error> {
        let size = self.ranks.size;
        let Blocks { counts, begins } = blocks;
        if counts.len() != size || begins.len() != size {
            return Err(self.invalid(format!(
                "{} {side} counts and {} begins of blocks for {size} ranks",
                counts.len(),
                begins.len()
            )));
        }
        for (rank, (&count, &begin)) in counts.iter().zip(begins.iter()).enumerate() {
            if begin.checked_add(count).is_none_or(|end| end > len) {
                return Err(self.invalid(format!(
                    "the {side} block of rank {rank} ({count} elements from {begin}) exceeds the \
                     buffer of {len} elements"
                )));
            }
        }
        Ok(())
    }

    /// Checks that no two receive blocks have an element in common: only the last one to arrive
    /// would be seen.
    fn apart(&self, blocks: &Blocks) -> Result<(), Error> {
        let Some([one, other]) = blocks.overlapping() else {
            return Ok(());
        };
        let Blocks { counts, begins } = blocks;
        let [one, other] = [one, other].map(|rank| {
            let (count, begin) = (counts[rank], begins[rank]);
            format!("rank {rank} ({count} elements from {begin})")
        });
        Err(self.invalid(format!(
            "the receive blocks of {one} and {other} overlap: each rank's elements need a place \
             of their own (send blocks may overlap)"
        )))
    }

    #[inline]
    fn peer(&self, what: &str, rank: usize) -> Result<(), Error> {
        let size = self.ranks.size;
        if rank < size {
            return Ok(());
        }
        Err(self.invalid(format!(
            "{what} is rank {rank}, and the communicator has ranks 0 to {}",
            size - 1
        )))
    }

    #[inline]
    fn equal(&self, what: &str, expected: usize, seen: usize) -> Result<(), Error> {
        if expected == seen {
            return Ok(());
        }
        Err(self.invalid(format!(
            "the {what} must have {expected} elements and has {seen}"
        )))
    }

    #[inline]
    fn divisible(&self, len: usize) -> Result<(), Error> {
        let size = self.ranks.size;
        if len.is_multiple_of(size) {
            return Ok(());
        }
        Err(self.invalid(format!(
            "{len} elements cannot be divided among {size} ranks"
        )))
    }

    #[inline]
    fn disjoint(&self, input: &Region, output: &Region) -> Result<(), Error> {
        let bytes = self.spec.dtype.size();
        let (a, b) = (input.ptr as usize, output.ptr as usize);
        let apart = a + input.len * bytes <= b || b + output.len * bytes <= a;
        if apart || input.len == 0 || output.len == 0 {
            return Ok(());
        }
        Err(self.invalid("send and receive buffers overlap; use the in-place variant".to_owned()))
    }

    #[cold]
    fn invalid(&self, problem: String) -> Error {
        Error::Invalid {
            operation: self.spec.operation.name(),
            problem,
        }
    }
}
