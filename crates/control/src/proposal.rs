//! How ranks want to go on after a communicator.

/// What a rank proposes: a new communicator of some of the members.
///
/// Ranks agree when they propose the same context, which they derive from the generation and the new members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proposal {
    /// Greater than in every proposal that the rank made before.
    pub generation: u64,
    /// The new communicator's context; `None` when the rank no longer waits for others to agree.
    pub context: Option<u64>,
    /// The context that the rank saw all propose, last: it is in that communicator. It may propose the next one before
    /// the others have looked.
    pub accepted: Option<u64>,
    /// World ranks of members that it is to do without. Others learn of the first 128 only.
    pub without: Vec<u32>,
}

impl Proposal {
    /// Whether the rank is in the communicator with this context, or waits for it.
    pub fn agrees_with(&self, context: u64) -> bool {
        [self.context, self.accepted].contains(&Some(context))
    }
}
