//! Gives slots of the outbox to a link.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use spark_ccl_transport::rdma::device_fence;
use spark_ccl_transport::{LinkTx, PutPart, Sending};

use super::tag::{MOST_LANES, Tag};
use crate::{Error, Placement, PostBox, Slot};

/// The sending half.
pub(super) struct Outgoing {
    /// Before the outbox, so it is dropped first: after that, the link does not read the outbox.
    tx: Box<dyn LinkTx>,
    outbox: PostBox,
    /// The most bytes of a message.
    part: usize,
    way: Way,
    /// Whether the peer may put slots into this rank's inbox.
    opens: bool,
    /// This rank's opening, by which the peer puts slots into its inbox, until the link has taken
    /// it.
    opening: Option<Vec<u8>>,
    /// The puts under way, each with its slot, and the parts of the last one.
    puts: Vec<(u64, Slot)>,
    parts: Vec<PutPart>,
    /// A slot that the link has taken in part.
    going: Option<Going>,
    /// The bytes of the last slot of packets.
    packets: Vec<u8>,
    completed: VecDeque<Slot>,
    /// Why the link takes no more.
    ended: Option<Error>,
}

/// How slots go, except for those of packets.
#[derive(PartialEq, Eq)]
enum Way {
    /// As messages.
    Messages,
    /// The peer has not said where its inbox is.
    Unknown,
    /// They are put into the peer's inbox.
    Puts,
}

struct Going {
    slot: Slot,
    payload: usize,
    done: usize,
}

impl Outgoing {
    /// Slots are put where the link can do that both ways: both boxes are registered with its
    /// devices, here and at the peer.
    pub(super) fn new(
        tx: Box<dyn LinkTx>,
        part: usize,
        outbox: PostBox,
        inbox: &PostBox,
    ) -> Result<Self, Error> {
        let open = |of: &PostBox| tx.opening(&of.ranges());
        let mut opening = open(inbox);
        // The link describes only registered memory.
        let may_put = open(&outbox).is_some_and(|told| !told.is_empty());
        if let Some(told) = opening.as_mut()
            && (told.len() > part || !may_put)
        {
            told.clear();
        }
        let opens = opening.as_ref().is_some_and(|told| !told.is_empty());
        if !opens {
            must_put(&outbox, "this rank's devices do not")?;
        }
        let way = match &opening {
            Some(_) => Way::Unknown,
            None => Way::Messages,
        };
        Ok(Self {
            tx,
            outbox,
            part,
            way,
            opens,
            opening,
            puts: Vec::new(),
            parts: Vec::new(),
            going: None,
            packets: Vec::new(),
            completed: VecDeque::new(),
            ended: None,
        })
    }

    /// Whether slots go as messages, as far as is known.
    pub(super) fn only_sends(&self) -> bool {
        self.way == Way::Messages
    }

    /// Whether the peer may put slots into this rank's inbox.
    pub(super) fn opens(&self) -> bool {
        self.opens
    }

    /// How many rails the link has dropped.
    pub(super) fn dropped(&self) -> u64 {
        self.tx.rails().dropped
    }

    /// Whether slots are put into the peer's inbox.
    #[cfg(test)]
    pub(super) fn puts(&self) -> bool {
        self.way == Way::Puts
    }

    /// Takes the peer's description of its inbox: nothing, if it takes no puts.
    pub(super) fn hear_opening(&mut self, told: &[u8]) -> Result<(), Error> {
        if self.way != Way::Unknown {
            return Err(Error::Violation {
                problem: "the peer opens its inbox twice, or over a link that puts nothing"
                    .to_owned(),
            });
        }
        self.way = Way::Messages;
        if self.opens && !told.is_empty() {
            self.tx.take_opening(told)?;
            self.way = Way::Puts;
            return Ok(());
        }
        must_put(&self.outbox, "the peer's devices do not")
    }

    /// Begins with a slot, if there is room: for a message, if no other one is going.
    ///
    /// # Safety
    /// The slot is not written from now on, before it has completed.
    pub(super) unsafe fn post(&mut self, slot: Slot, payload: usize, consumed: u64) -> bool {
        if self.way == Way::Puts {
            // SAFETY: the caller lets nothing write the slot before `completed` has returned it,
            // which is after the put has ended.
            return unsafe { self.put(slot, payload, consumed) };
        }
        let may_go = self.going.is_none() && self.way == Way::Messages;
        if may_go {
            // Relaxed: this thread itself reads it to send it.
            let credit = self.outbox.credit_with(slot);
            credit.store(consumed, Ordering::Relaxed);
            let done = 0;
            self.going = Some(Going {
                slot,
                payload,
                done,
            });
            self.advance();
        }
        may_go
    }

    /// Puts a slot into the peer's inbox, if the link has room for that.
    ///
    /// # Safety
    /// The slot was published, and is not written before it has completed.
    unsafe fn put(&mut self, slot: Slot, payload: usize, consumed: u64) -> bool {
        if self.ended.is_some() {
            return false;
        }
        self.parts.clear();
        self.parts
            .extend(self.outbox.parts(slot, payload, consumed));
        // The proxy has acquired the kernel's counter before this. The fence extends the order to
        // the device, which reads the kernel's bytes.
        device_fence();
        // SAFETY: the parts are the slot's, which the caller lets nothing write before it has
        // completed, so not before the put has ended. The outbox's memory stays mapped until its
        // registration has ended, also if the put never ends: that is what `Registry::register`
        // demands of its caller.
        match unsafe { self.tx.put(&self.parts) } {
            Ok(None) => false,
            Ok(Some(number)) => {
                self.puts.push((number, slot));
                true
            }
            Err(error) => {
                self.ended = Some(error.into());
                false
            }
        }
    }

    /// Begins with a slot of packets, if none is going.
    pub(super) fn post_packets(&mut self, number: u64, words: &[u64]) -> bool {
        let may_go = self.going.is_none();
        if may_go {
            self.packets.resize(size_of_val(words), 0);
            let (bytes, _) = self.packets.as_chunks_mut();
            for (to, word) in bytes.iter_mut().zip(words) {
                *to = word.to_le_bytes();
            }
            self.going = Some(Going {
                slot: Slot {
                    lane: MOST_LANES,
                    number,
                },
                payload: self.packets.len(),
                done: 0,
            });
            self.advance();
        }
        may_go
    }

    /// Ends the link.
    pub(super) fn withdraw(&mut self) {
        self.ended.get_or_insert(Error::Gone);
        self.tx.withdraw();
    }

    /// Why the link takes no more, if it has ended.
    pub(super) fn ended(&self) -> Option<&Error> {
        self.ended.as_ref()
    }

    pub(super) fn completed(&mut self) -> Option<Slot> {
        while !self.puts.is_empty()
            && let Some(ended) = self.tx.ended_put()
        {
            let place = self.puts.iter().position(|(number, _)| *number == ended);
            self.completed
                .extend(place.map(|place| self.puts.swap_remove(place).1));
        }
        // Bytes that the link holds back end with this process.
        if self.tx.holds_back() {
            return None;
        }
        self.completed.pop_front()
    }

    pub(super) fn is_flushed(&self) -> bool {
        self.going.is_none()
            && self.opening.is_none()
            && self.puts.is_empty()
            && !self.tx.holds_back()
    }

    /// Gives a credit alone. Not while a slot is going: the link may have taken a part of its
    /// message.
    pub(super) fn give_credit(&mut self, lane: usize, total: u64) -> bool {
        self.send_tag(Tag::Credit { lane, total })
    }

    /// Sends a message that consists of its tag alone, if no slot is going and the link takes it
    /// now.
    fn send_tag(&mut self, tag: Tag) -> bool {
        if self.going.is_some() || self.opening.is_some() || self.ended.is_some() {
            return false;
        }
        send(&mut *self.tx, &[], tag.word()).unwrap_or_else(|error| {
            self.ended = Some(error);
            false
        })
    }

    /// Moves the slot on that is going.
    pub(super) fn advance(&mut self) {
        if self.ended.is_none() {
            self.ended = self.push().err();
        }
    }

    fn push(&mut self) -> Result<(), Error> {
        if self.tx.holds_back() {
            self.tx.flush()?;
        }
        if let Some(told) = &self.opening {
            let bytes = told.len() as u64;
            if !send(&mut *self.tx, told, Tag::Opening { bytes }.word())? {
                return Ok(());
            }
            self.opening = None;
        }
        let Some(Going {
            slot,
            payload,
            done,
        }) = &mut self.going
        else {
            return Ok(());
        };
        let (slot, payload) = (*slot, *payload);
        let tag = Tag::Slot { slot, payload }.word();
        let is_of_packets = slot.lane == MOST_LANES;
        let all = if is_of_packets {
            &self.packets[..]
        } else {
            // SAFETY: the slot is `going`: it was published before it was posted, and has not
            // completed yet, so the kernel does not fill it again while this is borrowed.
            unsafe { self.outbox.filled(slot, payload) }
        };
        while let Some(part) = all[*done..].chunks(self.part).next() {
            if !send(&mut *self.tx, part, tag)? {
                return Ok(());
            }
            *done += part.len();
        }
        self.going = None;
        if !is_of_packets {
            self.completed.push_back(slot);
        }
        Ok(())
    }
}

/// Refuses to send slots as messages that are on a GPU, where no processor reads them.
fn must_put(outbox: &PostBox, who: &str) -> Result<(), Error> {
    match outbox.shape().placement() {
        Placement::Host => Ok(()),
        Placement::Device => Err(Error::Link {
            problem: format!("slots are in the GPU's memory, and {who} put them there"),
        }),
    }
}

/// Sends a message, if the link takes it now.
fn send(tx: &mut dyn LinkTx, part: &[u8], tag: u64) -> Result<bool, Error> {
    match tx.send_from(part, tag)? {
        Sending::Done(sent) => {
            debug_assert_eq!(sent, part.len(), "a part is a message of the link");
            return Ok(true);
        }
        Sending::NotYet => return Ok(false),
        Sending::Unable => {}
    }
    let Some(room) = tx.reserve(part.len())? else {
        return Ok(false);
    };
    room.copy_from_slice(part);
    tx.commit(part.len(), tag)?;
    Ok(true)
}
