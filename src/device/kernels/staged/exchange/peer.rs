//! The slots between this rank and another.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use spark_ccl_control::{DEVICE_MARK, Fault, POINT_TO_POINT_MARK, Watch};
use spark_ccl_slots::{Counter, Error as SlotsError, Heard, Linked, PostBox, Progress, Proxy};

use super::Others;
use crate::api::communicator::Communicator;

/// How long the control plane has to name the cause of a link's end; as long as in
/// `host/watchdog.rs`.
const CAUSE_WITHIN: Duration = Duration::from_secs(3);

/// While nothing is on its way, the link is read once in this number of looks: each read delays
/// calls that do not go by slots.
const REST: u32 = 16;

/// This rank's slots to and from a peer, and the link that carries them.
pub(super) struct Peer {
    rank: usize,
    outbox: PostBox,
    inbox: PostBox,
    may_post: Arc<dyn Fn() -> bool + Send + Sync>,
    /// Whether the boxes are registered, so that slots can be put.
    is_opened: bool,
    /// Whether the peer may send messages. This rank does not know which ones.
    has_messages: bool,
    /// `None` before the first call.
    proxy: Option<Proxy<Linked>>,
    /// Since when the link carries nothing any more, and why.
    ended: Option<(Instant, SlotsError)>,
    /// How many looks ago the link was read.
    rested: u32,
}

impl Peer {
    pub(super) fn new(
        rank: usize,
        [outbox, inbox]: [PostBox; 2],
        may_post: Arc<dyn Fn() -> bool + Send + Sync>,
        is_opened: bool,
        has_messages: bool,
    ) -> Self {
        Self {
            rank,
            outbox,
            inbox,
            may_post,
            is_opened,
            has_messages,
            proxy: None,
            ended: None,
            rested: 0,
        }
    }

    /// Moves slots on. Returns whether there was anything to do. `others` says which calls of this
    /// rank do not go by slots.
    pub(super) fn advance(&mut self, carrier: &Communicator, others: &Others) -> bool {
        if self.ended.is_some() {
            return false;
        }
        self.rested += 1;
        let rests = self.rested < REST;
        if self.proxy.is_none() {
            let needs = self.has_messages || self.is_used();
            // The peer may have made a call by slots that this rank makes another way.
            if needs || !others.is_done {
                self.connect(carrier, needs);
            }
        }
        if rests && self.is_met() {
            return false;
        }
        self.rested = 0;
        let Some(proxy) = &mut self.proxy else {
            return false;
        };
        proxy.turn().unwrap_or_else(|error| {
            self.ended = Some((Instant::now(), error));
            true
        })
    }

    /// Whether the peer's messages still lack a link, or the peer still has to be told where they
    /// go.
    pub(super) fn is_joining(&self) -> bool {
        let is_open = |proxy: &Proxy<Linked>| proxy.carrier().is_flushed();
        self.has_messages && self.ended.is_none() && !self.proxy.as_ref().is_some_and(is_open)
    }

    /// Takes the link, if it is there.
    fn connect(&mut self, carrier: &Communicator, needs: bool) {
        let engine = carrier.inner.membership.engine();
        let Ok(made) = engine.with(|core| core.take_link(self.rank as u32, needs)) else {
            // A forked child, which passes nothing.
            return;
        };
        let made = made.map_err(SlotsError::from).and_then(|made| {
            let Some((halves, part)) = made else {
                return Ok(None);
            };
            let (outbox, inbox) = (self.outbox.clone(), self.inbox.clone());
            // SAFETY: this is the only carrier of these boxes, which are of this communicator and
            // this peer. There is one `Exchange` of the slots, one `Peer` in it for each rank, and
            // a peer connects until it has a proxy, which it then keeps.
            unsafe { Linked::new(halves, part, outbox, inbox) }.map(Some)
        });
        match made {
            Ok(None) => {}
            Ok(Some(linked)) => {
                if self.is_opened && linked.only_sends() {
                    self.warn_of_messages(carrier);
                }
                let may_post = Arc::clone(&self.may_post);
                let linked = linked.only_while(move || may_post());
                let (outbox, inbox) = (self.outbox.clone(), self.inbox.clone());
                let lanes = 0..outbox.shape().lanes();
                self.proxy = Some(Proxy::new(outbox, inbox, linked, lanes));
            }
            Err(error) => self.ended = Some((Instant::now(), error)),
        }
    }

    /// Warns that slots go as messages although puts were agreed on. Not within a host, where slots
    /// always go as messages.
    fn warn_of_messages(&self, carrier: &Communicator) {
        let inner = &carrier.inner;
        if !inner.world.session.local_to(inner.members[self.rank]) {
            spark_ccl_log::warn!(
                "rank {}: slots to and from {} go as messages, as the link to it is not over RDMA \
                 (SPARK_CCL_NET=rdma makes this an error)",
                carrier.rank(),
                inner.watch.member(self.rank as u32)
            );
        }
    }

    /// The fault of a link that has ended while what is `under_way`, by its number and words, needs
    /// it. `settles` says whether its kernel ends only once the link has taken its slots. If the
    /// peer has not said that it leaves, the control plane has some time to say why.
    pub(super) fn judge(
        &self,
        (under_way, settles): (impl Fn() -> (u64, String), impl Fn() -> bool),
        own: usize,
        parent: &Watch,
    ) -> Option<Fault> {
        let (since, error) = self.ended.as_ref()?;
        let [by, peer] = [own, self.rank].map(|rank| parent.member(rank as u32));
        if *error == SlotsError::Gone && parent.has_left(self.rank as u32).is_some() {
            // Everything that the peer has sent came before its link ended. It may have left before
            // it gave credits for the slots that it has consumed, and before their completions were
            // here. A peer that has sent all slots of a call had those that it needs.
            let needs = self.lacks_slots() || self.has_unsent() && settles();
            if !needs {
                return None;
            }
            let ended = parent.latent_of(self.rank as u32);
            return Some(ended.unwrap_or_else(|| {
                let (sequence, words) = under_way();
                let number = sequence & !(DEVICE_MARK | POINT_TO_POINT_MARK);
                Fault::Left {
                    rank: peer,
                    last_sequence: if number > 1 { sequence - 1 } else { 0 },
                    sequence,
                    words,
                }
            }));
        }
        if self.is_met() && self.are_consumed() {
            return None;
        }
        let text = format!(
            "{error}; its slots: {}; if both processes still run, check the network between their \
             hosts",
            self.state()
        );
        let is_known = !error.may_have_a_cause() || since.elapsed() >= CAUSE_WITHIN;
        is_known.then_some(Fault::Link { by, peer, text })
    }

    /// Forgets the peer's calls so far.
    pub(super) fn count_anew(&mut self) {
        if let Some(proxy) = &mut self.proxy {
            proxy.carrier_mut().forget_heard();
        }
    }

    /// The peer's last slot, in its first lane or of packets, and the call that it belongs to.
    pub(super) fn heard(&self) -> Option<Heard> {
        self.proxy.as_ref()?.carrier().heard()
    }

    /// Why the link carries nothing any more, or that it has dropped a rail.
    pub(super) fn trouble(&self) -> Option<String> {
        let dropped = |proxy: &Proxy<Linked>| proxy.carrier().dropped_rails() > 0;
        let what = match &self.ended {
            Some((_, error)) => error.to_string(),
            None if self.proxy.as_ref().is_some_and(dropped) => "a rail was dropped".to_owned(),
            None => return None,
        };
        Some(format!("the link to rank {}: {what}", self.rank))
    }

    /// Whether the link carries nothing any more.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    /// Whether all slots of the calls that have begun have been passed, both ways, as far as the
    /// kernel has come. Over a link that has ended, nobody waits for credits.
    pub(super) fn is_met(&self) -> bool {
        let Some(proxy) = &self.proxy else {
            return !self.is_used();
        };
        if self.ended.is_some() {
            return !self.lacks_slots() && proxy.progress().all(|lane| self.is_consumed(lane.lane));
        }
        self.is_passed() && self.are_consumed()
    }

    /// Whether this rank has given and taken all that the calls that have begun need: the peer may
    /// not have come to them yet.
    pub(super) fn is_passed(&self) -> bool {
        let Some(proxy) = self.proxy.as_ref().filter(|_| self.ended.is_none()) else {
            return self.is_met();
        };
        let wanted = self.packets_wanted();
        proxy.carrier().is_flushed()
            // Slots of the peer's next call may have come.
            && proxy.packets() == wanted
            && proxy.carrier().packets() >= wanted
            && !self.lacks()
            && proxy.progress().all(|lane| lane.consumed == self.wanted(lane.lane))
    }

    /// Whether the peer has said that it has consumed all slots.
    fn are_consumed(&self) -> bool {
        let mut lanes = self.proxy.iter().flat_map(Proxy::progress);
        lanes.all(|lane| lane.credit == self.published(lane.lane))
    }

    /// Whether calls need slots that have yet to come, or that the link has yet to take.
    pub(super) fn lacks(&self) -> bool {
        self.lacks_slots() || self.has_unsent()
    }

    /// Whether calls need slots that have yet to come, or packets that have yet to pass.
    fn lacks_slots(&self) -> bool {
        let Some(proxy) = &self.proxy else {
            return self.is_used();
        };
        let (carrier, wanted) = (proxy.carrier(), self.packets_wanted());
        let is_wanted = |lane: Progress| carrier.seen(lane.lane) < self.wanted(lane.lane);
        proxy.packets() < wanted || carrier.packets() < wanted || proxy.progress().any(is_wanted)
    }

    /// Whether the link has yet to take slots of this rank.
    fn has_unsent(&self) -> bool {
        let mut lanes = self.proxy.iter().flat_map(Proxy::progress);
        lanes.any(|lane| lane.sent < self.published(lane.lane))
    }

    /// Whether calls wait for slots that the peer has not sent.
    pub(super) fn owes(&self) -> bool {
        let Some(proxy) = &self.proxy else {
            return self.is_used();
        };
        let carrier = proxy.carrier();
        let lacks = |lane: Progress| {
            lane.consumed < self.wanted(lane.lane) && carrier.seen(lane.lane) <= lane.consumed
        };
        carrier.packets() < self.packets_wanted() || proxy.progress().any(lacks)
    }

    /// Whether any call has needed the peer.
    fn is_used(&self) -> bool {
        let mut lanes = 0..self.outbox.shape().lanes();
        self.packets_wanted() > 0
            || lanes.any(|lane| self.published(lane) > 0 || self.wanted(lane) > 0)
    }

    fn published(&self, lane: usize) -> u64 {
        let published = self.outbox.counter(lane, Counter::Published);
        // Relaxed: the proxy acquires the same counter before it reads slots.
        published.load(Ordering::Relaxed)
    }

    /// Whether the kernel has consumed all slots of the calls that have begun.
    fn is_consumed(&self, lane: usize) -> bool {
        let consumed = self.inbox.counter(lane, Counter::Consumed);
        // Relaxed: nobody is given credit for them.
        consumed.load(Ordering::Relaxed) == self.wanted(lane)
    }

    /// How many of the peer's slots the calls that have begun take.
    pub(super) fn wanted(&self, lane: usize) -> u64 {
        // Relaxed: no other memory is read on the strength of this number.
        let wanted = self.inbox.counter(lane, Counter::Wanted);
        wanted.load(Ordering::Relaxed)
    }

    /// How many slots of packets the calls that have begun take, and send.
    pub(super) fn packets_wanted(&self) -> u64 {
        self.inbox.packets_wanted()
    }

    /// Ends the link at once.
    pub(super) fn withdraw(&mut self) {
        if let Some(proxy) = &mut self.proxy {
            proxy.carrier_mut().withdraw();
        }
    }

    /// Logs how far the slots of this peer have come.
    pub(super) fn report(&self, own: usize, parent: &Watch) {
        spark_ccl_log::warn!(
            "rank {own}: slots to and from {}: {}",
            parent.member(self.rank as u32),
            self.state()
        );
    }

    /// How far the lanes are, in words.
    fn state(&self) -> String {
        let Some(proxy) = &self.proxy else {
            return "no link yet".to_owned();
        };
        let lanes = proxy.progress().map(|lane| {
            format!(
                "lane {}: published {}, posted {}, completed {}, consumed there {}, here {}",
                lane.lane, lane.published, lane.posted, lane.sent, lane.credit, lane.consumed
            )
        });
        let lanes: Vec<_> = lanes.collect();
        format!(
            "of packets {} expected, sent {}, come {}; {}",
            self.packets_wanted(),
            proxy.packets(),
            proxy.carrier().packets(),
            lanes.join("; ")
        )
    }
}
