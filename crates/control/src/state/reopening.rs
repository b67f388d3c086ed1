//! Heartbeats, and reopening broken streams: applies the decisions of `../repair.rs` to the
//! neighbours.

use std::time::{Duration, Instant};

use spark_ccl_seal::Stream;

use super::ControlState;
use crate::member_table::MemberTable;
use crate::neighbour::{Neighbour, Retry, StreamEnding};
use crate::repair::{Repair, SILENT, Unreached};

/// How often each neighbour gets a heartbeat.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// How soon to write again after the system had no memory for it.
const MEMORY_PAUSE: Duration = Duration::from_millis(100);

/// A stream to be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attempt {
    pub(crate) peer: u32,
    pub(crate) number: u32,
}

impl ControlState {
    /// Starts to reopen a stream that has ended. Returns `false` if that is impossible or not
    /// needed any more.
    pub(super) fn start_repair(&mut self, index: usize, end: &StreamEnding, now: Instant) -> bool {
        let neighbour = &mut self.neighbours[index];
        let is_over = self.departures.contains_key(&neighbour.peer) || neighbour.is_done_writing();
        let Some(repair) = neighbour.repair.as_mut().filter(|_| !is_over) else {
            return false;
        };
        let error = match end {
            StreamEnding::Garbled(_) => return false,
            StreamEnding::Closed => "it was closed".to_owned(),
            StreamEnding::Failed(error) => error.clone(),
        };
        let name = &self.names[neighbour.peer as usize];
        spark_ccl_log::warn!("the control stream to {name} broke: {error}; it will be reopened");
        repair.mark_broken(error, now);
        neighbour.drop_stream();
        // The others decide by the ranks that this one says it hears.
        self.heartbeat(now);
        true
    }

    /// Sends heartbeats to all neighbours. If all of them are on this host, none are needed: the
    /// kernel ends their streams when this process dies.
    fn heartbeat(&mut self, now: Instant) {
        self.last_heartbeat = Some(now);
        if self
            .neighbours
            .iter()
            .any(|neighbour| neighbour.repair.is_some())
        {
            let hears = self.hears(now);
            self.neighbours
                .iter_mut()
                .for_each(|neighbour| neighbour.heartbeat(&hears, now));
        }
    }

    /// The neighbours that were heard lately.
    pub(super) fn hears(&self, now: Instant) -> Vec<u32> {
        let heard = self.neighbours.iter().filter(|neighbour| {
            let silent = now.saturating_duration_since(neighbour.heard) > SILENT;
            neighbour.is_reading && !(silent && neighbour.repair.is_some())
        });
        heard.map(|neighbour| neighbour.peer).collect()
    }

    /// When [`tick`](Self::tick) has something to do next.
    fn next_tick(&self, now: Instant) -> Option<Instant> {
        let repairs = self
            .neighbours
            .iter()
            .filter_map(|neighbour| neighbour.repair.as_ref());
        let tries = repairs.clone().filter_map(Repair::next_try);
        let heartbeat = repairs.clone().next().map(|_| self.next_heartbeat(now));
        let reports = self.tables.values().filter_map(MemberTable::next_reports);
        let write = self
            .neighbours
            .iter()
            .find(|neighbour| lacks_memory(neighbour));
        let write = write.map(|_| now + MEMORY_PAUSE);
        tries.chain(heartbeat).chain(reports).chain(write).min()
    }

    /// Returns when the monitor thread has to wake up, and records it for [`is_due_before_wakeup`].
    ///
    /// [`is_due_before_wakeup`]: Self::is_due_before_wakeup
    pub(crate) fn plan_sleep(&mut self, now: Instant) -> Option<Instant> {
        self.wakes_at = self.next_tick(now);
        self.wakes_at
    }

    /// Whether something is due before the monitor thread wakes up.
    pub(crate) fn is_due_before_wakeup(&self, now: Instant) -> bool {
        let next = self.next_tick(now);
        next.is_some_and(|next| self.wakes_at.is_none_or(|until| next < until))
    }

    fn next_heartbeat(&self, now: Instant) -> Instant {
        self.last_heartbeat
            .map_or(now, |last_heartbeat| last_heartbeat + HEARTBEAT_INTERVAL)
    }

    /// Does what is due, and returns the streams to open.
    pub(crate) fn tick(&mut self, now: Instant) -> Vec<Attempt> {
        let held_up = self
            .neighbours
            .iter_mut()
            .filter(|neighbour| lacks_memory(neighbour));
        held_up.for_each(Neighbour::flush);
        self.report_late(now);
        if self.redial.is_none() {
            return Vec::new();
        }
        if self.next_heartbeat(now) <= now {
            self.heartbeat(now);
        }
        let mut attempts = Vec::new();
        for index in 0..self.neighbours.len() {
            self.apply_failure(index, now);
            let neighbour = &mut self.neighbours[index];
            let is_over =
                self.departures.contains_key(&neighbour.peer) || neighbour.is_done_writing();
            let Some(repair) = &mut neighbour.repair else {
                continue;
            };
            if is_over {
                *repair = Repair::default();
                continue;
            }
            if neighbour.is_reading && now.saturating_duration_since(neighbour.heard) < SILENT {
                repair.clear_suspicion();
            } else if neighbour.is_reading {
                repair.suspect(neighbour.heard);
            }
            let peer = neighbour.peer;
            attempts.extend(repair.attempt(now).map(|number| Attempt { peer, number }));
        }
        attempts
    }

    /// Records the outcome of an attempt.
    pub(crate) fn attempt_ended(
        &mut self,
        attempt: Attempt,
        outcome: Result<Stream, Unreached>,
        now: Instant,
    ) {
        let Attempt { peer, number } = attempt;
        let Some(index) = self
            .neighbours
            .iter()
            .position(|neighbour| neighbour.peer == peer)
        else {
            return;
        };
        let Some(repair) = &mut self.neighbours[index].repair else {
            return;
        };
        repair.attempt_in_flight = false;
        match outcome {
            Ok(stream) => self.adopt(peer, number, self.me > peer, stream, now),
            // The neighbour has opened a stream meanwhile: the failure does not matter.
            Err(_) if number <= repair.number => {}
            Err(outcome) => {
                spark_ccl_log::debug!("no new control stream to rank {peer} yet: {outcome:?}");
                repair.failed(outcome, now);
                self.apply_failure(index, now);
            }
        }
    }

    /// Takes a new stream into use, which either of the two ranks has opened.
    pub(crate) fn adopt(
        &mut self,
        peer: u32,
        number: u32,
        by_higher: bool,
        stream: Stream,
        now: Instant,
    ) {
        let is_gone = self.departures.contains_key(&peer);
        let neighbour = self
            .neighbours
            .iter_mut()
            .find(|neighbour| neighbour.peer == peer);
        let Some(neighbour) =
            neighbour.filter(|neighbour| !is_gone && !neighbour.is_done_writing())
        else {
            return;
        };
        let accepts = neighbour.repair.as_ref();
        if !accepts.is_some_and(|repair| repair.accepts(number, by_higher)) {
            return;
        }
        let name = &self.names[peer as usize];
        if let Err(error) = neighbour.renew(stream, now) {
            spark_ccl_log::warn!("a new control stream to {name} cannot be used: {error}");
            return;
        }
        if let Some(repair) = &mut neighbour.repair {
            repair.renewed(number, by_higher);
        }
        spark_ccl_log::info!("the control stream to {name} is open again");
        self.heartbeat(now);
    }

    /// Gives a neighbour up once it counts as lost.
    fn apply_failure(&mut self, index: usize, now: Instant) {
        let Some(redial) = &self.redial else { return };
        let neighbour = &self.neighbours[index];
        let peer = neighbour.peer;
        let Some(repair) = neighbour.repair.as_ref() else {
            return;
        };
        if self.departures.contains_key(&peer) || neighbour.is_done_writing() {
            return;
        }
        let mut others = self.neighbours.iter().filter(|other| other.is_reading);
        let witness = others.find(|other| other.hears(peer, now));
        let witness = witness.map(|other| &*self.names[other.peer as usize]);
        let silence = now.saturating_duration_since(neighbour.heard);
        let Some(failure) = repair.failure(silence, witness, redial) else {
            return;
        };
        self.neighbours[index].close();
        self.neighbours[index].drop_stream();
        self.report_gone(peer, failure);
    }
}

/// Whether the system had no memory for the last write.
fn lacks_memory(neighbour: &Neighbour) -> bool {
    neighbour.retry == Some(Retry::AfterPause)
}
