//! The links of a communicator, and what else its operations share.

use spark_ccl_compute::{Compute, Job, Operand, Started};
use spark_ccl_sched::Rank;
use spark_ccl_transport::{Bell, LinkError, LinkRx, LinkTx, Wait};
use std::ops::Range;
use std::sync::Arc;

impl Obstacle {
    /// Whether it may go away by itself.
    pub(super) fn is_wait(&self) -> bool {
        matches!(
            self,
            Self::Message { .. } | Self::Credit { .. } | Self::Reduction
        )
    }

    /// The peer on whom it depends.
    pub(super) fn peer(&self) -> Option<Rank> {
        match *self {
            Self::Reduction => None,
            Self::Message { peer, .. }
            | Self::Credit { peer }
            | Self::Foreign { peer, .. }
            | Self::Link { peer, .. } => Some(peer),
        }
    }
}

/// What all operations of a communicator work with.
pub(crate) struct Wires {
    pub(crate) rank: Rank,
    pub(crate) size: u32,
    pub(crate) slot_bytes: usize,
    pub(crate) tx: Vec<Box<dyn LinkTx>>,
    pub(crate) rx: Vec<Box<dyn LinkRx>>,
    pub(crate) compute: Box<dyn Compute>,
    /// Ends the block of whoever waits on the links.
    pub(crate) bell: Arc<Bell>,
    /// Some reductions are not done at once, and nobody rings when they are.
    pub(super) reduces_later: bool,
    scratch: Vec<u8>,
    /// Start of `scratch`.
    pub(super) scratch_base: *mut u8,
    /// Peers whose links hold committed bytes back.
    pub(crate) unflushed: Vec<Rank>,
    pub(super) operands: Vec<Operand>,
    pub(super) targets: Vec<*mut u8>,
}

// SAFETY: the raw pointers in `operands` and `targets` are only meaningful within one call, and
// `scratch_base` points into `scratch`, which moves along.
unsafe impl Send for Wires {}

/// Why an operation does not advance.
#[derive(Debug)]
pub(super) enum Obstacle {
    /// The peer's next message is not there yet.
    Message { peer: Rank, lane: usize },
    /// The link to the peer moves nothing more for now.
    Credit { peer: Rank },
    /// A reduction is not done.
    Reduction,
    /// The peer's message belongs to another operation.
    Foreign { peer: Rank, tag: u64 },
    /// The link to the peer ended.
    Link { peer: Rank, error: LinkError },
}

impl Wires {
    pub(crate) fn new(
        rank: Rank,
        slot_bytes: usize,
        tx: Vec<Box<dyn LinkTx>>,
        rx: Vec<Box<dyn LinkRx>>,
        compute: Box<dyn Compute>,
        bell: Arc<Bell>,
    ) -> Self {
        Self {
            rank,
            size: tx.len() as u32,
            slot_bytes,
            tx,
            rx,
            compute,
            bell,
            reduces_later: false,
            scratch: Vec::new(),
            scratch_base: std::ptr::null_mut(),
            unflushed: Vec::new(),
            operands: Vec::new(),
            targets: Vec::new(),
        }
    }

    /// Pushes held-back bytes on. A link that fails here fails again for whoever uses it.
    pub(super) fn flush(&mut self) {
        if self.unflushed.is_empty() {
            return;
        }
        let tx = &mut self.tx;
        self.unflushed
            .retain(|&peer| !matches!(tx[peer as usize].flush(), Ok(true)));
    }

    /// Whether bytes on these channels are still held back.
    pub(super) fn held_back(&mut self, channels: Range<usize>) -> Option<Obstacle> {
        let holds = |tx: &dyn LinkTx| channels.clone().any(|channel| tx.holds_back(channel));
        let mut unflushed = self.unflushed.iter();
        let &peer = unflushed.find(|&&peer| holds(self.tx[peer as usize].as_ref()))?;
        Some(match self.tx[peer as usize].flush() {
            Ok(_) => Obstacle::Credit { peer },
            Err(error) => Obstacle::Link { peer, error },
        })
    }

    /// Gives all links up.
    pub(super) fn withdraw(&mut self) {
        self.tx.iter_mut().for_each(|tx| tx.withdraw());
    }

    /// Prepares a wait for the peers. To be followed by a look at everything that is waited for.
    pub(super) fn arm(&mut self) -> Wait {
        let mut wait = Wait::default();
        if self.reduces_later {
            wait.be_blind();
        }
        for rx in peers(&mut self.rx, self.rank) {
            rx.arm(&mut wait);
        }
        wait
    }

    /// Adds what that look did not find.
    pub(super) fn watch(&self, wait: &mut Wait) {
        self.rx.iter().for_each(|rx| rx.watch(wait));
        for &peer in &self.unflushed {
            self.tx[peer as usize].watch(wait);
        }
    }

    /// Ends a wait.
    pub(super) fn disarm(&mut self) {
        peers(&mut self.rx, self.rank).for_each(|rx| rx.disarm());
    }

    /// Sends the slot that was reserved.
    pub(super) fn commit(
        &mut self,
        peer: Rank,
        lane: usize,
        bytes: usize,
        tag: u64,
    ) -> Result<(), LinkError> {
        self.tx[peer as usize].commit(lane, bytes, tag)?;
        self.note_held_back(peer, lane);
        Ok(())
    }

    /// Remembers to flush the link, if it is to be flushed.
    pub(super) fn note_held_back(&mut self, peer: Rank, lane: usize) {
        if self.tx[peer as usize].holds_back(lane) && !self.unflushed.contains(&peer) {
            self.unflushed.push(peer);
        }
    }

    /// Runs a small job to its end.
    ///
    /// # Safety
    /// As for [`Compute::start`].
    pub(super) unsafe fn compute_now(&mut self, job: &Job<'_>) {
        // SAFETY: passed on from the caller; the job is over when this returns.
        if let Started::Pending(ticket) = unsafe { self.compute.start(job) } {
            while !self.compute.poll(ticket) {
                std::thread::yield_now();
            }
        }
    }

    /// Memory for intermediate results.
    pub(super) fn provide_scratch(&mut self, bytes: usize) {
        if self.scratch.len() < bytes {
            self.scratch.resize(bytes, 0);
        }
        self.scratch_base = self.scratch.as_mut_ptr();
    }

    /// Looks out for a message for a while, at nothing but its link.
    pub(super) fn await_message(&mut self, peer: Rank, lane: usize, looks: u32) {
        let rx = &mut self.rx[peer as usize];
        for _ in 0..looks {
            if rx.has_news(lane) {
                return;
            }
            std::hint::spin_loop();
        }
    }
}

/// The halves of the links to others: nobody waits for what they send themselves.
fn peers(rx: &mut [Box<dyn LinkRx>], own: Rank) -> impl Iterator<Item = &mut Box<dyn LinkRx>> {
    let all = rx.iter_mut().enumerate();
    all.filter_map(move |(peer, rx)| (peer != own as usize).then_some(rx))
}
