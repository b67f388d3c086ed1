//! The forms of calls through slots, and how many slots a lane needs for each, so that ranks never
//! wait for each other in a circle.
//!
//! A lane's rows at the sender and at the receiver both hold slots. A slot that the peer has no
//! room for stays in the outbox, which holds up nobody until the outbox is full.

use spark_ccl_types::Operation;

/// How a call goes through slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Each rank sends the others the parts of its input that they need.
    Direct,
    /// Some ranks get a share of the input each, and pass on the result.
    Shared,
}

impl Form {
    /// The forms that an operation has.
    ///
    /// ```
    /// use spark_ccl_slots::Form;
    /// use spark_ccl_types::Operation;
    ///
    /// assert_eq!(Form::of(Operation::AllGather), [Form::Direct]);
    /// assert_eq!(Form::of(Operation::Broadcast), [Form::Direct, Form::Shared]);
    /// assert!(Form::of(Operation::Barrier).is_empty());
    /// ```
    pub fn of(operation: Operation) -> &'static [Self] {
        use Operation::{AllGather, AllReduce, AllToAll, Broadcast, Gather, Reduce, ReduceScatter};
        match operation {
            AllReduce | Broadcast | Reduce => &[Self::Direct, Self::Shared],
            AllGather | ReduceScatter | AllToAll | Gather | Operation::Scatter => &[Self::Direct],
            _ => &[],
        }
    }

    /// How many ranks pass on a share.
    pub(crate) fn sharers(self, operation: Operation, ranks: usize) -> usize {
        match self {
            Self::Direct => 0,
            Self::Shared => ranks - usize::from(operation.is_rooted()),
        }
    }

    /// The smallest depth of lanes that fill `ahead` rounds before they consume the first.
    ///
    /// Before a lane fills a slot, up to `ahead` rounds of input are on their way to each peer, and
    /// as many of results, if the form has results. A peer that waits for room itself consumes
    /// nothing meanwhile. Both rows of `depth` slots together hold all of these and one slot more.
    ///
    /// ```
    /// use spark_ccl_slots::Form;
    ///
    /// assert_eq!(Form::Direct.depth(4), 3);
    /// assert_eq!(Form::Shared.depth(4), 5);
    /// ```
    pub fn depth(self, ahead: usize) -> usize {
        let under_way = match self {
            Self::Direct => ahead,
            Self::Shared => 2 * ahead,
        };
        under_way / 2 + 1
    }

    /// The most rounds that lanes of this depth may fill before they consume the first.
    pub fn ahead(self, depth: usize) -> usize {
        match self {
            Self::Direct => 2 * depth - 1,
            Self::Shared => depth - 1,
        }
    }
}

#[cfg(test)]
mod tests;
