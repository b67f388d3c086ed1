//! The steps of a rank, independent of what computes them.

use crate::step::Step;

/// The steps of one rank, per channel.
pub trait Steps {
    /// The number of channels, 1 or 2. Channels are independent of each other.
    fn channels(&self) -> u32;

    /// The number of elements of [`Buf::Scratch`](crate::Buf::Scratch) that the steps use.
    fn scratch(&self) -> u64;

    /// Whether receivers may read messages directly from the sender's memory, however late: the
    /// schedule writes nothing there before they have. This concerns steps that send what is in
    /// memory.
    fn may_lend(&self) -> bool;

    /// Step `index` of `channel`, or `None` after the last. The steps of a channel are done in
    /// order. Some may be empty ([`Step::is_empty`]).
    fn step(&self, channel: u32, index: u64) -> Option<Step>;

    /// The steps of a channel in order, without the empty ones.
    fn walk(&self, channel: u32) -> Walk<'_, Self>
    where
        Self: Sized,
    {
        Walk {
            steps: self,
            channel,
            index: 0,
        }
    }
}

/// Iterates over the steps of a channel, without the empty ones.
#[derive(Debug, Clone)]
pub struct Walk<'a, S> {
    steps: &'a S,
    channel: u32,
    index: u64,
}

impl<S: Steps> Iterator for Walk<'_, S> {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        loop {
            let step = self.steps.step(self.channel, self.index)?;
            self.index += 1;
            if !step.is_empty() {
                return Some(step);
            }
        }
    }
}
