//! A carrier for tests: slots and credits are late, and overtake each other. A flag never comes
//! before its data, and a slot is read when it is moved: so one that was written too early shows.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use spark_ccl_testing::scramble;

use crate::{Carrier, Copying, Counter, Error, PostBox, Slot};

/// How many slots it takes at a time.
const ROOM: usize = 3;

pub(crate) struct Delayed {
    copying: Copying,
    peer: PostBox,
    flying: Vec<(Slot, usize)>,
    moved: Vec<Slot>,
    credits: Vec<(usize, u64)>,
    /// The largest total of each lane that has arrived.
    known: Vec<u64>,
    random: u64,
}

impl Delayed {
    pub(crate) fn new(
        outbox: PostBox,
        inbox: PostBox,
        peer: PostBox,
        is_gone: Arc<AtomicBool>,
        seed: u64,
    ) -> Self {
        Self {
            known: vec![0; peer.shape().lanes()],
            copying: Copying::new(outbox, inbox, peer.clone(), is_gone),
            peer,
            flying: Vec::new(),
            moved: Vec::new(),
            credits: Vec::new(),
            random: seed,
        }
    }

    fn below(&mut self, limit: usize) -> usize {
        self.random = scramble(self.random, 1);
        self.random as usize % limit
    }

    /// Something arrives, or nothing.
    fn pass_time(&mut self) -> Result<(), Error> {
        match self.below(4) {
            0 if !self.flying.is_empty() => {
                let index = self.below(self.flying.len());
                let (slot, payload) = self.flying.swap_remove(index);
                // SAFETY: it was given to this carrier to post, and has not completed.
                unsafe { self.copying.post(slot, payload)? };
                self.moved.extend(self.copying.completed()?);
            }
            1 if !self.credits.is_empty() => {
                let index = self.below(self.credits.len());
                let (lane, total) = self.credits.swap_remove(index);
                // Release, as in `Copying::give_credit`; totals go down at times.
                let credit = self.peer.counter(lane, Counter::Credit);
                credit.store(total, Ordering::Release);
                let known = self.known[lane].max(total);
                self.known[lane] = known;
                if total < known {
                    self.credits.push((lane, known));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

impl Carrier for Delayed {
    unsafe fn post(&mut self, slot: Slot, payload: usize) -> Result<bool, Error> {
        self.pass_time()?;
        let has_room = self.flying.len() < ROOM;
        if has_room {
            self.flying.push((slot, payload));
        }
        Ok(has_room)
    }

    fn completed(&mut self) -> Result<Option<Slot>, Error> {
        self.pass_time()?;
        if self.moved.is_empty() || self.below(2) == 0 {
            return Ok(None);
        }
        let index = self.below(self.moved.len());
        Ok(Some(self.moved.swap_remove(index)))
    }

    fn give_credit(&mut self, lane: usize, total: u64) -> Result<bool, Error> {
        self.credits.push((lane, total));
        Ok(true)
    }

    fn credit(&mut self, lane: usize) -> u64 {
        self.copying.credit(lane)
    }

    fn health(&mut self) -> Result<(), Error> {
        self.copying.health()
    }
}
