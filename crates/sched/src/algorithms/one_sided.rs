//! Ranks read and write each other's registered memory, between two rounds of signals. The first
//! means that a rank's buffers are ready, the second that it no longer uses its peers' buffers.

use spark_ccl_types::Operation;

use crate::rounds::{Split, after, before};
use crate::shape::Shape;
use crate::step::{Kind, Rank, Span, Step};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OneSided {
    goal: Goal,
    rank: Rank,
    root: Rank,
    size: u32,
    count: u64,
    in_place: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goal {
    /// All ranks work on the memory of all once all are ready.
    AllReduce(Split),
    ReduceScatter,
    /// Each rank reads from each peer as soon as that peer is ready.
    AllGather,
    AllToAll,
    /// All ranks read from the root.
    Broadcast,
    Scatter,
    /// The root reads from all ranks.
    Reduce,
    Gather,
}

impl OneSided {
    /// Returns `None` for operations without a one-sided form.
    pub(crate) fn new(operation: Operation, in_place: bool, shape: &Shape) -> Option<Self> {
        let goal = match operation {
            Operation::AllReduce => {
                Goal::AllReduce(Split::new(shape.count, shape.size, shape.count))
            }
            Operation::ReduceScatter => Goal::ReduceScatter,
            Operation::AllGather => Goal::AllGather,
            Operation::AllToAll if !in_place => Goal::AllToAll,
            Operation::Broadcast => Goal::Broadcast,
            Operation::Scatter => Goal::Scatter,
            Operation::Reduce => Goal::Reduce,
            Operation::Gather => Goal::Gather,
            _ => return None,
        };
        Some(Self {
            goal,
            rank: shape.rank,
            root: shape.root,
            size: shape.size,
            count: shape.count,
            in_place,
        })
    }

    pub(crate) fn step(&self, index: u64) -> Option<Step> {
        let index = u32::try_from(index).ok()?;
        let is_root = self.rank == self.root;
        match self.goal {
            Goal::AllReduce(_) | Goal::ReduceScatter => self.all_at_once(index),
            Goal::AllGather | Goal::AllToAll => self.all_as_ready(index),
            Goal::Broadcast if is_root && !self.in_place => self.publish(index),
            Goal::Broadcast | Goal::Scatter if is_root => self.serve(index),
            Goal::Broadcast | Goal::Scatter => self.read_from(self.root, index),
            Goal::Reduce if is_root => self.reduce(index),
            Goal::Gather if is_root => self.gather(index),
            Goal::Reduce | Goal::Gather => match index {
                0 => Some(Step::signal(self.rank, self.root)),
                1 => Some(Step::wait(self.rank, self.root)),
                _ => None,
            },
        }
    }

    /// Signals all, waits for all, works, and again signals all and waits for all.
    fn all_at_once(&self, index: u32) -> Option<Step> {
        let round = 2 * self.peers();
        if index < round {
            return self.barrier(index);
        }
        if index == round {
            return Some(self.work());
        }
        self.barrier(index - round - 1)
    }

    fn barrier(&self, index: u32) -> Option<Step> {
        self.signal_peer(index)
            .or_else(|| self.wait_peer(index - self.peers()))
    }

    fn work(&self) -> Step {
        if let Goal::AllReduce(split) = self.goal {
            let block = split.block(self.rank);
            let src = Span::input(block.offset, block.len);
            let dst = Span::output(block.offset, block.len);
            return Step::local(self.rank, Kind::GetReducePut, src, dst);
        }
        let offset = u64::from(self.rank) * self.count;
        let src = Span::input(offset, self.count);
        let dst = Span::output(0, self.count);
        Step::local(self.rank, Kind::GetReduce, src, dst)
    }

    /// Signals all, copies the own block, reads from each peer, and waits for all.
    fn all_as_ready(&self, index: u32) -> Option<Step> {
        if let Some(signal) = self.signal_peer(index) {
            return Some(signal);
        }
        let mut index = index - self.peers();
        if !self.in_place {
            if index == 0 {
                let (src, dst) = self.block(self.rank);
                return Some(Step::copy(self.rank, src, dst));
            }
            index -= 1;
        }
        if index < 3 * self.peers() {
            let owner = before(self.rank, index / 3 + 1, self.size);
            return self.read_from(owner, index % 3);
        }
        self.wait_peer(index - 3 * self.peers())
    }

    /// Copies to the own output, signals all, and waits for all.
    fn publish(&self, index: u32) -> Option<Step> {
        match index.checked_sub(1) {
            None => {
                let src = Span::input(0, self.count);
                let dst = Span::output(0, self.count);
                Some(Step::copy(self.rank, src, dst))
            }
            Some(index) => self.barrier(index),
        }
    }

    /// Signals all, copies the own block, and waits for all.
    fn serve(&self, index: u32) -> Option<Step> {
        if let Some(signal) = self.signal_peer(index) {
            return Some(signal);
        }
        let index = index - self.peers();
        if self.in_place {
            return self.wait_peer(index);
        }
        match index.checked_sub(1) {
            None => {
                let (src, dst) = self.block(self.rank);
                Some(Step::copy(self.rank, src, dst))
            }
            Some(index) => self.wait_peer(index),
        }
    }

    /// Waits for all, reduces, and signals all.
    fn reduce(&self, index: u32) -> Option<Step> {
        if let Some(wait) = self.wait_peer(index) {
            return Some(wait);
        }
        match (index - self.peers()).checked_sub(1) {
            None => {
                let src = Span::input(0, self.count);
                let dst = Span::output(0, self.count);
                Some(Step::local(self.rank, Kind::GetReduce, src, dst))
            }
            Some(index) => self.signal_peer(index),
        }
    }

    /// Reads from each peer, then copies the own block.
    fn gather(&self, index: u32) -> Option<Step> {
        if index < 3 * self.peers() {
            let owner = before(self.rank, index / 3 + 1, self.size);
            return self.read_from(owner, index % 3);
        }
        (index == 3 * self.peers() && !self.in_place).then(|| {
            let (src, dst) = self.block(self.rank);
            Step::copy(self.rank, src, dst)
        })
    }

    /// Waits until `owner` is ready, reads the block, and signals that it is done.
    fn read_from(&self, owner: Rank, index: u32) -> Option<Step> {
        match index {
            0 => Some(Step::wait(self.rank, owner)),
            1 => {
                let (src, dst) = self.block(owner);
                // A broadcast's vector is read from the root's output, where all ranks have it.
                let src = match self.goal {
                    Goal::Broadcast => dst,
                    _ => src,
                };
                Some(Step::get(self.rank, owner, src, dst))
            }
            2 => Some(Step::signal(self.rank, owner)),
            _ => None,
        }
    }

    /// The block that `owner` has for this rank: its position there, and its destination here.
    fn block(&self, owner: Rank) -> (Span, Span) {
        let of = |rank: Rank| u64::from(rank) * self.count;
        let (from, to) = match self.goal {
            Goal::AllGather | Goal::Gather => (0, of(owner)),
            Goal::AllToAll => (of(self.rank), of(owner)),
            Goal::Scatter => (of(self.rank), 0),
            _ => (0, 0),
        };
        (Span::input(from, self.count), Span::output(to, self.count))
    }

    fn signal_peer(&self, index: u32) -> Option<Step> {
        (index < self.peers())
            .then(|| Step::signal(self.rank, after(self.rank, index + 1, self.size)))
    }

    fn wait_peer(&self, index: u32) -> Option<Step> {
        (index < self.peers())
            .then(|| Step::wait(self.rank, before(self.rank, index + 1, self.size)))
    }

    fn peers(&self) -> u32 {
        self.size - 1
    }
}
