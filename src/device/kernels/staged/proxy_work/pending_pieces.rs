//! Pieces that the host engine has.

use std::collections::VecDeque;

use spark_ccl_gpu::{Lane, Stage};

use crate::api::communicator::Communicator;
use crate::error::Error;
use crate::host::Ids;

/// Pieces that the host engine has, in the order in which they were begun.
#[derive(Default)]
pub(super) struct Flights(VecDeque<Flight>);

pub(super) struct Flight {
    pub(super) ids: Ids,
    pub(super) lane: Lane,
    pub(super) number: u64,
    /// Whether it is the last piece of an operation or a message.
    pub(super) is_last: bool,
}

impl Flights {
    pub(super) fn push(&mut self, flight: Flight) {
        self.0.push_back(flight);
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Answers for the pieces that are done, and counts the last ones; whether there were any
    /// pieces.
    pub(super) fn land(
        &mut self,
        stage: &Stage,
        carrier: &Communicator,
        done: &mut u64,
    ) -> Result<bool, Error> {
        let engine = carrier.inner.membership.engine();
        let mut landed = false;
        while let Some(flight) = self.0.front() {
            let Some(result) = flight.ids.take(engine) else {
                break;
            };
            result?;
            stage.answer(flight.lane, flight.number);
            *done += u64::from(flight.is_last);
            self.0.pop_front();
            landed = true;
        }
        Ok(landed)
    }

    /// Takes what has ended of the pieces that have failed; whether that was any.
    pub(super) fn land_failed(&mut self, carrier: &Communicator) -> bool {
        let engine = carrier.inner.membership.engine();
        let before = self.0.len();
        self.0.retain(|flight| flight.ids.take(engine).is_none());
        self.0.len() < before
    }
}
