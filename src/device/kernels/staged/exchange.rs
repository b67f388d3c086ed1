//! The slots of one communicator: what kernels put there goes to the other ranks, over a separate
//! link to each.

mod peer;

use std::sync::Arc;
use std::time::Instant;

use peer::Peer;
use spark_ccl_control::{DEVICE_MARK, Fault, POINT_TO_POINT_MARK, Watch};
use spark_ccl_gpu::{Calls, MessageDirection, Rung, Slots, Stage};
use spark_ccl_types::{Signature, describe_message};

use super::opened::OpenedBoxes;
use super::stall::Stall;
use crate::api::communicator::Communicator;
use crate::device::kernels::messages::received;
use crate::task::names::describe;

/// This rank's calls that do not go by slots.
pub(super) struct Others {
    /// How many of them have begun.
    pub(super) begun: u64,
    /// How many calls by slots had ended when the last of them began.
    pub(super) before: u64,
    /// The kernel's report of the last of them.
    pub(super) last: Option<Rung>,
    pub(super) is_done: bool,
}

impl Others {
    /// The number of the last of them, counted over all calls.
    pub(super) fn number(&self) -> u64 {
        self.begun + self.before
    }
}

/// The messages of one launch to or from one peer, while they are under way.
struct Mail {
    peer: usize,
    is_received: bool,
    /// The number of the first message on its pair, and its words.
    number: u64,
    words: [u64; 2],
}

/// The slots of one communicator.
pub(super) struct Exchange {
    slots: Arc<Slots>,
    /// Before the registration of the boxes, so dropped first: the links use these.
    peers: Vec<Peer>,
    _opened: Option<OpenedBoxes>,
    /// The last call by slots that was recorded, and how many others had begun at the last look.
    begun: u64,
    others: u64,
    stall: Stall,
}

impl Exchange {
    /// An exchange whose links are still to be made. It posts no slots once a kernel of the stage
    /// has failed, or a fault has ended one: later slots may be computed from its missing result.
    /// `opened`: the boxes into which devices put slots. `has_messages`: whether messages go by
    /// slots.
    pub(super) fn new(
        (slots, opened): (Arc<Slots>, Option<OpenedBoxes>),
        has_messages: bool,
        stage: &Arc<Stage>,
        parent: &Arc<Watch>,
    ) -> Self {
        let others = (0..slots.ranks()).filter_map(|rank| Some((rank, slots.boxes(rank)?)));
        let peers = others.map(|(rank, boxes)| {
            let (stage, parent) = (Arc::clone(stage), Arc::clone(parent));
            Peer::new(
                rank,
                boxes,
                Arc::new(move || stage.check().is_ok() && !parent.failed()),
                opened.is_some(),
                has_messages,
            )
        });
        Self {
            peers: peers.collect(),
            _opened: opened,
            slots,
            begun: 0,
            others: 0,
            stall: Stall::new(),
        }
    }

    /// Moves slots on, to each peer in turn, for a probe: its call goes by slots, and ranks do not
    /// compare it. Returns whether there was anything to do.
    pub(super) fn pass(&mut self, carrier: &Communicator) -> bool {
        let none = Others {
            begun: 0,
            before: 0,
            last: None,
            is_done: true,
        };
        let mut moved = false;
        for peer in &mut self.peers {
            moved |= peer.advance(carrier, &none);
        }
        moved
    }

    /// Counts calls from 0 on again, as all ranks do: those so far were only to prove that slots
    /// pass.
    ///
    /// # Safety
    /// No call of this rank is running or enqueued. Each rank has made as many, and none makes
    /// another before all have counted anew.
    pub(super) unsafe fn count_anew(&mut self) -> Result<(), spark_ccl_gpu::Error> {
        self.peers.iter_mut().for_each(Peer::count_anew);
        // SAFETY: no call of this rank is running or enqueued, so no kernel uses the count. Each
        // rank has made as many, and the caller lets none make another before all count anew.
        unsafe { self.slots.count_anew() }
    }

    /// The end of a link, or the loss of one of its rails, in words; the first that is found.
    pub(super) fn trouble(&self) -> Option<String> {
        self.peers.iter().find_map(Peer::trouble)
    }

    /// Moves slots on, to each peer in turn. Returns whether there was anything to do. `others`
    /// says which calls do not go by slots.
    pub(super) fn advance(
        &mut self,
        others: &Others,
        carrier: &Communicator,
        parent: &Watch,
    ) -> bool {
        self.record(others, parent);
        let mut moved = false;
        for peer in &mut self.peers {
            moved |= peer.advance(carrier, others);
        }
        moved
    }

    /// Records the call under way, for comparisons with the other ranks' calls.
    fn record(&mut self, others: &Others, parent: &Watch) {
        let calls = self.slots.calls();
        // The words of a call by slots are known only until it ends. `others.begun` has all calls
        // by pieces before the one under way, and none after it, since none of these has rung.
        if self.begun != calls.begun && calls.begun > calls.ended {
            parent.record_on_device(others.begun + calls.begun, calls.words);
            self.begun = calls.begun;
        }
        if let Some(last) = others.last.filter(|_| self.others != others.begun) {
            parent.record_on_device(others.number(), last.words);
        }
        self.others = others.begun;
    }

    /// Tells the other ranks for whom a call or a message waits, if it does not progress.
    pub(super) fn announce(&mut self, now: Instant, others: &Others, parent: &Watch) {
        let (calls, mail) = (self.slots.calls(), self.mail());
        if calls.begun == calls.ended && mail.is_none() {
            return;
        }
        let begun = calls.begun + mail.as_ref().map_or(0, |mail| mail.number);
        if !self.stall.is_to_be_told([begun, self.slots.passed()], now) {
            return;
        }
        self.stall.note_told(now);
        if let Some(mail) = mail {
            // A stream waits, and not the thread that makes host calls.
            let sequence = POINT_TO_POINT_MARK | DEVICE_MARK | mail.number;
            parent.announce(sequence, mail.words, Some(mail.peer as u32));
        } else {
            let sequence = DEVICE_MARK | (others.begun + calls.begun);
            parent.announce(sequence, calls.words, self.late());
        }
    }

    /// Messages under way, from a peer that still has to send them, if there is one.
    fn mail(&self) -> Option<Mail> {
        let owes = |peer| self.peers.iter().any(|of| of.rank() == peer && of.owes());
        let late = self
            .mails()
            .find(|mail| mail.is_received && owes(mail.peer));
        late.or_else(|| self.mails().next())
    }

    /// All messages under way.
    fn mails(&self) -> impl Iterator<Item = Mail> {
        let under_way = self.slots.messages().filter(|(_, of)| of.begun > of.ended);
        under_way.map(|((peer, way), of)| {
            let is_received = way == MessageDirection::Receive;
            Mail {
                peer,
                is_received,
                number: of.begun,
                words: if is_received {
                    received(of.words)
                } else {
                    of.words
                },
            }
        })
    }

    /// The peer that a call waits for: one that has stopped sending, or else one that has stopped
    /// taking. A peer that has yet to receive a message does not hold up the call.
    fn late(&self) -> Option<u32> {
        let open = || self.peers.iter().filter(|peer| !peer.is_met());
        let late = open().find(|peer| peer.owes());
        let late = late.or_else(|| open().find(|peer| peer.lacks()));
        late.map(|peer| peer.rank() as u32)
    }

    /// The fault of a peer that makes it impossible to do a call, or to pass a message.
    pub(super) fn fault(&self, others: &Others, parent: &Watch) -> Option<Fault> {
        let own = self.slots.rank();
        self.peers.iter().find_map(|peer| {
            let under_way = || self.under_way(peer.rank(), others);
            let settles = || self.settles(peer.rank());
            let ended = peer.judge((under_way, settles), own, parent);
            ended.or_else(|| self.differs(peer, others, parent))
        })
    }

    /// The number and the words of what is under way with a peer.
    fn under_way(&self, peer: usize, others: &Others) -> (u64, String) {
        if let Some(mail) = self.mails().find(|mail| mail.peer == peer) {
            let sequence = POINT_TO_POINT_MARK | mail.number;
            return (sequence, describe_message(mail.words));
        }
        let calls = self.slots.calls();
        let sequence = DEVICE_MARK | (others.begun + calls.begun);
        (sequence, describe(calls.words))
    }

    /// Whether a kernel under way ends only once the link has taken its slots for a peer.
    fn settles(&self, peer: usize) -> bool {
        let calls = self.slots.calls();
        let called = Signature::from_words(calls.words);
        let is_rooted = called.is_some_and(|called| called.operation.is_rooted());
        let mut sends = self.mails().filter(|mail| !mail.is_received);
        calls.begun > calls.ended && is_rooted || sends.any(|mail| mail.peer == peer)
    }

    /// How many calls this rank's kernels have begun.
    pub(super) fn begun(&self) -> u64 {
        self.slots.calls().begun
    }

    /// The fault of a peer that makes a call by slots or packets, while this rank makes it another
    /// way, or with another root. No kernel of this rank would find it: they do not look at the
    /// peer's slots, or only in the next call.
    fn differs(&self, peer: &Peer, others: &Others, parent: &Watch) -> Option<Fault> {
        let (calls, heard) = (self.slots.calls(), peer.heard()?);
        let number = heard.record.call;
        let is_unasked = if heard.is_of_packets {
            // A kernel counts wanted packets before it says that the call has begun.
            number < others.begun + calls.begun && heard.number > peer.packets_wanted()
        } else {
            number < others.begun + calls.ended && heard.number > peer.wanted(0)
        };
        let own = parent.called_on_device(number + 1);
        let differs = own.is_some_and(|own| own != heard.record.words);
        (is_unasked || differs).then(|| Fault::Mismatch {
            sequence: DEVICE_MARK | (number + 1),
            rank_a: parent.member(self.slots.rank() as u32),
            words_a: Self::words_of(number, others, &calls, own),
            rank_b: parent.member(peer.rank() as u32),
            words_b: format!("{} through slots", describe(heard.record.words)),
        })
    }

    /// Describes this rank's call of a number, counted over all calls that have begun. `recorded`
    /// are its words, if they are among the last.
    fn words_of(number: u64, others: &Others, calls: &Calls, recorded: Option<[u64; 2]>) -> String {
        let begun = others.begun + calls.begun;
        match others.last {
            Some(last) if number + 1 == others.number() => match last.buffers {
                None => describe(last.words),
                Some(_) => format!("{} with memory from alloc_device", describe(last.words)),
            },
            _ if number + 1 == begun => describe(calls.words),
            _ => recorded.map_or_else(
                || format!("another call, {} before the last", begun - number - 1),
                describe,
            ),
        }
    }

    /// The number of calls and messages by slots that are done: their kernels have ended, and the
    /// peers have their data.
    pub(super) fn done(&self) -> u64 {
        let messages: u64 = self.slots.messages().map(|(_, of)| of.ended).sum();
        let ended = self.slots.calls().ended + messages;
        ended - u64::from(!self.is_met() && ended > 0)
    }

    /// Whether a peer cannot send messages yet. It may want to send some before this rank makes any
    /// call.
    pub(super) fn is_joining(&self) -> bool {
        self.peers.iter().any(Peer::is_joining)
    }

    /// Whether everything that kernels have begun has been passed, both ways.
    pub(super) fn is_met(&self) -> bool {
        let calls = self.slots.calls();
        calls.begun == calls.ended && self.peers.iter().all(Peer::is_met)
    }

    /// Whether peers may need something of this rank. A peer that has the data of a call needs
    /// nothing more, even if it has not come to the call yet.
    pub(super) fn serves(&self) -> bool {
        let calls = self.slots.calls();
        let is_under_way = calls.begun > calls.ended || self.mail().is_some();
        let mut peers = self.peers.iter().filter(|peer| !peer.has_ended());
        peers.any(|peer| is_under_way || !peer.is_passed())
    }

    /// Whether a kernel has given up.
    pub(super) fn has_given_up(&self) -> bool {
        !matches!(
            self.slots.check(),
            Ok(()) | Err(spark_ccl_gpu::Error::Ended { .. })
        )
    }

    /// Ends all links at once.
    pub(super) fn withdraw(&mut self) {
        self.peers.iter_mut().for_each(Peer::withdraw);
    }

    /// Logs how far the slots of each peer have come, if some are on their way.
    pub(super) fn report(&self, parent: &Watch) {
        for peer in self.peers.iter().filter(|peer| !peer.is_met()) {
            peer.report(self.slots.rank(), parent);
        }
    }
}
