//! Posts slots that kernels publish, completes them, and gives credits back.

use crate::counters::{Impossible, Receiving, Sending};
use crate::{Carrier, Counter, Error, PostBox, Slot};

/// Some lanes between this rank and a peer, in both directions. Lanes need nothing of each other,
/// so the lanes of a pair may be divided among threads, each with a carrier and a proxy.
#[derive(Debug)]
pub struct Proxy<C> {
    outbox: PostBox,
    inbox: PostBox,
    carrier: C,
    lanes: Vec<Lane>,
    /// The number of the last slot of packets that the carrier was given, and the words so far of
    /// the next one.
    packets: u64,
    words: Vec<u64>,
    /// The lane that has the first turn next time: the one after the lane that has posted last.
    first: usize,
    /// How many turns in a row have done nothing.
    idle: u32,
}

/// Credits go with slots. They go alone if no slot goes for this number of turns, or half of a
/// lane's slots are due.
const IDLE: u32 = 256;

#[derive(Debug)]
struct Lane {
    number: usize,
    sending: Sending,
    receiving: Receiving,
}

/// How far a lane has come, for errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The lane.
    pub lane: usize,
    /// The last slot that the kernel has filled, as far as the proxy has seen.
    pub published: u64,
    /// The last slot that was given to the carrier.
    pub posted: u64,
    /// All slots up to this one have completed.
    pub sent: u64,
    /// The largest number of consumed slots that the peer has told.
    pub credit: u64,
    /// How many of the peer's slots were consumed here, as the peer was told.
    pub consumed: u64,
}

impl<C: Carrier> Proxy<C> {
    /// The proxy of some lanes of two boxes of the same shape, in which nothing has happened yet.
    pub fn new(
        outbox: PostBox,
        inbox: PostBox,
        carrier: C,
        lanes: impl IntoIterator<Item = usize>,
    ) -> Self {
        let depth = outbox.shape().depth();
        let lanes = lanes.into_iter().map(|number| Lane {
            number,
            sending: Sending::new(depth),
            receiving: Receiving::default(),
        });
        Self {
            outbox,
            inbox,
            carrier,
            lanes: lanes.collect(),
            packets: 0,
            words: Vec::new(),
            first: 0,
            idle: 0,
        }
    }

    /// Does everything that can be done now, without waiting. Returns whether there was anything. A
    /// lane without room holds up no other lane, and lanes take turns if the carrier has room for
    /// only one.
    ///
    /// # Errors
    /// The peer cannot be reached any more, or a counter or a record has an impossible value.
    /// [`progress`](Self::progress) still includes everything that the peer has told before.
    pub fn turn(&mut self) -> Result<bool, Error> {
        self.pass().inspect_err(|_| {
            for lane in &mut self.lanes {
                // The error that is returned says more.
                let _ = lane.sending.hear_last(|| self.carrier.credit(lane.number));
            }
        })
    }

    fn pass(&mut self) -> Result<bool, Error> {
        let mut moved = false;
        while let Some(Slot { lane, number }) = self.carrier.completed()? {
            let sent = self.outbox.counter(lane, Counter::Sent);
            // A carrier completes slots that it was given, which are of these lanes.
            let mut mine = self.lanes.iter_mut().filter(|mine| mine.number == lane);
            let completed = mine.try_for_each(|mine| mine.sending.complete(number, sent));
            completed.map_err(|wrong| impossible(lane, wrong))?;
            moved = true;
        }
        while self.pass_packets()? {
            moved = true;
        }
        let (first, count) = (self.first, self.lanes.len());
        for index in (first..count).chain(0..first) {
            let lane = &mut self.lanes[index];
            if lane.post(&self.outbox, &self.inbox, &mut self.carrier)? {
                (self.first, moved) = ((index + 1) % count, true);
            }
            let least = match self.idle {
                ..IDLE => self.inbox.shape().depth().div_ceil(2),
                _ => 1,
            };
            moved |= lane.give_credit(&self.inbox, &mut self.carrier, least as u64)?;
        }
        self.idle = if moved {
            0
        } else {
            self.idle.saturating_add(1)
        };
        if !moved {
            self.carrier.health()?;
        }
        Ok(moved)
    }

    /// Passes the next slot of packets on, if there is one.
    fn pass_packets(&mut self) -> Result<bool, Error> {
        let (next, words) = (self.packets + 1, &mut self.words);
        let is_passed =
            self.outbox.take_packets(next, words)? && self.carrier.post_packets(next, words)?;
        if is_passed {
            self.packets = next;
            words.clear();
        }
        Ok(is_passed)
    }

    /// Sets how many slots of packets were passed on.
    #[cfg(test)]
    pub(crate) fn start_packets_at(&mut self, number: u64) {
        self.packets = number;
    }

    /// How many slots of packets the carrier was given.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// The carrier.
    pub fn carrier(&self) -> &C {
        &self.carrier
    }

    /// The carrier, to be changed.
    pub fn carrier_mut(&mut self) -> &mut C {
        &mut self.carrier
    }

    /// How far each lane has come.
    pub fn progress(&self) -> impl Iterator<Item = Progress> {
        self.lanes.iter().map(|lane| {
            let [published, posted, sent, credit] = lane.sending.totals();
            Progress {
                lane: lane.number,
                published,
                posted,
                sent,
                credit,
                consumed: lane.receiving.total(),
            }
        })
    }
}

impl Lane {
    /// Gives a credit, if at least this number of slots is due.
    fn give_credit(
        &mut self,
        inbox: &PostBox,
        carrier: &mut impl Carrier,
        least: u64,
    ) -> Result<bool, Error> {
        let consumed = Receiving::consumed(inbox.counter(self.number, Counter::Consumed));
        if !self.receiving.is_due(consumed, least) {
            return Ok(false);
        }
        let total = consumed.min(carrier.come(self.number)?);
        let given =
            self.receiving.is_due(total, least) && carrier.give_credit(self.number, total)?;
        if given {
            self.receiving.returned(total);
        }
        Ok(given)
    }

    /// Posts the next slot, if there is one, and a credit with it.
    fn post(
        &mut self,
        outbox: &PostBox,
        inbox: &PostBox,
        carrier: &mut impl Carrier,
    ) -> Result<bool, Error> {
        let lane = self.number;
        let published = outbox.counter(lane, Counter::Published);
        let next = self.sending.next(published, || carrier.credit(lane));
        let Some(number) = next.map_err(|wrong| impossible(lane, wrong))? else {
            return Ok(false);
        };
        let slot = Slot { lane, number };
        let (length, payload) = (outbox.record(slot).length, outbox.shape().payload());
        if length > payload as u64 {
            return Err(Error::Length {
                lane,
                number,
                length,
                payload,
            });
        }
        let consumed = Receiving::consumed(inbox.counter(lane, Counter::Consumed));
        let consumed = consumed.min(carrier.come(lane)?);
        // SAFETY: `next` returns only a slot that the kernel has published, and whose place at the
        // peer is consumed. The kernel fills the slot again only once it has completed: an
        // implementor of `Memory` lets only code of this protocol reach the boxes.
        let has_room = unsafe { carrier.post(slot, length as usize, consumed)? };
        if has_room {
            self.sending.posted();
            self.receiving.returned(consumed);
        }
        Ok(has_room)
    }
}

fn impossible(lane: usize, wrong: Impossible) -> Error {
    let Impossible {
        counter,
        seen,
        least,
        most,
    } = wrong;
    Error::Count {
        lane,
        counter,
        seen,
        least,
        most,
    }
}
