//! What an operation does with its two buffers.

/// A buffer of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// What is read.
    Input,
    /// What is written.
    Output,
}

/// How many elements a buffer has, by the count of its call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Extent {
    /// There is no such buffer.
    Nothing,
    /// The count.
    Count,
    /// A block of the count for each rank.
    Blocks,
    /// Any number, whatever the other buffer has: other arguments or the peer say what is right.
    Any,
}

impl Extent {
    /// Elements of a buffer among so many ranks; what fits no number is [`u64::MAX`].
    ///
    /// ```
    /// use spark_ccl_types::Extent;
    ///
    /// assert_eq!(Extent::Nothing.elements(5, 4), 0);
    /// assert_eq!(Extent::Count.elements(5, 4), 5);
    /// assert_eq!(Extent::Blocks.elements(5, 4), 20);
    /// ```
    #[inline]
    pub const fn elements(self, count: u64, ranks: u32) -> u64 {
        match self {
            Self::Nothing => 0,
            Self::Count | Self::Any => count,
            Self::Blocks => count.saturating_mul(ranks as u64),
        }
    }
}

/// Which ranks of a call may be in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InPlaceRule {
    /// None: the operation has no such form.
    Never,
    /// Any: messages do not depend on it.
    Free,
    /// Any, but all or none where ranks reach into each other's memory: a rank's block is elsewhere then.
    AlikeIfShared,
    /// All or none where there are three ranks or more: partners take turns in another order.
    AlikeFromThree,
}

impl InPlaceRule {
    /// Whether all ranks must be in place, or none.
    #[inline]
    pub const fn binds(self, ranks: usize, is_shared: bool) -> bool {
        match self {
            Self::Never | Self::Free => false,
            Self::AlikeIfShared => is_shared,
            Self::AlikeFromThree => ranks > 2,
        }
    }
}
