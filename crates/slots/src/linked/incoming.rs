//! From a link into the inbox.

use std::sync::atomic::Ordering;

use spark_ccl_transport::{Direct, LinkRx};

use super::heard::Heard;
use super::tag::Tag;
use crate::{Counter, Error, PostBox, Slot};

/// How many messages are taken at a time, so that other peers have their turn.
const AT_A_TIME: usize = 8;

/// The receiving half.
pub(super) struct Incoming {
    rx: Box<dyn LinkRx>,
    inbox: PostBox,
    /// The most bytes of a message.
    part: usize,
    /// A slot of which only a part has come.
    coming: Option<Coming>,
    /// By lane: the last slot that has begun to come, and the largest credit.
    begun: Vec<u64>,
    credits: Vec<u64>,
    /// What the peer has said last to have done before.
    before: u64,
    heard: Option<Heard>,
}

#[derive(Clone, Copy)]
struct Coming {
    slot: Slot,
    payload: usize,
    /// As its messages have it.
    tag: u64,
    done: usize,
}

impl Incoming {
    pub(super) fn new(rx: Box<dyn LinkRx>, part: usize, inbox: PostBox) -> Self {
        let lanes = inbox.shape().lanes();
        Self {
            rx,
            inbox,
            part,
            coming: None,
            begun: vec![0; lanes],
            credits: vec![0; lanes],
            before: 0,
            heard: None,
        }
    }

    pub(super) fn heard(&self) -> Option<Heard> {
        self.heard
    }

    pub(super) fn credit(&self, lane: usize) -> u64 {
        self.credits[lane]
    }

    /// Takes what has come; whether that was anything.
    pub(super) fn advance(&mut self) -> Result<bool, Error> {
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

    /// Looks at the next message; whether there is one.
    fn begin(&mut self) -> Result<bool, Error> {
        let Some(tag) = self.rx.next_tag()? else {
            return Ok(false);
        };
        match Tag::of(tag) {
            Tag::Credit { lane, total } => {
                let known = self.credits.get_mut(lane).ok_or_else(|| no_lane(lane))?;
                *known = total.max(*known);
                self.pass()?;
            }
            Tag::Before(number) => {
                self.before = number;
                self.pass()?;
            }
            Tag::Slot { slot, payload } => {
                self.coming = Some(Coming {
                    slot: self.next(slot, payload)?,
                    payload,
                    tag,
                    done: 0,
                });
            }
        }
        Ok(true)
    }

    /// Passes over a message that is nothing but its tag.
    fn pass(&mut self) -> Result<(), Error> {
        self.rx.peek()?;
        self.rx.release();
        Ok(())
    }

    /// The whole number of the next slot of a lane, once the peer may fill it.
    fn next(&mut self, told: Slot, payload: usize) -> Result<Slot, Error> {
        let lane = told.lane;
        let begun = self.begun.get_mut(lane).ok_or_else(|| no_lane(lane))?;
        let slot = Slot {
            lane,
            number: *begun + 1,
        };
        let shape = self.inbox.shape();
        let consumed = self.inbox.counter(lane, Counter::Consumed);
        // Acquire pairs with the kernel's release in `Slots::release`: it reads the slot no more.
        let consumed = consumed.load(Ordering::Acquire);
        let has_room = slot.number <= consumed + shape.depth() as u64;
        // Only the end of the number is told.
        let said = Tag::Slot { slot, payload }.word();
        let is_next = said
            == Tag::Slot {
                slot: told,
                payload,
            }
            .word();
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
        *begun = slot.number;
        Ok(slot)
    }

    /// Takes the next message of a slot; whether it has come.
    fn take(&mut self, mut coming: Coming) -> Result<bool, Error> {
        let (slot, payload) = (coming.slot, coming.payload);
        // SAFETY: `next` has seen that the kernel has consumed what was in the slot, and the kernel
        // reads it again only once its flag is set, below. No other carrier writes the inbox
        // (`Linked::new`), and the borrow ends before the flag is set.
        let all = unsafe { self.inbox.room(slot, payload) };
        let rest = &mut all[coming.done..];
        let bytes = rest.len().min(self.part);
        if !receive(&mut *self.rx, &mut rest[..bytes], coming.tag)? {
            return Ok(false);
        }
        coming.done += bytes;
        self.coming = (coming.done < all.len()).then_some(coming);
        if self.coming.is_none() {
            if slot.lane == 0 {
                self.heard = Some(Heard {
                    before: self.before,
                    number: slot.number,
                    record: self.inbox.record(slot),
                });
            }
            self.inbox.set_flag(slot);
        }
        Ok(true)
    }
}

/// Receives a message, if it has come.
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

fn no_lane(lane: usize) -> Error {
    Error::Violation {
        problem: format!("the peer names lane {lane}, which there is not"),
    }
}
