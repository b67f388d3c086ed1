//! Takes slots from a link into the inbox.

use std::sync::atomic::Ordering;

use spark_ccl_transport::rdma::device_fence;
use spark_ccl_transport::{Direct, LinkRx};

use super::heard::Heard;
use super::tag::{MOST_LANES, Tag};
use crate::layout::{PACKET_SLOTS, PACKETS, RECORD_OF_PACKETS};
use crate::packets::record_of;
use crate::{Counter, Error, Placement, PostBox, Record, Slot};

/// The number of messages that are taken at a time, so that other peers have their turn.
const AT_A_TIME: usize = 8;
/// The bytes of a word.
const WORD: usize = size_of::<u64>();

/// The receiving half.
pub(super) struct Incoming {
    rx: Box<dyn LinkRx>,
    inbox: PostBox,
    /// The most bytes of a message.
    part: usize,
    /// A slot that has come in part.
    coming: Option<Coming>,
    /// How many slots of packets have come, and the bytes so far of the next one.
    packets: u64,
    bytes: Vec<u8>,
    /// By lane: the last slot that has begun to come, and the largest credit.
    begun: Vec<u64>,
    credits: Vec<u64>,
    heard: Option<Heard>,
    /// Whether the peer puts slots into the inbox, instead of sending them.
    is_open: bool,
    /// The peer's description of its own inbox.
    opening: Option<Vec<u8>>,
    /// Why no more messages come.
    ended: Option<Error>,
}

#[derive(Clone, Copy)]
struct Coming {
    slot: Slot,
    payload: usize,
    /// The tag of the slot's messages.
    tag: u64,
    done: usize,
}

impl Incoming {
    pub(super) fn new(rx: Box<dyn LinkRx>, part: usize, inbox: PostBox, is_open: bool) -> Self {
        let lanes = inbox.shape().lanes();
        Self {
            rx,
            inbox,
            part,
            coming: None,
            packets: 0,
            bytes: Vec::new(),
            begun: vec![0; lanes],
            credits: vec![0; lanes],
            heard: None,
            is_open,
            opening: None,
            ended: None,
        }
    }

    /// The peer's opening, by which slots can be put into its inbox, once it has come.
    pub(super) fn take_opening(&mut self) -> Option<Vec<u8>> {
        self.opening.take()
    }

    pub(super) fn heard(&self) -> Option<Heard> {
        self.heard
    }

    pub(super) fn forget_heard(&mut self) {
        self.heard = None;
    }

    /// How many slots of packets have come.
    pub(super) fn packets(&self) -> u64 {
        self.packets
    }

    /// How many slots of a lane have come as a whole.
    pub(super) fn come(&self, lane: usize) -> u64 {
        let is_coming = self.coming.is_some_and(|coming| coming.slot.lane == lane);
        self.begun[lane] - u64::from(is_coming)
    }

    pub(super) fn credit(&self, lane: usize) -> u64 {
        self.credits[lane]
    }

    /// Takes what has come. Returns whether that was anything.
    pub(super) fn advance(&mut self) -> Result<bool, Error> {
        let mut has_seen = self.look_at_all()?;
        let taken = match &self.ended {
            Some(error) => Err(error.clone()),
            None => self.take_messages(),
        };
        if let Err(error) = &taken {
            self.ended = Some(error.clone());
            // Slots that were put before the link has ended are there by now.
            has_seen |= self.look_at_all()?;
        }
        // An error waits for the next call that sees nothing.
        if has_seen { Ok(true) } else { taken }
    }

    /// Notes which slots were put into the inbox. Returns whether there were any.
    fn look_at_all(&mut self) -> Result<bool, Error> {
        let mut has_seen = false;
        for lane in 0..self.begun.len() {
            has_seen |= self.look_at(lane)?;
        }
        Ok(has_seen)
    }

    /// Notes which slots of a lane were put into the inbox. Returns whether there were any. A slot
    /// must be noted here before the peer gets a credit for it, since the peer then puts another
    /// one in its place.
    pub(super) fn look_at(&mut self, lane: usize) -> Result<bool, Error> {
        if !self.is_open {
            return Ok(false);
        }
        let depth = self.inbox.shape().depth() as u64;
        let first = self.begun[lane] + 1;
        for number in first..first + depth {
            let slot = Slot { lane, number };
            // Acquire, and the fence for what a device writes, pair with the order of the writes of
            // a put: the flag is the last one.
            if self.inbox.flag(slot).load(Ordering::Acquire) != number {
                break;
            }
            device_fence();
            let consumed = self.consumed(lane);
            if number > consumed + depth {
                return Err(Error::Violation {
                    problem: format!(
                        "the peer puts slot {number} of lane {lane}, where {consumed} were \
                         consumed, and there are {depth} slots"
                    ),
                });
            }
            self.begun[lane] = number;
            self.note(slot)?;
        }
        Ok(self.begun[lane] >= first)
    }

    /// How many slots of a lane the kernel has consumed.
    fn consumed(&self, lane: usize) -> u64 {
        // Acquire pairs with the kernel's fence in `Slots::tell`: it reads these slots no more.
        let consumed = self.inbox.counter(lane, Counter::Consumed);
        consumed.load(Ordering::Acquire)
    }

    /// Notes the credit and the record of a slot that has come.
    fn note(&mut self, slot: Slot) -> Result<(), Error> {
        // Relaxed: this thread has written the credit itself, or acquired the slot's flag.
        let credit = self.inbox.credit_with(slot).load(Ordering::Relaxed);
        let known = &mut self.credits[slot.lane];
        *known = credit.max(*known);
        if slot.lane == 0 {
            self.hear(slot.number, false, self.inbox.record(slot))?;
        }
        Ok(())
    }

    fn take_messages(&mut self) -> Result<bool, Error> {
        for taken in 0..AT_A_TIME {
            let goes_on = match self.coming {
                Some(coming) => self.take(coming)?,
                None => self.begin()?,
            };
            if !goes_on {
                return Ok(taken > 0);
            }
        }
        Ok(true)
    }

    /// Looks at the next message. Returns whether there is one.
    fn begin(&mut self) -> Result<bool, Error> {
        let Some(tag) = self.rx.next_tag()? else {
            return Ok(false);
        };
        match Tag::of(tag) {
            Tag::Credit { lane, total } => {
                self.hear_credit(lane, total)?;
                self.pass()?;
            }
            Tag::Opening { bytes } => return self.take_opening_of(bytes, tag),
            Tag::Slot { slot, payload } => {
                let slot = match slot.lane {
                    lane if lane != MOST_LANES && self.must_be_put() => return Err(mixed(lane)),
                    MOST_LANES => self.next_of_packets(slot, payload)?,
                    _ => self.next(slot, payload)?,
                };
                self.coming = Some(Coming {
                    slot,
                    payload,
                    tag,
                    done: 0,
                });
            }
        }
        Ok(true)
    }

    /// Whether slots can only be put: so it was agreed, or they are on a GPU, which no processor
    /// reaches.
    fn must_be_put(&self) -> bool {
        self.is_open || self.inbox.shape().placement() == Placement::Device
    }

    /// Takes the peer's opening. Returns whether it has come.
    fn take_opening_of(&mut self, bytes: u64, tag: u64) -> Result<bool, Error> {
        if bytes > self.part as u64 || self.opening.is_some() {
            return Err(Error::Violation {
                problem: format!("the peer opens its inbox by {bytes} bytes, or twice"),
            });
        }
        self.bytes.resize(bytes as usize, 0);
        let has_come = receive(&mut *self.rx, &mut self.bytes, tag)?;
        if has_come {
            // Slots are put both ways, or neither.
            self.is_open &= bytes > 0;
            self.opening = Some(std::mem::take(&mut self.bytes));
        }
        Ok(has_come)
    }

    /// Skips a message that consists of its tag alone.
    fn pass(&mut self) -> Result<(), Error> {
        self.rx.peek()?;
        self.rx.release();
        Ok(())
    }

    /// The full number of the next slot of a lane, once the peer may fill it.
    fn next(&mut self, told: Slot, payload: usize) -> Result<Slot, Error> {
        let lane = told.lane;
        let begun = self.begun.get(lane).ok_or_else(|| no_lane(lane))?;
        let slot = Slot {
            lane,
            number: *begun + 1,
        };
        let shape = self.inbox.shape();
        let consumed = self.consumed(lane);
        let has_room = slot.number <= consumed + shape.depth() as u64;
        let is_next = Tag::Slot { slot, payload }.is_of(told, payload);
        if !has_room || !is_next || payload > shape.payload() {
            return Err(Error::Violation {
                problem: format!(
                    "the peer sends {payload} bytes as slot ...{} of lane \
                     {lane}, where {} is next, {consumed} were consumed, and the {} slots have \
                     {} bytes",
                    told.number,
                    slot.number,
                    shape.depth(),
                    shape.payload()
                ),
            });
        }
        self.begun[lane] = slot.number;
        Ok(slot)
    }

    /// The full number of the next slot of packets.
    fn next_of_packets(&mut self, told: Slot, payload: usize) -> Result<Slot, Error> {
        let slot = Slot {
            number: self.packets + 1,
            ..told
        };
        let (words, rest) = (payload / WORD, payload % WORD);
        let is_next = Tag::Slot { slot, payload }.is_of(told, payload);
        // A peer that begins a call has got this rank's part in the call before.
        let wanted = self.inbox.packets_wanted();
        let has_room = slot.number <= wanted + PACKET_SLOTS as u64;
        let is_whole = rest == 0 && (RECORD_OF_PACKETS..=PACKETS).contains(&words);
        if !has_room || !is_next || !is_whole {
            return Err(Error::Violation {
                problem: format!(
                    "the peer sends {payload} bytes as slot ...{} of packets, where {} is next, of \
                     {RECORD_OF_PACKETS} to {PACKETS} words, and calls take {wanted}",
                    told.number, slot.number
                ),
            });
        }
        self.bytes.resize(payload, 0);
        Ok(slot)
    }

    /// Takes the next message of a slot. Returns whether it has come.
    fn take(&mut self, mut coming: Coming) -> Result<bool, Error> {
        let (slot, payload) = (coming.slot, coming.payload);
        let is_of_packets = slot.lane == MOST_LANES;
        let all = if is_of_packets {
            &mut self.bytes[..]
        } else {
            // SAFETY: `next` has seen that the kernel has consumed the slot that was in this place.
            // The kernel uses its contents again only after the flag is set, below: a GPU may load
            // the record together with an old flag, but then loads it again. No other carrier
            // writes the inbox (`Linked::new`), and the borrow ends before the flag is set.
            unsafe { self.inbox.room(slot, payload) }
        };
        let rest = &mut all[coming.done..];
        let bytes = rest.len().min(self.part);
        if !receive(&mut *self.rx, &mut rest[..bytes], coming.tag)? {
            return Ok(false);
        }
        coming.done += bytes;
        self.coming = (coming.done < all.len()).then_some(coming);
        match slot.lane {
            _ if self.coming.is_some() => {}
            MOST_LANES => self.put_packets(slot.number)?,
            _ => {
                self.note(slot)?;
                self.inbox.set_flag(slot);
            }
        }
        Ok(true)
    }

    fn hear_credit(&mut self, lane: usize, total: u64) -> Result<(), Error> {
        let known = self.credits.get_mut(lane).ok_or_else(|| no_lane(lane))?;
        *known = total.max(*known);
        Ok(())
    }

    /// Puts a slot of packets, which has come, into the inbox.
    fn put_packets(&mut self, number: u64) -> Result<(), Error> {
        let (words, _) = self.bytes.as_chunks::<WORD>();
        let words = words.iter().map(|&word| u64::from_le_bytes(word));
        let mut record = [0; RECORD_OF_PACKETS];
        let places = record.iter_mut().zip(words.clone());
        places.for_each(|(to, word)| *to = word);
        let record = record_of(&record);
        let block = words.len() - RECORD_OF_PACKETS;
        if record.length.div_ceil(WORD as u64) != block as u64 {
            return Err(Error::Violation {
                problem: format!(
                    "the peer sends {block} words as slot {number} of packets, and says that they \
                     have {} bytes",
                    record.length
                ),
            });
        }
        self.inbox.put_packets(number, words);
        self.packets = number;
        self.hear(number, true, record)
    }

    /// Notes the call of a slot. Packets and lanes overtake each other.
    fn hear(&mut self, number: u64, is_of_packets: bool, record: Record) -> Result<(), Error> {
        // The number of calls before this one, so it is never the largest.
        if record.call == u64::MAX {
            return Err(Error::Violation {
                problem: format!("slot {number} is of call {}, which there is not", u64::MAX),
            });
        }
        if self
            .heard
            .is_none_or(|heard| heard.record.call <= record.call)
        {
            self.heard = Some(Heard {
                is_of_packets,
                number,
                record,
            });
        }
        Ok(())
    }
}

/// Receives a message, if it has come. Returns whether it has.
fn receive(rx: &mut dyn LinkRx, part: &mut [u8], tag: u64) -> Result<bool, Error> {
    match rx.receive_into(part, tag)? {
        Direct::Done => return Ok(true),
        Direct::NotYet => return Ok(false),
        Direct::Unable => {}
    }
    let Some(arrival) = rx.peek()? else {
        return Ok(false);
    };
    if arrival.tag != tag || arrival.payload.len() != part.len() {
        return Err(Error::Violation {
            problem: format!(
                "a message of {} bytes with the tag {tag:x} is next, and the \
                 peer sends {} bytes with {:x}",
                part.len(),
                arrival.payload.len(),
                arrival.tag
            ),
        });
    }
    part.copy_from_slice(arrival.payload);
    rx.release();
    Ok(true)
}

fn mixed(lane: usize) -> Error {
    Error::Violation {
        problem: format!("the peer sends a slot of lane {lane}, and is to put it"),
    }
}

fn no_lane(lane: usize) -> Error {
    Error::Violation {
        problem: format!("the peer names lane {lane}, which there is not"),
    }
}
