//! The state that both halves of a link share: its rails, slots, accounts and loans.

mod attempt;
mod failover;
mod job;
mod loans;
mod puts;
mod returns;
mod revive;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(super) use failover::Dead;
use loans::Loans;
pub(super) use loans::{Destination, LEND_LEAST};
use puts::Puts;
use spark_ccl_verbs::{Completion, CompletionError, PollRoom};

use super::control::Control;
use super::immediate::Immediate;
use super::lent::Lent;
use super::order::{Load, Missed, Order};
use super::rail::{RECEIVE, Rail, post_receives};
use super::slots::{HEADER_BYTES, Header, Slots};
use crate::LinkError;
use crate::rdma::Registry;

/// The longest that an ending link waits for everything that it sent to arrive: a device may have
/// to retransmit.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause between two polls of an ending link.
const PAUSE: Duration = Duration::from_micros(20);
/// How many polls pass between two checks of the control stream and of silent rails.
const LISTEN_AFTER: u32 = 1024;
/// The write that a reserved message will take.
const RESERVED: u64 = 1;
/// A rail takes a write that was not reserved only if it has room for this many: the reserved
/// message, a probe, and the write itself.
const UNRESERVED: u64 = RESERVED + 2;
/// How much a poll that finds nothing counts: an idle link has time for more checks.
const IDLE: u32 = 16;
/// How often control stream and silent rails are checked while a rail is dropped. Where several
/// ranks share a processor, polls are rare.
const LISTEN_DEGRADED: Duration = Duration::from_millis(1);

/// An end of a link.
#[derive(Debug)]
pub(super) struct Core {
    // Dropped before the slots, so that no device can access these any more.
    /// The rails in use; both ends number them alike.
    rails: Vec<Option<Rail>>,
    dead: Vec<Dead>,
    /// How often a rail was dropped, and put back into use.
    dropped: u64,
    returned: u64,
    /// The immediate values sent over all rails when a half of this end was dropped.
    announcements: Vec<Immediate>,
    outgoing: Slots,
    incoming: Slots,
    order: Order,
    control: Control,
    /// Messages to be sent again.
    missed: VecDeque<Missed>,
    /// Polls since the last check of the control stream, weighted by [`IDLE`].
    looks: u32,
    /// The last check for the sake of a dropped rail.
    listened: Instant,
    /// There was a poll since [`poll_if_neglected`](Self::poll_if_neglected).
    was_polled: bool,
    /// Nobody else polls it at the moment.
    is_neglected: bool,
    /// `None` while a poll uses it.
    room: Option<Box<PollRoom>>,
    /// The last message that was read and not yet acknowledged, not counting lent ones.
    owed: Option<u64>,
    /// The messages that are being read from the peer's memory.
    loans: Loans,
    puts: Puts,
    /// The memory that may be lent, or borrowed into.
    registry: Arc<Registry>,
    failed: Option<LinkError>,
}

impl Core {
    pub(super) fn new(
        rails: Vec<Rail>,
        outgoing: Slots,
        incoming: Slots,
        control: Control,
        registry: Arc<Registry>,
    ) -> Self {
        let geometry = outgoing.geometry();
        Self {
            order: Order::new(geometry, rails.len()),
            room: None,
            owed: None,
            loans: Loans::new(),
            puts: Puts::default(),
            registry,
            failed: None,
            rails: rails.into_iter().map(Some).collect(),
            dead: Vec::new(),
            dropped: 0,
            returned: 0,
            announcements: Vec::new(),
            outgoing,
            incoming,
            control,
            missed: VecDeque::new(),
            looks: 0,
            listened: Instant::now(),
            was_polled: false,
            is_neglected: false,
        }
    }

    pub(super) fn outgoing(&self) -> &Slots {
        &self.outgoing
    }

    pub(super) fn incoming(&self) -> &Slots {
        &self.incoming
    }

    /// The rails in use.
    pub(super) fn rails(&self) -> impl Iterator<Item = &Rail> {
        self.rails.iter().flatten()
    }

    #[cfg(test)]
    pub(super) fn registry(&self) -> &Registry {
        &self.registry
    }

    pub(super) fn control(&self) -> &Control {
        &self.control
    }

    /// The number of the next message, if its slot is free.
    pub(super) fn next_to_send(&mut self) -> Result<Option<u64>, LinkError> {
        if self.failed.is_none() && self.order.receiver_gone {
            return Err(LinkError::Closed);
        }
        let free = |core: &Self| {
            let room = core.rails().all(|rail| rail.has_room(RESERVED + 1));
            core.order.next_to_send().filter(|_| room)
        };
        if self.failed.is_none()
            && let Some(number) = free(self)
        {
            return Ok(Some(number));
        }
        self.poll()?;
        Ok(free(self))
    }

    /// Sends the next message, whose payload is in its slot.
    ///
    /// # Safety
    /// The slot is reserved, so it belongs to this side.
    pub(super) unsafe fn send(&mut self, len: usize, header: Header) -> Result<(), LinkError> {
        let number = header.number;
        // SAFETY: the slot of `header.number` is reserved, so it belongs to this side: this
        // function requires that.
        unsafe { self.outgoing.write_header(header) };
        // SAFETY: the message is complete, and its slot is written again only after the peer has
        // acknowledged it.
        let load = unsafe { self.transmit(number, (HEADER_BYTES + len) as u64)? };
        self.order.note_sent(load, header.is_lent);
        Ok(())
    }

    /// Writes a message of this many bytes over the rail with the fewest bytes in flight, or over
    /// another one if that fails.
    ///
    /// # Safety
    /// The message stays unchanged until the peer has acknowledged it.
    unsafe fn transmit(&mut self, number: u64, bytes: u64) -> Result<Load, LinkError> {
        let offset = self.outgoing.offset(number);
        let start = self.outgoing.payload(number).wrapping_sub(HEADER_BYTES);
        let what = Immediate::Message {
            number: number as u32,
        };
        loop {
            let live = self.rails.iter_mut().enumerate();
            let live = live.filter_map(|(index, rail)| Some((index, rail.as_mut()?)));
            let Some((rail, least)) = live.min_by_key(|(_, rail)| rail.load) else {
                return Err(self.failed.clone().unwrap_or(LinkError::Closed));
            };
            // SAFETY: the message lies in its slot, of `bytes` bytes or more, and stays unchanged
            // until the peer has acknowledged it, as this function requires. The slots are in
            // `outgoing`, which is dropped after the rails.
            match unsafe { least.write(start, bytes as usize, offset, what) } {
                Ok(()) => {
                    least.load += bytes;
                    return Ok(Load { rail, bytes });
                }
                Err(error) => self.drop_rail(rail, error.to_string()),
            }
        }
    }

    /// Sends the next message, whose payload the peer reads in place.
    ///
    /// # Safety
    /// The slot is reserved, so it belongs to this side.
    pub(super) unsafe fn send_lent(
        &mut self,
        number: u64,
        lent: &Lent,
        tag: u64,
    ) -> Result<(), LinkError> {
        let bytes = lent.encode();
        let slot = self.outgoing.payload(number);
        let header = Header {
            tag,
            number,
            is_lent: true,
        };
        // SAFETY: the slot is reserved, so it belongs to this side, as this function requires. The
        // bytes fit: `lendable` has made sure. `bytes` is a variable here, so the two do not
        // overlap.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), slot, bytes.len());
            self.send(bytes.len(), header)
        }
    }

    /// Whether the peer has returned the slots of all messages up to this number.
    pub(super) fn has_returned(&mut self, number: u64) -> Result<bool, LinkError> {
        if self.order.is_on_its_way(number) {
            self.poll()?;
        }
        Ok(!self.order.is_on_its_way(number))
    }

    /// The number and length of the next message, if it has arrived.
    pub(super) fn next_to_read(&mut self) -> Result<Option<(u64, usize)>, LinkError> {
        if let Some(next) = self.order.next_to_read() {
            return Ok(Some(next));
        }
        let polled = self.poll();
        match self.order.next_to_read() {
            Some(next) => Ok(Some(next)),
            None if polled.is_ok() && self.order.sender_gone() => Err(LinkError::Closed),
            None => polled.map(|()| None),
        }
    }

    /// Returns the slot of the next message.
    pub(super) fn release(&mut self) {
        if let Some(number) = self.order.note_read() {
            match self.loans.pop_front() {
                None => self.owed = Some(number),
                Some(loan) => self.give_back(number, loan.reader()),
            }
            self.acknowledge();
        }
    }

    /// Tells the peer what was read, as far as the rails have room for it.
    fn acknowledge(&mut self) {
        let has_room =
            |rail: &Option<Rail>| rail.as_ref().is_some_and(|rail| rail.has_room(UNRESERVED));
        if let Some(number) = self.owed
            && self.failed.is_none()
            && let Some(rail) = self.rails.iter().position(has_room)
        {
            self.owed = None;
            let number = number as u32;
            self.say(rail, Immediate::Released { number });
        }
        self.say_returns();
    }

    fn say(&mut self, rail: usize, what: Immediate) {
        let Some(live) = &mut self.rails[rail] else {
            return;
        };
        if let Err(error) = live.say(what) {
            // The rail's failure report tells the peer the same.
            self.drop_rail(rail, error.to_string());
        }
    }

    /// Processes everything that has arrived or completed.
    pub(super) fn poll(&mut self) -> Result<(), LinkError> {
        self.was_polled = true;
        let mut has_found = false;
        for rail in 0..self.rails.len() {
            while self.failed.is_none() && self.poll_rail(rail) {
                has_found = true;
            }
        }
        self.note_loans();
        self.note_puts();
        self.looks += if has_found { 1 } else { IDLE };
        if self.looks >= LISTEN_AFTER || self.is_failing_over() || self.is_return_due() {
            self.looks = 0;
            self.look_after();
            self.probe();
        }
        self.acknowledge();
        match &self.failed {
            None => Ok(()),
            // The peer may have closed before it acknowledged everything.
            Some(_) if self.order.receiver_gone || self.order.sender_gone() => {
                Err(LinkError::Closed)
            }
            Some(error) => Err(error.clone()),
        }
    }

    /// Whether the return of a dropped rail may have made progress. It must not have to wait until
    /// the others are idle.
    fn is_return_due(&mut self) -> bool {
        if self.dead.is_empty() || self.listened.elapsed() < LISTEN_DEGRADED {
            return false;
        }
        self.listened = Instant::now();
        true
    }

    /// Polls, and also checks the control stream and silent rails.
    pub(super) fn look_around(&mut self) {
        self.looks = LISTEN_AFTER;
        // The next call returns the error again.
        let _ = self.poll();
    }

    /// Does the same, unless there was a poll since this was last called. Tries no dropped rail: an
    /// outage during a try would end a link that nobody uses at the moment.
    pub(super) fn poll_if_neglected(&mut self) {
        if !self.was_polled {
            self.is_neglected = true;
            self.look_around();
            self.is_neglected = false;
        }
        self.was_polled = false;
    }

    /// Abandons what is in flight: from now on no peer reads memory here, and no device writes to
    /// it.
    pub(super) fn abandon(&mut self) {
        self.failed.get_or_insert(LinkError::Closed);
        // The peer may already use a rail to which this end has agreed. Done here and not by a
        // thread, which might be late.
        for dead in &mut self.dead {
            dead.attempt = None;
        }
        for rail in 0..self.rails.len() {
            self.stop_rail(rail, "the link was given up".to_owned());
        }
    }

    /// Polls a rail once; returns whether there may be more.
    fn poll_rail(&mut self, rail: usize) -> bool {
        let Some(live) = &self.rails[rail] else {
            return false;
        };
        let queue = live.queue.clone();
        let mut room = self.room.take().unwrap_or_default();
        let mut problem = None;
        let (mut count, mut receives) = (0, 0);
        match queue.poll(&mut room) {
            Err(error) => problem = Some(error.to_string()),
            Ok(completions) => {
                for completion in completions {
                    count += 1;
                    match completion {
                        Ok(completion) => {
                            receives += usize::from(completion.wr_id == RECEIVE);
                            self.note(rail, completion);
                        }
                        Err(error) => {
                            self.note_failure(rail, &error);
                            // Keep the first failure: it is the cause of the others.
                            problem.get_or_insert_with(|| error.to_string());
                        }
                    }
                }
            }
        }
        self.room = Some(room);
        if problem.is_none()
            && let Some(live) = &mut self.rails[rail]
            && let Err(error) = post_receives(&mut live.pair, receives)
        {
            problem = Some(error.to_string());
        }
        if let Some(problem) = problem {
            self.drop_rail(rail, problem);
        }
        count > 0
    }

    /// Processes an immediate value as if the peer had sent it.
    #[cfg(test)]
    pub(super) fn inject(&mut self, said: Immediate, bytes: u32) {
        let Self { order, rails, .. } = self;
        let noted = order.note(0, said, bytes, |load| unload(rails, load));
        noted.unwrap();
    }

    fn note(&mut self, rail: usize, completion: Completion) {
        if completion.wr_id != RECEIVE {
            if let Some(live) = &mut self.rails[rail] {
                live.ended.note(completion.wr_id, true);
            }
            return;
        }
        let Self { order, rails, .. } = self;
        let said = completion.imm.and_then(Immediate::from_bits);
        let noted = match said {
            Some(said) if completion.opcode == said.arrival() => {
                order.note(rail, said, completion.bytes, |load| unload(rails, load))
            }
            _ => Err(LinkError::Protocol(format!(
                "an arrival that is none of this link's: {completion:?}"
            ))),
        };
        if let Err(error) = noted {
            self.failed.get_or_insert(error);
        }
    }

    fn note_failure(&mut self, rail: usize, error: &CompletionError) {
        if error.wr_id != RECEIVE
            && let Some(live) = &mut self.rails[rail]
        {
            live.ended.note(error.wr_id, false);
        }
    }

    fn fail(&mut self, rail: String, problem: String) {
        self.failed.get_or_insert(LinkError::Rdma { rail, problem });
    }

    /// Tells the peer that one half of this end was dropped. The last half waits until the peer has
    /// everything.
    pub(super) fn announce_closed(&mut self, what: Immediate) {
        let has_room = |core: &Self| core.rails().all(|rail| rail.has_room(1));
        self.wait_until(has_room);
        // No rail is tried any more, and the peer must learn of that.
        self.announcements.push(what);
        self.revive();
        for rail in 0..self.rails.len() {
            if self.failed.is_none() && has_room(self) {
                self.say(rail, what);
            }
        }
        // Waits here, not where the link is freed: the thread that looks after links may free it,
        // while the process exits.
        if self.announcements.len() == 2 {
            self.wait_until(Self::is_quiet);
            // From now on, the thread that looks after links posts nothing out of users' memory.
            self.close_puts();
        }
    }

    /// Waits until `done`, the link fails, both halves of the peer are gone, or time is up.
    fn wait_until(&mut self, done: impl Fn(&Self) -> bool) {
        let retry_time = self.rails().map(|rail| rail.retry_time).max();
        let until = Instant::now() + retry_time.unwrap_or_default().min(CLOSE_TIMEOUT);
        while self.poll().is_ok()
            && !(self.order.receiver_gone && self.order.sender_gone())
            && !done(self)
            && Instant::now() < until
        {
            std::thread::sleep(PAUSE);
        }
    }

    /// Whether every posted request has completed, and no rail is failing over.
    fn is_quiet(&self) -> bool {
        !self.is_failing_over()
            && !self.owes()
            && self.rails().all(|rail| rail.ended.well == rail.posted)
    }
}

/// Accounts for bytes of a rail that the peer has read.
fn unload(rails: &mut [Option<Rail>], load: Load) {
    if let Some(rail) = &mut rails[load.rail] {
        rail.load = rail.load.saturating_sub(load.bytes);
    }
}
