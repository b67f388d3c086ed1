//! What both halves of a link work with.

use std::time::{Duration, Instant};

use spark_ccl_verbs::{Completion, CompletionError, Error, Opcode, PollRoom};

use super::immediate::Immediate;
use super::order::{Load, Order};
use super::rail::{RECEIVE, Rail, post_receives};
use super::slots::{HEADER_BYTES, Header, Slots};
use crate::LinkError;

/// For so long a link that ends waits for its last words to arrive.
const FAREWELL: Duration = Duration::from_secs(1);

/// An end of a link.
#[derive(Debug)]
pub(super) struct Core {
    // Dropped before the slots: then no device reaches these.
    rails: Vec<Rail>,
    outgoing: Slots,
    incoming: Slots,
    order: Order,
    /// Lent to a poll.
    room: Option<Box<PollRoom>>,
    /// By channel, the last message that is read and not acknowledged yet.
    owed: Vec<Option<u32>>,
    failed: Option<LinkError>,
}

impl Core {
    pub(super) fn new(rails: Vec<Rail>, outgoing: Slots, incoming: Slots) -> Self {
        let geometry = outgoing.geometry();
        Self {
            order: Order::new(geometry, rails.len()),
            room: None,
            owed: vec![None; geometry.channels],
            failed: None,
            rails,
            outgoing,
            incoming,
        }
    }

    pub(super) fn outgoing(&self) -> &Slots {
        &self.outgoing
    }

    pub(super) fn incoming(&self) -> &Slots {
        &self.incoming
    }

    pub(super) fn rails(&self) -> &[Rail] {
        &self.rails
    }

    /// The number of the channel's next message, if its slot is free.
    pub(super) fn next_to_send(&mut self, channel: usize) -> Result<Option<u64>, LinkError> {
        if self.failed.is_none() && self.order.receiver_gone {
            return Err(LinkError::Closed);
        }
        // One write more for each channel: what all have reserved can be sent.
        let writes = self.owed.len() as u64 + 1;
        let free = |core: &Self| {
            let room = core.rails.iter().all(|rail| rail.has_room(writes));
            core.order.next_to_send(channel).filter(|_| room)
        };
        if self.failed.is_none()
            && let Some(number) = free(self)
        {
            return Ok(Some(number));
        }
        self.poll()?;
        Ok(free(self))
    }

    /// Sends the channel's next message, whose payload stands in its slot.
    ///
    /// # Safety
    /// The slot is reserved: it is this side's.
    pub(super) unsafe fn send(
        &mut self,
        channel: usize,
        number: u64,
        len: usize,
        tag: u64,
    ) -> Result<(), LinkError> {
        // SAFETY: passed on from the caller.
        unsafe {
            self.outgoing.write_header(channel, Header { tag, number });
        }
        let least = self
            .rails
            .iter()
            .enumerate()
            .min_by_key(|(_, rail)| rail.load);
        let rail = least.map_or(0, |(index, _)| index);
        let bytes = HEADER_BYTES + len;
        let offset = self.outgoing.offset(channel, number);
        let start = self
            .outgoing
            .payload(channel, number)
            .wrapping_sub(HEADER_BYTES);
        let what = Immediate::Message {
            channel,
            number: number as u32,
        };
        // SAFETY: header and payload are this side's to write again only when the peer has said that it
        // has read the message.
        let posted = unsafe { self.rails[rail].write(start, bytes, offset, what) };
        posted.map_err(|error| self.fail(rail, &error))?;
        self.rails[rail].load += bytes as u64;
        let load = Load {
            rail,
            bytes: bytes as u64,
        };
        self.order.note_sent(channel, load);
        Ok(())
    }

    /// The number and length of the channel's next message, if it has arrived.
    pub(super) fn next_to_read(
        &mut self,
        channel: usize,
    ) -> Result<Option<(u64, usize)>, LinkError> {
        if let Some(next) = self.order.next_to_read(channel) {
            return Ok(Some(next));
        }
        let polled = self.poll();
        match self.order.next_to_read(channel) {
            Some(next) => Ok(Some(next)),
            None if polled.is_ok() && self.order.senders == 0 => Err(LinkError::Closed),
            None => polled.map(|()| None),
        }
    }

    /// Gives the slot of the channel's next message back.
    pub(super) fn release(&mut self, channel: usize) {
        if let Some(number) = self.order.note_read(channel) {
            self.owed[channel] = Some(number);
            self.acknowledge();
        }
    }

    /// Tells the peer what is read, as far as the rails have room for it.
    fn acknowledge(&mut self) {
        for channel in 0..self.owed.len() {
            if let Some(number) = self.owed[channel]
                && self.failed.is_none()
                && let Some(rail) = self.rails.iter().position(|rail| rail.has_room(1))
            {
                self.owed[channel] = None;
                let what = Immediate::Released { channel, number };
                self.say(rail, what);
            }
        }
    }

    fn say(&mut self, rail: usize, what: Immediate) {
        // SAFETY: there are no bytes.
        let said = unsafe { self.rails[rail].write(std::ptr::null(), 0, 0, what) };
        if let Err(error) = said {
            self.fail(rail, &error);
        }
    }

    /// Takes note of everything that has arrived or ended.
    pub(super) fn poll(&mut self) -> Result<(), LinkError> {
        for rail in 0..self.rails.len() {
            while self.failed.is_none() && self.poll_rail(rail) {}
        }
        self.acknowledge();
        match &self.failed {
            None => Ok(()),
            // It may have gone without the last acknowledgement.
            Some(_) if self.order.receiver_gone || self.order.senders == 0 => {
                Err(LinkError::Closed)
            }
            Some(error) => Err(error.clone()),
        }
    }

    /// Whether there may be more.
    fn poll_rail(&mut self, rail: usize) -> bool {
        let queue = self.rails[rail].queue.clone();
        let mut room = self.room.take().unwrap_or_default();
        let more = match queue.poll(&mut room) {
            Err(error) => {
                self.fail(rail, &error);
                false
            }
            Ok(completions) => {
                let mut receives = 0;
                for completion in completions {
                    match completion {
                        Ok(completion) => {
                            receives += usize::from(completion.wr_id == RECEIVE);
                            self.note(rail, completion);
                        }
                        Err(error) => self.fail_by(rail, error),
                    }
                }
                let more = receives > 0;
                if more && let Err(error) = post_receives(&mut self.rails[rail].pair, receives) {
                    self.fail(rail, &error);
                }
                more
            }
        };
        self.room = Some(room);
        more
    }

    fn note(&mut self, rail: usize, completion: Completion) {
        if completion.wr_id != RECEIVE {
            self.rails[rail].ended = completion.wr_id;
            return;
        }
        let Self { order, rails, .. } = self;
        let said = completion.imm.and_then(Immediate::from_bits);
        let noted = match said {
            Some(said) if completion.opcode == Opcode::ReceiveOfWrite => {
                order.note(said, completion.bytes, |load| {
                    let rail = &mut rails[load.rail];
                    rail.load = rail.load.saturating_sub(load.bytes);
                })
            }
            _ => Err(LinkError::Protocol(format!(
                "an arrival that is none of this link's: {completion:?}"
            ))),
        };
        if let Err(error) = noted {
            self.failed.get_or_insert(error);
        }
    }

    fn fail(&mut self, rail: usize, error: &Error) -> LinkError {
        self.fail_as(rail, error.to_string())
    }

    fn fail_by(&mut self, rail: usize, error: CompletionError) {
        self.fail_as(rail, error.to_string());
    }

    fn fail_as(&mut self, rail: usize, problem: String) -> LinkError {
        let rail = self.rails[rail].name.clone();
        let error = LinkError::Rdma { rail, problem };
        self.failed.get_or_insert(error).clone()
    }

    /// Says that one half of this end is gone.
    pub(super) fn say_farewell(&mut self, what: Immediate) {
        for rail in 0..self.rails.len() {
            if self.failed.is_none() && self.rails[rail].has_room(1) {
                self.say(rail, what);
            }
        }
    }

    /// Whether everything that was posted has ended.
    fn is_quiet(&self) -> bool {
        self.rails.iter().all(|rail| rail.ended == rail.posted)
    }
}

impl Drop for Core {
    /// The peer is to hear the last words.
    fn drop(&mut self) {
        let until = Instant::now() + FAREWELL;
        while !self.is_quiet() && self.poll().is_ok() && Instant::now() < until {
            std::thread::yield_now();
        }
    }
}
