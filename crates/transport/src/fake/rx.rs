//! The receiving half of a fake link.

use std::sync::Arc;

use spark_ccl_log::Mutex;

use super::direction::{Direction, FakeMessage};
use super::random::Random;
use super::{Clock, Weather};
use crate::{Arrival, LinkError, LinkRx};

/// The receiving half of a fake link. Dropping it closes the direction.
#[derive(Debug)]
pub struct Rx {
    clock: Clock,
    weather: Weather,
    random: Random,
    direction: Arc<Mutex<Direction>>,
    /// The message last peeked.
    held: Option<FakeMessage>,
}

impl Rx {
    pub(super) fn new(
        clock: &Clock,
        weather: &Weather,
        direction: &Arc<Mutex<Direction>>,
        random: Random,
    ) -> Self {
        Self {
            clock: clock.clone(),
            weather: weather.clone(),
            random,
            direction: Arc::clone(direction),
            held: None,
        }
    }

    /// Takes the next message out of the link.
    fn next(&mut self) -> Result<Option<FakeMessage>, LinkError> {
        let now = self.clock.now();
        // What arrived before the break can still be read; nothing arrives after it.
        let broken = self.weather.breaks_at.is_some_and(|at| at <= now);
        let seen = self.weather.breaks_at.map_or(now, |at| now.min(at));
        let mut direction = self.direction.lock();
        if let Some(message) = direction.arrived(seen) {
            return Ok(Some(message));
        }
        let drained = direction.in_flight.is_empty();
        let closed = drained && direction.sender_closed.is_some_and(|at| at <= now);
        if broken || closed {
            Err(LinkError::Closed)
        } else {
            Ok(None)
        }
    }
}

impl LinkRx for Rx {
    fn peek(&mut self) -> Result<Option<Arrival<'_>>, LinkError> {
        if self.held.is_none() {
            if self.random.percent(self.weather.not_yet_percent) {
                return Ok(None);
            }
            self.held = self.next()?;
        }
        Ok(self.held.as_ref().map(|message| Arrival {
            tag: message.tag,
            payload: &message.payload,
        }))
    }

    fn release(&mut self) {
        if self.held.take().is_some() {
            let due = self
                .clock
                .now()
                .saturating_add(self.random.within(&self.weather.delay));
            self.direction.lock().free(due);
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
