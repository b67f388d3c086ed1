//! The sending half of a fake link.

use std::collections::VecDeque;
use std::sync::Arc;

use spark_ccl_log::Mutex;

use super::direction::{Direction, FakeMessage};
use super::random::Random;
use super::{Clock, Weather};
use crate::{Geometry, LinkError, LinkTx};

/// The sending half of a fake link. Dropping it closes the direction; what was not flushed is lost.
#[derive(Debug)]
pub struct Tx {
    clock: Clock,
    weather: Weather,
    random: Random,
    slot_bytes: usize,
    direction: Arc<Mutex<Direction>>,
    credits: usize,
    lent: Option<Vec<u8>>,
    /// Messages that were committed but not flushed completely.
    held_back: VecDeque<FakeMessage>,
    /// How many bytes of the first of them have been flushed.
    left: usize,
}

impl Tx {
    pub(super) fn new(
        clock: &Clock,
        geometry: Geometry,
        weather: &Weather,
        direction: &Arc<Mutex<Direction>>,
        random: Random,
    ) -> Self {
        Self {
            clock: clock.clone(),
            weather: weather.clone(),
            random,
            slot_bytes: geometry.slot_bytes,
            direction: Arc::clone(direction),
            credits: geometry.slots,
            lent: None,
            held_back: VecDeque::new(),
            left: 0,
        }
    }

    fn check_open(&self) -> Result<(), LinkError> {
        let now = self.clock.now();
        let broken = self.weather.breaks_at.is_some_and(|at| at <= now);
        let closed = self
            .direction
            .lock()
            .receiver_closed
            .is_some_and(|at| at <= now);
        if broken || closed {
            Err(LinkError::Closed)
        } else {
            Ok(())
        }
    }

    /// Moves up to `budget` bytes.
    fn move_on(&mut self, mut budget: usize) {
        let now = self.clock.now();
        let mut direction = self.direction.lock();
        while let Some(message) = self.held_back.front() {
            // An empty message counts as one byte, so that a flush cannot move any number of them.
            let missing = message.payload.len().max(1) - self.left;
            if missing > budget {
                self.left += budget;
                return;
            }
            budget -= missing;
            self.left = 0;
            if let Some(message) = self.held_back.pop_front() {
                let due = now.saturating_add(self.random.within(&self.weather.delay));
                direction.send(due, message);
            }
        }
    }
}

impl LinkTx for Tx {
    fn reserve(&mut self, len: usize) -> Result<Option<&mut [u8]>, LinkError> {
        if len > self.slot_bytes {
            return Err(LinkError::Misuse(format!(
                "a message of {len} bytes in slots of {}",
                self.slot_bytes
            )));
        }
        self.check_open()?;
        self.credits += self.direction.lock().take_freed(self.clock.now());
        if self.lent.is_none() {
            if self.credits == 0 || self.random.percent(self.weather.not_yet_percent) {
                return Ok(None);
            }
            self.credits -= 1;
        }
        let buffer = self.lent.get_or_insert_default();
        buffer.resize(len, 0);
        Ok(Some(buffer))
    }

    fn commit(&mut self, len: usize, tag: u64) -> Result<(), LinkError> {
        let payload = self
            .lent
            .take_if(|payload| payload.len() == len)
            .ok_or_else(|| {
                LinkError::Misuse(format!(
                    "commit of {len} bytes without a reservation of as many"
                ))
            })?;
        self.check_open()?;
        self.held_back.push_back(FakeMessage { tag, payload });
        Ok(())
    }

    fn holds_back(&self) -> bool {
        !self.held_back.is_empty()
    }

    fn flush(&mut self) -> Result<bool, LinkError> {
        self.check_open()?;
        let most = (self.weather.flush_bytes as u64).max(1);
        let mut budget = self.random.within(&(1..=most)) as usize;
        if self.weather.flush_bytes == usize::MAX {
            budget = usize::MAX;
        }
        self.move_on(budget);
        Ok(self.held_back.is_empty())
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        let due = self
            .clock
            .now()
            .saturating_add(self.random.within(&self.weather.delay));
        self.direction.lock().sender_closed = Some(due);
    }
}
