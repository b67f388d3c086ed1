//! Posts what kernels publish, and tells them and the peer what has become of it.

use crate::counters::{Impossible, Receiving, Sending};
use crate::{Carrier, Counter, Error, PostBox, Slot};

/// Some lanes between this rank and a peer, in both directions. Lanes need nothing of each other,
/// so those of a pair may be shared out among threads, with a carrier and a proxy for each.
#[derive(Debug)]
pub struct Proxy<C> {
    outbox: PostBox,
    inbox: PostBox,
    carrier: C,
    lanes: Vec<Lane>,
    /// Which of these has the first turn next time: the one after the last that has posted.
    first: usize,
}

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
    /// The last one that was given to the carrier.
    pub posted: u64,
    /// All up to this one have completed.
    pub sent: u64,
    /// The most that the peer has said to have consumed.
    pub credit: u64,
    /// How many of the peer's slots were consumed here, as it was told.
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
            first: 0,
        }
    }

    /// Does what there is to do, and never waits; whether there was anything. A lane that has no
    /// room holds up no other, and lanes take turns where the carrier has room for one.
    ///
    /// # Errors
    /// The peer cannot be reached any more, or a counter or a record is not what it can be. What
    /// the peer has said before is part of the [progress](Self::progress).
    pub fn turn(&mut self) -> Result<bool, Error> {
        self.pass().inspect_err(|_| {
            for lane in &mut self.lanes {
                // The first error says more.
                let _ = lane.sending.hear_last(|| self.carrier.credit(lane.number));
            }
        })
    }

    fn pass(&mut self) -> Result<bool, Error> {
        let mut moved = false;
        while let Some(Slot { lane, number }) = self.carrier.completed()? {
            let sent = self.outbox.counter(lane, Counter::Sent);
            // A carrier completes what it was given, which is of these lanes.
            let mut mine = self.lanes.iter_mut().filter(|mine| mine.number == lane);
            let completed = mine.try_for_each(|mine| mine.sending.complete(number, sent));
            completed.map_err(|wrong| impossible(lane, wrong))?;
            moved = true;
        }
        let (first, count) = (self.first, self.lanes.len());
        for index in (first..count).chain(0..first) {
            let lane = &mut self.lanes[index];
            moved |= lane.give_credit(&self.inbox, &mut self.carrier)?;
            if lane.post(&self.outbox, &mut self.carrier)? {
                (self.first, moved) = ((index + 1) % count, true);
            }
        }
        if !moved {
            self.carrier.health()?;
        }
        Ok(moved)
    }

    /// What moves the slots.
    pub fn carrier(&self) -> &C {
        &self.carrier
    }

    /// The same, to be told something.
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
    fn give_credit(&mut self, inbox: &PostBox, carrier: &mut impl Carrier) -> Result<bool, Error> {
        let consumed = inbox.counter(self.number, Counter::Consumed);
        let Some(total) = self.receiving.due(consumed) else {
            return Ok(false);
        };
        let given = carrier.give_credit(self.number, total)?;
        if given {
            self.receiving.returned(total);
        }
        Ok(given)
    }

    /// Posts the next slot, if there is one.
    fn post(&mut self, outbox: &PostBox, carrier: &mut impl Carrier) -> Result<bool, Error> {
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
        // SAFETY: the kernel has published the slot, and fills it again only once it has completed;
        // the peer has consumed what was in its place: `next` names no other, and all that reaches
        // the boxes uses them so (the contract of `Memory`).
        let has_room = unsafe { carrier.post(slot, length as usize)? };
        if has_room {
            self.sending.posted();
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
