//! The sending half of a fake link.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use super::direction::{Direction, Message};
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
    channels: Vec<Channel>,
}

#[derive(Debug)]
struct Channel {
    credits: usize,
    lent: Option<Vec<u8>>,
    /// Messages that were committed but not flushed completely.
    held_back: VecDeque<Message>,
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
        let channel = || Channel {
            credits: geometry.slots,
            lent: None,
            held_back: VecDeque::new(),
            left: 0,
        };
        Self {
            clock: clock.clone(),
            weather: weather.clone(),
            random,
            slot_bytes: geometry.slot_bytes,
            direction: Arc::clone(direction),
            channels: std::iter::repeat_with(channel)
                .take(geometry.channels)
                .collect(),
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

    fn check_channel(&self, channel: usize) -> Result<(), LinkError> {
        if channel < self.channels.len() {
            return Ok(());
        }
        Err(LinkError::Misuse(format!(
            "channel {channel} of {}",
            self.channels.len()
        )))
    }

    /// Moves up to `budget` bytes of one channel. Returns the rest of the budget.
    fn move_on(&mut self, channel: usize, mut budget: usize) -> usize {
        let now = self.clock.now();
        let mut direction = self.direction.lock();
        let state = &mut self.channels[channel];
        while let Some(message) = state.held_back.front() {
            // An empty message counts as one byte, so that a flush cannot move any number of them.
            let missing = message.payload.len().max(1) - state.left;
            if missing > budget {
                state.left += budget;
                return 0;
            }
            budget -= missing;
            state.left = 0;
            if let Some(message) = state.held_back.pop_front() {
                let due = now.saturating_add(self.random.within(&self.weather.delay));
                direction.channels[channel].send(due, message);
            }
        }
        budget
    }
}

impl LinkTx for Tx {
    fn reserve(&mut self, channel: usize, len: usize) -> Result<Option<&mut [u8]>, LinkError> {
        self.check_channel(channel)?;
        if len > self.slot_bytes {
            return Err(LinkError::Misuse(format!(
                "a message of {len} bytes in slots of {}",
                self.slot_bytes
            )));
        }
        self.check_open()?;
        let state = &mut self.channels[channel];
        state.credits += self.direction.lock().channels[channel].take_freed(self.clock.now());
        if state.lent.is_none() {
            if state.credits == 0 || self.random.percent(self.weather.not_yet_percent) {
                return Ok(None);
            }
            state.credits -= 1;
        }
        let buffer = state.lent.get_or_insert_default();
        buffer.resize(len, 0);
        Ok(Some(buffer))
    }

    fn commit(&mut self, channel: usize, len: usize, tag: u64) -> Result<(), LinkError> {
        self.check_channel(channel)?;
        let lent = &mut self.channels[channel].lent;
        let payload = lent
            .take_if(|payload| payload.len() == len)
            .ok_or_else(|| {
                LinkError::Misuse(format!(
                    "commit of {len} bytes on channel {channel} without a reservation of as many"
                ))
            })?;
        self.check_open()?;
        self.channels[channel]
            .held_back
            .push_back(Message { tag, payload });
        Ok(())
    }

    fn holds_back(&self, channel: usize) -> bool {
        self.channels
            .get(channel)
            .is_some_and(|channel| !channel.held_back.is_empty())
    }

    fn flush(&mut self) -> Result<bool, LinkError> {
        self.check_open()?;
        let count = self.channels.len();
        let most = (self.weather.flush_bytes as u64).max(1);
        let mut budget = self.random.within(&(1..=most)) as usize;
        if self.weather.flush_bytes == usize::MAX {
            budget = usize::MAX;
        }
        let first = (self.random.next() % count.max(1) as u64) as usize;
        for offset in 0..count {
            budget = self.move_on((first + offset) % count, budget);
        }
        Ok(self
            .channels
            .iter()
            .all(|channel| channel.held_back.is_empty()))
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
