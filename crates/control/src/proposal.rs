//! A rank's proposal of the members that go on in a new communicator.

/// A rank's message to the others while they agree on a new communicator of some of the members.
///
/// Ranks agree when they propose the same context, which they derive from the generation and the
/// new members.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Proposal {
    /// At least that of every proposal that the rank made before.
    pub generation: u64,
    /// The new communicator's context; `None` while the rank proposes none.
    pub context: Option<u64>,
    /// The last proposal to which the rank has bound itself.
    pub bound: Option<Bound>,
    /// World ranks of members that it leaves out, the first 300 of them.
    pub without: Vec<u32>,
    /// World ranks of members that do not answer the rank, the first 300 of them.
    pub silent: Vec<u32>,
}

/// A proposal that a rank saw all its members make. The rank has said so, and takes no other
/// members from then on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bound {
    /// The generation of the proposal.
    pub generation: u64,
    /// Its context.
    pub context: u64,
    /// World ranks of members that it leaves out, the first 300 of them.
    pub without: Vec<u32>,
}

impl Proposal {
    /// Whether the rank proposes the communicator with this context, or is bound to it.
    pub fn agrees_with(&self, context: u64) -> bool {
        self.context == Some(context) || self.is_bound_to(context)
    }

    /// Whether the rank has bound itself to the communicator with this context.
    pub fn is_bound_to(&self, context: u64) -> bool {
        let bound = self.bound.as_ref();
        bound.is_some_and(|bound| bound.context == context)
    }
}
