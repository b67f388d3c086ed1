//! Messages that may come over another socket than their own, since a rail has fallen silent. Only
//! links between hosts have them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::header::Header;
use super::spares::Spares;

/// How long a message is awaited at its own socket before the others are looked at. Doing so costs
/// system calls.
const AWAIT: Duration = Duration::from_millis(500);
/// The bytes of early messages that are kept; the rest stays with the kernel, which then holds the
/// sender back.
const MOST: usize = 1 << 30;

/// The messages that came over other sockets than theirs, and where more are to be expected.
pub(super) struct Detours {
    /// The connections that the link gets later.
    pub(super) spares: Arc<Spares>,
    /// Tag and payload of messages that were found behind others, by number.
    stash: BTreeMap<u64, (u64, Vec<u8>)>,
    bytes: usize,
    /// The message that was missed last, and since when.
    missed: Option<(u64, Instant)>,
    /// When spent connections were looked for last.
    pruned: Option<Instant>,
}

impl Detours {
    pub(super) fn of(spares: &Arc<Spares>) -> Self {
        Self {
            spares: Arc::clone(spares),
            stash: BTreeMap::new(),
            bytes: 0,
            missed: None,
            pruned: None,
        }
    }

    /// The message, if it was found.
    pub(super) fn get(&self, sequence: u64) -> Option<(u64, &[u8])> {
        let (tag, payload) = self.stash.get(&sequence)?;
        Some((*tag, payload))
    }

    pub(super) fn remove(&mut self, sequence: u64) {
        if let Some((_, payload)) = self.stash.remove(&sequence) {
            self.bytes -= payload.len();
        }
    }

    /// Whether only the next message may be added.
    pub(super) fn is_full(&self) -> bool {
        self.bytes >= MOST
    }

    /// Keeps a message until its turn comes.
    pub(super) fn put(&mut self, header: Header, payload: &[u8]) {
        self.remove(header.sequence);
        self.bytes += payload.len();
        self.stash
            .insert(header.sequence, (header.tag, payload.to_vec()));
    }

    /// Whether a message has been missed long enough that it may come over another socket.
    pub(super) fn is_overdue(&mut self, sequence: u64) -> bool {
        let now = Instant::now();
        let missed = self.missed.filter(|(missed, _)| *missed == sequence);
        let (_, since) = *self.missed.insert(missed.unwrap_or((sequence, now)));
        now - since > AWAIT
    }

    /// Whether to look for spent connections: that costs system calls, too.
    pub(super) fn may_prune(&mut self) -> bool {
        let now = Instant::now();
        let is_due = self.pruned.is_none_or(|last| now - last > AWAIT);
        self.pruned = self.pruned.filter(|_| !is_due).or(Some(now));
        is_due
    }
}
