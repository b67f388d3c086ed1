//! A carrier for tests: slots and credits are late, and overtake each other. A flag never comes
//! before its data, and a slot is read only when it is moved: so a test sees if it was written
//! again too early.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use spark_ccl_testing::scramble;

use crate::packets::{halves_of, packets_of};
use crate::{Carrier, Copying, Counter, Error, PostBox, Slot};

/// How many slots it takes at a time.
const ROOM: usize = 3;

pub(crate) struct Delayed {
    copying: Copying,
    peer: PostBox,
    flying: Vec<(Slot, usize)>,
    moved: Vec<Slot>,
    credits: Vec<(usize, u64)>,
    /// The halves of packets under way: each with its slot, its place there, and its value.
    halves: Vec<(u64, usize, u64)>,
    inbox: PostBox,
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
            copying: Copying::new(outbox, inbox.clone(), peer.clone(), is_gone),
            peer,
            flying: Vec::new(),
            moved: Vec::new(),
            credits: Vec::new(),
            halves: Vec::new(),
            inbox,
            random: seed,
        }
    }

    fn below(&mut self, limit: usize) -> usize {
        self.random = scramble(self.random, 1);
        self.random as usize % limit
    }

    /// Some halves of packets arrive. Halves for the same place arrive in their order.
    fn scatter(&mut self) {
        for _ in 0..self.halves.len().min(60) {
            let any = self.below(self.halves.len());
            let at = self.halves[any].1;
            let first = self.halves.iter().position(|half| half.1 == at).unwrap();
            let (number, at, half) = self.halves.remove(first);
            self.inbox.halves(number)[at].store(half, Ordering::Relaxed);
        }
    }

    /// Something arrives, or nothing.
    fn pass_time(&mut self) -> Result<(), Error> {
        self.scatter();
        match self.below(4) {
            0 if !self.flying.is_empty() => {
                let index = self.below(self.flying.len());
                let (slot, payload) = self.flying.swap_remove(index);
                // SAFETY: the caller of `post` has published this slot of `flying`, and lets
                // nothing write it before it has completed, which is not yet. The peer has consumed
                // the slot that was in its place.
                unsafe { self.copying.post(slot, payload, self.known[slot.lane])? };
                self.moved.extend(self.copying.completed()?);
            }
            1 if !self.credits.is_empty() => {
                let index = self.below(self.credits.len());
                let (lane, total) = self.credits.swap_remove(index);
                // Release pairs with the Acquire in `Copying::credit`. Totals may arrive in any
                // order.
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
    unsafe fn post(&mut self, slot: Slot, payload: usize, consumed: u64) -> Result<bool, Error> {
        self.pass_time()?;
        let has_room = self.flying.len() < ROOM;
        if has_room {
            self.flying.push((slot, payload));
            self.give_credit(slot.lane, consumed)?;
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

    fn post_packets(&mut self, number: u64, words: &[u64]) -> Result<bool, Error> {
        let has_room = self.below(2) == 0;
        if has_room {
            let all = words.iter().copied().chain(std::iter::repeat(0));
            let all = all.take(packets_of(number, words.len()));
            let halves = all.flat_map(|word| halves_of(number, word)).enumerate();
            self.halves
                .extend(halves.map(|(at, half)| (number, at, half)));
        }
        Ok(has_room)
    }

    fn health(&mut self) -> Result<(), Error> {
        self.copying.health()
    }
}
