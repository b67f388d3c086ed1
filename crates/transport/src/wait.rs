//! Blocking until a link has something: what a rank does when spinning no longer pays.

mod barrier;
mod bell;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use barrier::register_for_barriers;
pub use bell::Bell;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// How long a wait sleeps if it cannot poll.
const SHORT: Duration = Duration::from_micros(500);

/// An object with a descriptor that can be polled.
type File = Arc<dyn AsFd + Send + Sync>;

/// The events of several links for which a rank blocks.
///
/// The protocol: [`arm`](crate::LinkRx::arm) all links, [`settle`](Self::settle), check once more
/// for what is awaited, and call [`watch`](crate::LinkRx::watch) on the links where it is still
/// missing. Then whatever comes after the check ends the block.
#[derive(Default)]
pub struct Wait {
    files: Vec<(File, PollFlags)>,
    has_words: bool,
    is_blind: bool,
}

impl Wait {
    /// Notes that an event may not end the block.
    pub fn be_blind(&mut self) {
        self.is_blind = true;
    }

    /// Whether an event may not end the block. If so, block only for a short time.
    pub fn is_blind(&self) -> bool {
        self.is_blind
    }

    /// Notes that a peer checks a word of shared memory after it has sent something.
    pub(crate) fn add_word(&mut self) {
        self.has_words = true;
    }

    /// Adds the events of a file.
    pub(crate) fn add(&mut self, file: File, events: PollFlags) {
        self.files.push((file, events));
    }

    /// How many files have been added.
    #[cfg(test)]
    pub(crate) fn files(&self) -> usize {
        self.files.len()
    }

    /// A barrier between arming and the last check: either peers see the words that arming has
    /// stored, or the check sees what they have sent.
    pub fn settle(&mut self) {
        if self.has_words && !barrier::on_all_cores() {
            self.be_blind();
        }
    }

    /// Blocks until an event comes, `bell` rings, or `most` has passed. Spurious wake-ups are
    /// possible.
    pub fn block(&self, bell: &Bell, most: Duration) {
        let mut events = vec![PollFd::new(bell, PollFlags::IN)];
        let files = self.files.iter();
        events.extend(files.map(|(file, flags)| PollFd::from_borrowed_fd(file.as_fd(), *flags)));
        let timeout = Timespec::try_from(most).ok();
        match poll(&mut events, timeout.as_ref()) {
            Ok(_) if !events[0].revents().is_empty() => bell.silence(),
            Ok(_) | Err(Errno::INTR) => {}
            // Probably out of memory. Sleep, so that the caller does not spin.
            Err(_) => std::thread::sleep(most.min(SHORT)),
        }
    }
}

#[cfg(test)]
mod tests;
