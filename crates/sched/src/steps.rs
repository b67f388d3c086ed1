//! The steps of a rank, wherever they come from.

use crate::step::Step;

/// What one rank does, channel by channel.
pub trait Steps {
    /// Number of channels, 1 or 2. They are independent of each other.
    fn channels(&self) -> u32;

    /// Elements of [`Buf::Scratch`](crate::Buf::Scratch) that the steps use.
    fn scratch(&self) -> u64;

    /// Whether messages may be read where they lie, as late as their receivers get there: nothing is
    /// written there before. That concerns steps that send what is in memory.
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

/// Iterator over the steps of a channel that have something to do.
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
