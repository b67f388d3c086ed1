//! The operations of the library: one table, and the properties that are read from it.

mod derived;

use std::fmt;

use Extent::{Any, Blocks, Count, Nothing};
use InPlaceRule::{AlikeFromThree, AlikeIfShared, Free, Never};
use Side::{Input, Output};

use crate::buffers::{Extent, InPlaceRule, Side};

/// The properties of an operation.
struct Row {
    name: &'static str,
    input: Extent,
    output: Extent,
    at_root: Option<Side>,
    reduces: bool,
    has_schedule: bool,
    in_place: InPlaceRule,
    /// The buffers that peers access, out of place and in place: see [`Operation::shared`].
    shared: [Option<[Side; 2]>; 2],
}

const INPUTS: Option<[Side; 2]> = Some([Input; 2]);
const OUTPUTS: Option<[Side; 2]> = Some([Output; 2]);
const BOTH: Option<[Side; 2]> = Some([Input, Output]);
const NEITHER: Option<[Side; 2]> = None;

macro_rules! operations {
    ($(
        $(#[$doc:meta])*
        $operation:ident $name:literal $input:ident $output:ident ($($at_root:ident)?)
        $reduces:literal $has_schedule:literal $in_place:ident $shared:ident $shared_in_place:ident;
    )*) => {
        /// An operation of the library.
        ///
        /// ```
        /// # use spark_ccl_types as spark_ccl;
        /// use spark_ccl::{Extent, Operation, Side};
        ///
        /// let gather = Operation::from_name("gather").unwrap();
        /// assert_eq!(gather, Operation::Gather);
        /// assert_eq!(gather.extent(Side::Output), Extent::Blocks);
        /// assert_eq!(gather.at_root(), Some(Side::Output));
        /// ```
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Operation {
            $($(#[$doc])* $operation,)*
        }

        impl Operation {
            /// All operations, in the order of their codes.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$operation),*];
        }

        /// The rows, indexed by the operations' codes.
        const TABLE: &[Row; Operation::ALL.len()] = &[$(Row {
            name: $name,
            input: $input,
            output: $output,
            at_root: {
                let at_root: &[Side] = &[$($at_root)?];
                at_root.first().copied()
            },
            reduces: $reduces,
            has_schedule: $has_schedule,
            in_place: $in_place,
            shared: [$shared, $shared_in_place],
        }),*];
    };
}

// The order of the rows determines the codes in signatures, so append new rows at the end.
operations! {
    // operation  name                 input   output  only the  re-   has   in place       shared
    //                                                 root has  duces schedule             out, in
    /// Every rank gets the reduction of all vectors.
    AllReduce     "all_reduce"         Count   Count   ()        true  true  Free           BOTH    BOTH;
    /// Every rank gets the blocks of all ranks.
    AllGather     "all_gather"         Count   Blocks  ()        false true  AlikeIfShared  INPUTS  OUTPUTS;
    /// Every rank gets its block of the reduction of all vectors.
    ReduceScatter "reduce_scatter"     Blocks  Count   ()        true  true  Free           INPUTS  INPUTS;
    /// Every rank gets the root's vector.
    Broadcast     "broadcast"          Count   Count   (Input)   false true  Free           OUTPUTS OUTPUTS;
    /// The root gets the reduction of all vectors.
    Reduce        "reduce"             Count   Count   (Output)  true  true  Free           INPUTS  INPUTS;
    /// The root gets the blocks of all ranks.
    Gather        "gather"             Count   Blocks  (Output)  false true  AlikeIfShared  INPUTS  OUTPUTS;
    /// Every rank gets its block of the root's vector.
    Scatter       "scatter"            Blocks  Count   (Input)   false true  AlikeIfShared  NEITHER INPUTS;
    /// Every rank gets one block of every rank.
    AllToAll      "all_to_all"         Blocks  Blocks  ()        false true  AlikeFromThree INPUTS  NEITHER;
    /// Every rank gets one block of every rank, of any length.
    AllToAllV     "all_to_all_v"       Any     Any     ()        false false Never          NEITHER NEITHER;
    /// No rank leaves before all ranks have entered.
    Barrier       "barrier"            Nothing Nothing ()        false true  Never          NEITHER NEITHER;
    /// A message to one rank.
    Send          "send"               Any     Nothing ()        false false Never          NEITHER NEITHER;
    /// A message from one rank.
    Recv          "recv"               Nothing Any     ()        false false Never          NEITHER NEITHER;
    /// A message to one rank, and one from the same or another rank.
    SendRecv      "send_recv"          Any     Any     ()        false false Never          NEITHER NEITHER;
    /// Every rank gets registered memory.
    Alloc         "alloc"              Nothing Nothing ()        false true  Never          NEITHER NEITHER;
}

impl Operation {
    /// Its name, which is also that of the communicator's method.
    #[inline]
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// The operation of this name, if there is one.
    pub fn from_name(name: &str) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|operation| operation.name() == name)
    }

    /// Its number in signatures.
    #[inline]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The operation with this number, if there is one.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// The length of a buffer, on the ranks that have it.
    #[inline]
    pub const fn extent(self, side: Side) -> Extent {
        match side {
            Side::Input => self.row().input,
            Side::Output => self.row().output,
        }
    }

    /// The buffer that only the root has; `None` if there is no root.
    #[inline]
    pub const fn at_root(self) -> Option<Side> {
        self.row().at_root
    }

    /// Whether it is a message between two ranks, unknown to the others.
    pub const fn is_of_pairs(self) -> bool {
        matches!(self, Self::Send | Self::Recv | Self::SendRecv)
    }

    /// Whether there is a root.
    #[inline]
    pub const fn is_rooted(self) -> bool {
        self.at_root().is_some()
    }

    /// Whether elements of different ranks are combined.
    #[inline]
    pub const fn reduces(self) -> bool {
        self.row().reduces
    }

    /// Whether a schedule computes its steps, from its signature alone. Only such operations have
    /// algorithms.
    #[inline]
    pub const fn has_schedule(self) -> bool {
        self.row().has_schedule
    }

    /// Which ranks may be in place.
    #[inline]
    pub const fn in_place(self) -> InPlaceRule {
        self.row().in_place
    }

    /// The buffers that ranks access in each other's memory if they are registered; a single one is
    /// listed twice. `None` if the operation has no one-sided form.
    #[inline]
    pub const fn shared(self, in_place: bool) -> Option<[Side; 2]> {
        self.row().shared[in_place as usize]
    }

    #[inline]
    const fn row(self) -> &'static Row {
        &TABLE[self as usize]
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests;
