//! All-to-all and all-gather: each rank exchanges with one partner at a time.

use spark_ccl_types::{Algorithm, Operation};

use crate::rounds::{after, before};
use crate::shape::{Shape, Unsupported};
use crate::step::{Rank, Span, Step};
use crate::steps::Steps;

/// All-to-all with equal blocks, or all-gather.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pairwise {
    rank: Rank,
    size: u32,
    count: u64,
    in_place: bool,
    /// Whether all ranks get the same block.
    gathers: bool,
}

impl Pairwise {
    /// `operation` is `AllToAll` or `AllGather`; returns `None` for others.
    pub(crate) fn new(operation: Operation, in_place: bool, shape: &Shape) -> Option<Self> {
        let gathers = match operation {
            Operation::AllToAll => false,
            Operation::AllGather => true,
            _ => return None,
        };
        Some(Self {
            rank: shape.rank,
            size: shape.size,
            count: shape.count,
            in_place,
            gathers,
        })
    }

    pub(crate) fn step(&self, index: u64) -> Option<Step> {
        let index = u32::try_from(index).ok()?;
        if self.in_place && !self.gathers {
            return self.mutual(index);
        }
        let (to, from) = shift(self.rank, self.size, index)?;
        if to == self.rank && self.in_place {
            // The own block of an all-gather is already in its position.
            return None;
        }
        let block = if self.gathers { 0 } else { to };
        let src = Span::input(u64::from(block) * self.count, self.count);
        let dst = Span::output(u64::from(from) * self.count, self.count);
        Some(if to == self.rank {
            Step::copy(self.rank, src, dst)
        } else {
            Step::send_recv(to, src, from, dst)
        })
    }

    /// In place, both partners must exchange the same block, so the relation must be mutual: in
    /// turn `t`, two ranks are partners if their sum is `t` modulo the size. Each rank is idle in
    /// one turn, which takes no step.
    fn mutual(&self, index: u32) -> Option<Step> {
        if index >= self.size - 1 {
            return None;
        }
        let idle = after(self.rank, self.rank, self.size);
        let turn = index + u32::from(index >= idle);
        let partner = before(turn, self.rank, self.size);
        let offset = u64::from(partner) * self.count;
        let src = Span::input(offset, self.count);
        let dst = Span::output(offset, self.count);
        Some(Step::send_recv(partner, src, partner, dst))
    }
}

/// All-to-all with a length and an offset for every block, out of place.
///
/// The schedule also fits any other pattern of blocks in which each rank can compute its sends and
/// receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AllToAllV<'a> {
    rank: Rank,
    size: u32,
    send_counts: &'a [u64],
    send_offsets: &'a [u64],
    recv_counts: &'a [u64],
    recv_offsets: &'a [u64],
}

/// The schedule of `rank` for an all-to-all. The tables have one entry per rank: offset and length
/// of the block for that rank in the input, and of the block from that rank in the output.
///
/// # Errors
///
/// [`Unsupported`] if the tables differ in length, have no entry for `rank`, disagree on the length
/// of `rank`'s own block, or exceed the range of a `u64`.
pub fn all_to_all_v<'a>(
    rank: Rank,
    send_counts: &'a [u64],
    send_offsets: &'a [u64],
    recv_counts: &'a [u64],
    recv_offsets: &'a [u64],
) -> Result<AllToAllV<'a>, Unsupported> {
    let unsupported = |reason| Unsupported {
        operation: Operation::AllToAll,
        algorithm: Algorithm::Pairwise,
        reason,
    };
    let entries = send_counts.len();
    let lengths = [send_offsets.len(), recv_counts.len(), recv_offsets.len()];
    if lengths.iter().any(|length| *length != entries) {
        return Err(unsupported("the count tables differ in length"));
    }
    let size = u32::try_from(entries).map_err(|_| unsupported("too many ranks"))?;
    if rank >= size {
        return Err(unsupported("the rank has no entry in the count tables"));
    }
    if send_counts[rank as usize] != recv_counts[rank as usize] {
        return Err(unsupported(
            "a rank's block for itself has two different lengths",
        ));
    }
    let fits = |counts: &[u64], offsets: &[u64]| {
        let mut blocks = counts.iter().zip(offsets);
        blocks.all(|(count, offset)| count.checked_add(*offset).is_some())
    };
    if !fits(send_counts, send_offsets) || !fits(recv_counts, recv_offsets) {
        return Err(unsupported("a block ends beyond what a u64 counts"));
    }
    Ok(AllToAllV {
        rank,
        size,
        send_counts,
        send_offsets,
        recv_counts,
        recv_offsets,
    })
}

impl Steps for AllToAllV<'_> {
    fn may_lend(&self) -> bool {
        true
    }

    /// The first channel carries the blocks. On the second, each rank signals every other, so that
    /// ranks can tell each other the lengths of the blocks while these are in flight.
    fn channels(&self) -> u32 {
        2
    }

    fn scratch(&self) -> u64 {
        0
    }

    fn step(&self, channel: u32, index: u64) -> Option<Step> {
        let index = u32::try_from(index).ok()?;
        if channel != 0 {
            return self.barrier(index).filter(|_| channel == 1);
        }
        let (to, from) = shift(self.rank, self.size, index)?;
        let (t, f) = (to as usize, from as usize);
        let src = Span::input(self.send_offsets[t], self.send_counts[t]);
        let dst = Span::output(self.recv_offsets[f], self.recv_counts[f]);
        Some(if to == self.rank {
            Step::copy(self.rank, src, dst)
        } else {
            Step::send_recv(to, src, from, dst)
        })
    }
}

impl AllToAllV<'_> {
    /// Signals all peers, then waits for all.
    fn barrier(&self, index: u32) -> Option<Step> {
        let peers = self.size - 1;
        if index < peers {
            let peer = after(self.rank, index + 1, self.size);
            return Some(Step::signal(self.rank, peer));
        }
        let index = index - peers;
        (index < peers).then(|| Step::wait(self.rank, before(self.rank, index + 1, self.size)))
    }
}

/// The ranks to send to and to receive from in turn `index`; both are the rank itself in the last
/// turn.
fn shift(rank: Rank, size: u32, index: u32) -> Option<(Rank, Rank)> {
    let distance = index.checked_add(1).filter(|far| *far <= size)?;
    Some((after(rank, distance, size), before(rank, distance, size)))
}
