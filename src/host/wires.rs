//! The links of a communicator and the reducer, which its operations share; and what an operation
//! waits for (`Obstacle`).
//!
//! Links that are not made yet come from the mesh. Nothing here knows schedules.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use spark_ccl_compute::{Compute, Helpers, Job, Operand, Started, Streaming, Ticket};
use spark_ccl_sched::Rank;
use spark_ccl_transport::{
    Bell, FAR_STORES_LEAST, LinkError, LinkRx, LinkTx, Rails, SilentRail, Wait,
};

use super::call_details::Disagreement;
use crate::mesh::{Halves, LANES, LinkId, Mesh, index};

/// The links of a communicator, and all else that its operations share.
pub(crate) struct Wires {
    pub(crate) rank: Rank,
    pub(crate) size: u32,
    pub(crate) slot_bytes: usize,
    mesh: Mesh,
    /// By link id: the sender and the receiver of the link, if it is made.
    tx: Vec<Option<Box<dyn LinkTx>>>,
    rx: Vec<Option<Box<dyn LinkRx>>>,
    /// The links to others that are made.
    made: Vec<LinkId>,
    pub(crate) compute: Box<dyn Compute>,
    /// Help with long calls.
    pub(super) helpers: Arc<Helpers>,
    /// Wakes the threads that are blocked on the links.
    pub(crate) bell: Arc<Bell>,
    /// Some reductions are not done at once, and no bell rings when they are.
    pub(super) reduces_later: bool,
    scratch: Vec<u8>,
    /// Start of `scratch`.
    pub(super) scratch_base: *mut u8,
    /// Links that hold committed bytes back.
    pub(super) unflushed: Vec<Unflushed>,
    pub(super) operands: Vec<Operand>,
    pub(super) targets: Vec<*mut u8>,
}

// SAFETY: the raw pointers in `operands` and `targets` are only used within one call, which fills
// them first, and `scratch_base` points to the heap memory of `scratch`, which moves along.
unsafe impl Send for Wires {}

/// A link that holds committed bytes back.
pub(super) struct Unflushed {
    link_id: LinkId,
    /// Why the last flush has failed, if it has.
    error: Option<LinkError>,
}

/// Why an operation does not advance.
#[derive(Debug)]
pub(super) enum Obstacle {
    /// The peer's next message is not there yet.
    Message { peer: Rank, lane: usize },
    /// The link to the peer stands still for now: it is full, or the first bytes of a message
    /// without a slot have yet to come.
    LinkBusy { peer: Rank },
    /// The link to the peer is not made yet.
    Forming { peer: Rank },
    /// A reduction is not done.
    Reduction,
    /// The other half of the step has to move first: it writes what this one sends, or sends what
    /// this one overwrites.
    OtherHalf,
    /// The peer's message belongs to another operation.
    TagMismatch { peer: Rank, tag: u64 },
    /// The peer's part of the operation is not what this rank takes it for.
    Disagreement {
        peer: Rank,
        details: Box<Disagreement>,
    },
    /// No link to the peer could be made.
    NoLink { peer: Rank, error: LinkError },
    /// The link to the peer ended.
    Link { peer: Rank, error: LinkError },
}

impl Obstacle {
    /// Whether it may disappear without this rank's action.
    pub(super) fn is_wait(&self) -> bool {
        matches!(
            self,
            Self::Message { .. }
                | Self::LinkBusy { .. }
                | Self::Forming { .. }
                | Self::Reduction
                | Self::OtherHalf
        )
    }

    /// Whether the peer has closed a link, or it was reset.
    pub(super) fn is_closed(&self) -> bool {
        let (Self::NoLink { error, .. } | Self::Link { error, .. }) = self else {
            return false;
        };
        error.peer_may_be_gone()
    }

    /// The peer on whom it depends.
    pub(super) fn peer(&self) -> Option<Rank> {
        match *self {
            Self::Reduction | Self::OtherHalf => None,
            Self::Message { peer, .. }
            | Self::LinkBusy { peer }
            | Self::Forming { peer }
            | Self::TagMismatch { peer, .. }
            | Self::Disagreement { peer, .. }
            | Self::NoLink { peer, .. }
            | Self::Link { peer, .. } => Some(peer),
        }
    }
}

impl Wires {
    pub(crate) fn new(
        rank: Rank,
        size: u32,
        slot_bytes: usize,
        mesh: Mesh,
        compute: Box<dyn Compute>,
        helpers: Arc<Helpers>,
        bell: Arc<Bell>,
    ) -> Self {
        let lines = size as usize * LANES;
        Self {
            rank,
            size,
            slot_bytes,
            mesh,
            tx: (0..lines).map(|_| None).collect(),
            rx: (0..lines).map(|_| None).collect(),
            made: Vec::new(),
            compute,
            helpers,
            bell,
            reduces_later: false,
            scratch: Vec::new(),
            scratch_base: std::ptr::null_mut(),
            unflushed: Vec::new(),
            operands: Vec::new(),
            targets: Vec::new(),
        }
    }

    /// The mesh, which makes the links.
    pub(crate) fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// The links to others that are made.
    pub(super) fn made(&self) -> &[LinkId] {
        &self.made
    }

    /// Gives a link away, once it is made: nothing here uses it any more. Asks for it if `asks`.
    #[cfg(feature = "cuda")]
    pub(super) fn give(
        &mut self,
        link_id: LinkId,
        asks: bool,
    ) -> Result<Option<Halves>, LinkError> {
        let index = index(link_id);
        match (self.tx[index].take(), self.rx[index].take()) {
            (Some(tx), Some(rx)) => {
                self.made.retain(|&made| made != link_id);
                Ok(Some((tx, rx)))
            }
            _ if asks || self.mesh.ready().contains(&link_id) => self.mesh.take(link_id),
            _ => Ok(None),
        }
    }

    /// Takes the links that are ready, though no operation has asked for them.
    pub(super) fn take_ready(&mut self) {
        for link_id in self.mesh.ready() {
            // Asked for again by the operation that needs it.
            let _ = self.form(link_id);
        }
    }

    /// Whether some link has made progress since this was last asked.
    pub(super) fn have_grown(&mut self) -> bool {
        self.mesh.has_grown()
    }

    /// The sender to the peer on this lane.
    #[inline]
    pub(super) fn tx(&mut self, peer: Rank, lane: usize) -> Result<&mut dyn LinkTx, Obstacle> {
        let index = index((peer, lane));
        if self.tx[index].is_none() {
            self.form((peer, lane))?;
        }
        match &mut self.tx[index] {
            Some(tx) => Ok(tx.as_mut()),
            None => Err(Obstacle::Forming { peer }),
        }
    }

    /// The receiver from the peer on this lane.
    #[inline]
    pub(super) fn rx(&mut self, peer: Rank, lane: usize) -> Result<&mut dyn LinkRx, Obstacle> {
        let index = index((peer, lane));
        if self.rx[index].is_none() {
            self.form((peer, lane))?;
        }
        match &mut self.rx[index] {
            Some(rx) => Ok(rx.as_mut()),
            None => Err(Obstacle::Forming { peer }),
        }
    }

    /// The sender to the peer on this lane, if its link is made.
    #[inline]
    pub(super) fn made_tx(&self, peer: Rank, lane: usize) -> Option<&dyn LinkTx> {
        self.tx[index((peer, lane))].as_deref()
    }

    /// How a job stores to the slot of a message, its last destination.
    #[inline]
    pub(super) fn slot_stores(&self, peer: Rank, lane: usize, bytes: usize) -> Streaming {
        let tx = (bytes >= FAR_STORES_LEAST).then(|| self.made_tx(peer, lane));
        if tx.flatten().is_some_and(LinkTx::is_far) {
            Streaming::Last
        } else {
            Streaming::Nothing
        }
    }

    /// Replaces the sender of a link that is made.
    #[cfg(test)]
    pub(super) fn wrap_tx(
        &mut self,
        link_id: LinkId,
        wrap: impl FnOnce(Box<dyn LinkTx>) -> Box<dyn LinkTx>,
    ) {
        let tx = &mut self.tx[index(link_id)];
        *tx = tx.take().map(wrap);
    }

    /// Whether a link to the peer takes its core for one that shares no cache with this one.
    pub(super) fn is_far(&self, peer: Rank) -> bool {
        (0..LANES).any(|lane| self.made_tx(peer, lane).is_some_and(LinkTx::is_far))
    }

    /// The receiver from the peer on this lane, if its link is made.
    pub(super) fn made_rx(&self, peer: Rank, lane: usize) -> Option<&dyn LinkRx> {
        self.rx[index((peer, lane))].as_deref()
    }

    /// Takes a link that was not made when last looked for.
    #[cold]
    fn form(&mut self, link_id: LinkId) -> Result<(), Obstacle> {
        let peer = link_id.0;
        match self.mesh.take(link_id) {
            Ok(Some((tx, rx))) => {
                self.adopt(link_id, (tx, rx));
                Ok(())
            }
            Ok(None) => Err(Obstacle::Forming { peer }),
            Err(error) => Err(Obstacle::NoLink { peer, error }),
        }
    }

    fn adopt(&mut self, link_id: LinkId, (tx, rx): Halves) {
        self.tx[index(link_id)] = Some(tx);
        self.rx[index(link_id)] = Some(rx);
        // A rank does not wait for messages to itself.
        if link_id.0 != self.rank {
            self.made.push(link_id);
        }
    }

    /// Asks for a link that will be needed.
    pub(super) fn ask(&mut self, peer: Rank, lane: usize) {
        if self.tx[index((peer, lane))].is_none() {
            self.mesh.ask((peer, lane));
        }
    }

    /// Pushes held-back bytes on. Keeps the error of a link that fails, for [`Self::failed`].
    #[inline]
    pub(super) fn flush(&mut self) {
        if self.unflushed.is_empty() {
            return;
        }
        let links = &mut self.tx;
        self.unflushed.retain_mut(|unflushed| {
            let Some(tx) = &mut links[index(unflushed.link_id)] else {
                return false;
            };
            let outcome = tx.flush();
            let is_over = matches!(outcome, Ok(true));
            unflushed.error = outcome.err();
            !is_over
        });
    }

    /// Pushes held-back bytes on. Returns the obstacle of a link on these lanes that still holds
    /// some back.
    pub(super) fn held_back(&mut self, lanes: Range<usize>) -> Option<Obstacle> {
        self.flush();
        let Unflushed { link_id, error } = self.unflushed_on(lanes).next()?;
        let peer = link_id.0;
        Some(match error.clone() {
            None => Obstacle::LinkBusy { peer },
            Some(error) => Obstacle::Link { peer, error },
        })
    }

    /// The obstacle of a link on these lanes, to this peer if one is named, that holds bytes back
    /// and failed when they were last pushed on.
    pub(super) fn failed(&self, lanes: Range<usize>, peer: Option<Rank>) -> Option<Obstacle> {
        self.unflushed_on(lanes).find_map(|unflushed| {
            let (to, error) = (unflushed.link_id.0, unflushed.error.clone()?);
            let obstacle = Obstacle::Link { peer: to, error };
            peer.is_none_or(|peer| peer == to).then_some(obstacle)
        })
    }

    /// The links on these lanes that hold bytes back.
    fn unflushed_on(&self, lanes: Range<usize>) -> impl Iterator<Item = &Unflushed> {
        self.unflushed.iter().filter(move |unflushed| {
            let (peer, lane) = unflushed.link_id;
            let tx = lanes.contains(&lane).then(|| self.made_tx(peer, lane));
            tx.flatten().is_some_and(LinkTx::holds_back)
        })
    }

    /// Gives all links up.
    pub(super) fn withdraw(&mut self) {
        self.tx.iter_mut().flatten().for_each(|tx| tx.withdraw());
    }

    /// The state of the rails to each rank, on all its lanes together.
    pub(super) fn rails(&self) -> Vec<Rails> {
        let of_peer = |lanes: &[Option<Box<dyn LinkTx>>]| {
            let made = lanes.iter().flatten().map(|tx| tx.rails());
            made.fold(Rails::default(), |all, lane| Rails {
                in_use: all.in_use.max(lane.in_use),
                dropped: all.dropped + lane.dropped,
                returned: all.returned + lane.returned,
            })
        };
        self.tx.chunks(LANES).map(of_peer).collect()
    }

    /// In words, the rails over which nothing comes back any more, and for how long; `None` if none
    /// are known.
    pub(super) fn silent_rails(&self) -> Option<String> {
        let mut silent = BTreeMap::new();
        for tx in self.tx.iter().flatten() {
            for SilentRail { name, silence } in tx.silent_rails() {
                let longest = silent.entry(name).or_insert(silence);
                *longest = silence.max(*longest);
            }
        }
        let silent = silent
            .iter()
            .map(|(name, silence)| format!("{name} for {silence:.1?}"));
        let silent = silent.collect::<Vec<_>>().join(", ");
        (!silent.is_empty()).then(|| format!("nothing comes back over {silent}"))
    }

    /// Prepares a wait for the peers. The caller must then look at everything that it waits for.
    pub(super) fn arm(&mut self) -> Wait {
        let mut wait = Wait::default();
        if self.reduces_later {
            wait.be_blind();
        }
        self.mesh.arm();
        for &link_id in &self.made {
            if let Some(rx) = &mut self.rx[index(link_id)]
                && !self.mesh.is_awaited(link_id)
            {
                rx.arm(&mut wait);
            }
        }
        wait
    }

    /// Adds to the wait the events that this look did not find.
    pub(super) fn watch(&self, wait: &mut Wait) {
        self.rx.iter().flatten().for_each(|rx| rx.watch(wait));
        let held_back = self
            .unflushed
            .iter()
            .map(|unflushed| &self.tx[index(unflushed.link_id)]);
        held_back.flatten().for_each(|tx| tx.watch(wait));
    }

    /// Ends a wait.
    pub(super) fn disarm(&mut self) {
        for &link_id in &self.made {
            if let Some(rx) = &mut self.rx[index(link_id)] {
                rx.disarm();
            }
        }
    }

    /// Sends the slot that was reserved.
    #[inline]
    pub(super) fn commit(
        &mut self,
        peer: Rank,
        lane: usize,
        bytes: usize,
        tag: u64,
    ) -> Result<(), Obstacle> {
        let link = |error| Obstacle::Link { peer, error };
        let tx = self.tx(peer, lane)?;
        tx.commit(bytes, tag).map_err(link)?;
        // The link is looked up only once here, since every small message takes this path.
        if tx.holds_back() {
            self.keep_flushing((peer, lane));
        }
        Ok(())
    }

    /// Remembers to flush the link, if it holds bytes back.
    pub(super) fn note_held_back(&mut self, peer: Rank, lane: usize) {
        if let Some(tx) = self.made_tx(peer, lane)
            && tx.holds_back()
        {
            self.keep_flushing((peer, lane));
        }
    }

    /// The obstacle of a link that takes no more, or has yet to send a loan. Waits push the link on
    /// from now on: it may have to send again, over another network.
    #[cold]
    pub(super) fn busy(&mut self, peer: Rank, lane: usize) -> Obstacle {
        self.note_held_back(peer, lane);
        Obstacle::LinkBusy { peer }
    }

    fn keep_flushing(&mut self, link_id: LinkId) {
        let mut known = self.unflushed.iter();
        if !known.any(|unflushed| unflushed.link_id == link_id) {
            let error = None;
            self.unflushed.push(Unflushed { link_id, error });
        }
    }

    /// Runs a small job to its end.
    ///
    /// # Safety
    /// The job has a source, and no destination overlaps another operand partly. All operands are
    /// there for its whole length until this returns. Until then nothing else writes the sources,
    /// or touches the destinations.
    pub(super) unsafe fn compute_now(&mut self, job: &Job<'_>) {
        // SAFETY: the caller passes a job that has a source, and none of whose destinations
        // overlaps another operand partly. Operands stay readable, or writable, for its whole
        // length, and the caller lets nothing else touch them until this returns. By then the job
        // is over: `finish` waits for it.
        if let Started::Pending(ticket) = unsafe { self.compute.start(job) } {
            self.finish(ticket);
        }
    }

    /// Waits for a job.
    pub(super) fn finish(&mut self, ticket: Ticket) {
        while !self.compute.poll(ticket) {
            std::thread::yield_now();
        }
    }

    /// Memory for intermediate results.
    #[inline]
    pub(super) fn provide_scratch(&mut self, bytes: usize) {
        if self.scratch.len() < bytes {
            self.scratch.resize(bytes, 0);
        }
        self.scratch_base = self.scratch.as_mut_ptr();
    }

    /// Polls for a message for a while, at nothing but its link.
    pub(super) fn await_message(&mut self, peer: Rank, lane: usize, polls: u32) {
        let Ok(rx) = self.rx(peer, lane) else {
            return;
        };
        for _ in 0..polls {
            if rx.has_news() {
                return;
            }
            std::hint::spin_loop();
        }
    }
}
