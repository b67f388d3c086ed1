//! What a rank blocks on that has nothing else to do than to wait for its peers.

mod barrier;
mod bell;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

pub use bell::Bell;

pub(crate) use barrier::take_part;

/// For so long a wait sleeps that cannot ask the kernel for anything better.
const SHORT: Duration = Duration::from_micros(500);

/// Something with a descriptor that can be polled.
type File = Arc<dyn AsFd + Send + Sync>;

/// The events of some links that a waiter blocks for.
///
/// [`LinkRx::arm`](crate::LinkRx::arm) all links, [`settle`](Self::settle), look at what is waited for
/// once more, and have that which still lacks something [`watch`](crate::LinkRx::watch); then what comes
/// after the look ends the block.
#[derive(Default)]
pub struct Wait {
    files: Vec<(File, PollFlags)>,
    has_words: bool,
    is_blind: bool,
}

impl Wait {
    /// Notes that something may come that does not end the block.
    pub fn be_blind(&mut self) {
        self.is_blind = true;
    }

    /// Whether something may come that does not end the block. Block for a short time then.
    pub fn is_blind(&self) -> bool {
        self.is_blind
    }

    /// Notes that a peer looks at a word of shared memory after it has sent something.
    pub(crate) fn add_word(&mut self) {
        self.has_words = true;
    }

    /// Blocks for events of this file, too.
    pub(crate) fn add(&mut self, file: File, events: PollFlags) {
        self.files.push((file, events));
    }

    /// How many files' events end the block.
    #[cfg(test)]
    pub(crate) fn files(&self) -> usize {
        self.files.len()
    }

    /// Makes sure that peers see the words that arming has stored, or else that whoever looks from now
    /// on sees what they sent.
    pub fn settle(&mut self) {
        if self.has_words && !barrier::everywhere() {
            self.be_blind();
        }
    }

    /// Blocks until something comes, `bell` rings, or the time is over; or, at times, for nothing.
    pub fn block(&self, bell: &Bell, most: Duration) {
        let mut events = vec![PollFd::new(bell, PollFlags::IN)];
        let files = self.files.iter();
        events.extend(files.map(|(file, flags)| PollFd::from_borrowed_fd(file.as_fd(), *flags)));
        let timeout = Timespec::try_from(most).ok();
        match poll(&mut events, timeout.as_ref()) {
            Ok(_) if !events[0].revents().is_empty() => bell.silence(),
            Ok(_) | Err(Errno::INTR) => {}
            // Out of memory, if anything; it must not make the waiter spin.
            Err(_) => std::thread::sleep(most.min(SHORT)),
        }
    }
}

#[cfg(test)]
mod tests;
