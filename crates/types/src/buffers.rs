//! Properties of an operation's two buffers: their lengths, and which ranks may be in place.

/// One of the two buffers of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The buffer that is read.
    Input,
    /// The buffer that is written.
    Output,
}

/// How many elements a buffer has, as a function of the call's count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Extent {
    /// The rank has no buffer there.
    Nothing,
    /// The count itself.
    Count,
    /// One block of `count` elements per rank.
    Blocks,
    /// Any number, independently of the other buffer: other arguments, or the peer's call,
    /// determine it.
    Any,
}

impl Extent {
    /// The number of elements of a buffer in a call with this count, among `ranks` ranks. Saturates
    /// at [`u64::MAX`].
    ///
    /// ```
    /// # use spark_ccl_types as spark_ccl;
    /// use spark_ccl::Extent;
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
    /// No rank: the operation has no in-place form.
    Never,
    /// Any rank, independently of the others: messages do not depend on it.
    Free,
    /// Any rank; but all or none if ranks access each other's memory, because being in place moves
    /// a rank's block.
    AlikeIfShared,
    /// All ranks or none if there are three or more: in place, the partners exchange in another
    /// order.
    AlikeFromThree,
}

impl InPlaceRule {
    /// Whether the ranks must agree: all in place, or none.
    #[inline]
    pub const fn binds(self, ranks: usize, is_shared: bool) -> bool {
        match self {
            Self::Never | Self::Free => false,
            Self::AlikeIfShared => is_shared,
            Self::AlikeFromThree => ranks > 2,
        }
    }
}
