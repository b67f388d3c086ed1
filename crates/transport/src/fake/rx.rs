//! The receiving half of a fake link.

use std::sync::Arc;

use parking_lot::Mutex;

use super::direction::{Direction, Message};
use super::random::Random;
use super::{Clock, Weather};
use crate::{Arrival, Geometry, LinkError, LinkRx};

/// The receiving half of a fake link. Dropping it closes the direction.
#[derive(Debug)]
pub struct Rx {
    clock: Clock,
    weather: Weather,
    random: Random,
    direction: Arc<Mutex<Direction>>,
    /// The message last peeked, by channel.
    held: Vec<Option<Message>>,
}

impl Rx {
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
            direction: Arc::clone(direction),
            held: (0..geometry.channels).map(|_| None).collect(),
        }
    }

    /// Takes the channel's next message out of the link.
    fn next(&mut self, channel: usize) -> Result<Option<Message>, LinkError> {
        let now = self.clock.now();
        // What arrived before the break can still be read; nothing arrives after it.
        let broken = self.weather.breaks_at.is_some_and(|at| at <= now);
        let seen = self.weather.breaks_at.map_or(now, |at| now.min(at));
        let mut direction = self.direction.lock();
        if let Some(message) = direction.channels[channel].arrived(seen) {
            return Ok(Some(message));
        }
        let drained = direction.channels[channel].in_flight.is_empty();
        let closed = drained && direction.sender_closed.is_some_and(|at| at <= now);
        if broken || closed {
            Err(LinkError::Closed)
        } else {
            Ok(None)
        }
    }
}

impl LinkRx for Rx {
    fn peek(&mut self, channel: usize) -> Result<Option<Arrival<'_>>, LinkError> {
        let count = self.held.len();
        let Some(held) = self.held.get(channel) else {
            return Err(LinkError::Misuse(format!("channel {channel} of {count}")));
        };
        if held.is_none() {
            if self.random.percent(self.weather.not_yet_percent) {
                return Ok(None);
            }
            self.held[channel] = self.next(channel)?;
        }
        Ok(self.held[channel].as_ref().map(|message| Arrival {
            tag: message.tag,
            payload: &message.payload,
        }))
    }

    fn release(&mut self, channel: usize) {
        if self.held.get_mut(channel).and_then(Option::take).is_some() {
            let due = self
                .clock
                .now()
                .saturating_add(self.random.within(&self.weather.delay));
            self.direction.lock().channels[channel].free(due);
        }
    }
}

impl Drop for Rx {
    fn drop(&mut self) {
        let due = self
            .clock
            .now()
            .saturating_add(self.random.within(&self.weather.delay));
        self.direction.lock().receiver_closed = Some(due);
    }
}
