//! Failover: keeps a link going when one of its rails fails.
//!
//! The end that notices the failure moves its queue pair to the error state, processes what has
//! arrived, and reports to the peer, which does the same. After that, an end accepts nothing more
//! over the rail. An end that has received the other's report therefore has a final account of what
//! the rail has delivered, and sends the rest again over the other rails.

use std::sync::Arc;
use std::time::{Duration, Instant};

use spark_ccl_verbs::{CompletionQueue, Failed, QueuePair};

use super::attempt::Try;
use super::{Core, Missed, PAUSE, RECEIVE, UNRESERVED, unload};
use crate::rdma::link::message::ControlMessage;
use crate::rdma::link::pace::Pace;
use crate::rdma::link::plan::Plan;
use crate::rdma::link::rail::Ended;
use crate::rdma::link::report::ArrivalReport;
use crate::{LinkError, Rails};

/// How long a device may take to flush the requests of a failed queue pair.
const FLUSH: Duration = Duration::from_secs(1);

/// A rail that has failed.
#[derive(Debug)]
pub(in super::super) struct Dead {
    pub(super) rail: usize,
    pub(super) name: String,
    problem: String,
    /// Destroyed when the rail returns, or with the link. `None` if it was destroyed earlier,
    /// because its device did not flush the requests.
    pub(in super::super) pair: Option<QueuePair<Failed>>,
    /// The peer has dropped it as well.
    pub(super) is_confirmed: bool,
    /// The plan of its next queue pair, and the address of the peer's slots.
    pub(super) plan: Arc<Plan>,
    pub(super) start: u64,
    /// When it is tried next.
    pub(super) pace: Pace,
    pub(super) attempt: Option<Try>,
}

impl Core {
    #[cfg(test)]
    pub(in super::super) fn dead(&self) -> &[Dead] {
        &self.dead
    }

    /// Makes the last look at the failed rails this much longer ago.
    #[cfg(test)]
    pub(in super::super) fn pass(&mut self, time: Duration) {
        let tries = self
            .dead
            .iter_mut()
            .filter_map(|dead| dead.attempt.as_mut());
        tries.for_each(|attempt| attempt.pass(time));
    }

    /// Why this end of the link has failed.
    pub(in super::super) fn failed(&self) -> Option<&LinkError> {
        self.failed.as_ref()
    }

    pub(in super::super) fn health(&self) -> Rails {
        Rails {
            in_use: self.rails().count(),
            dropped: self.dropped,
            returned: self.returned,
        }
    }

    /// A rail's plan, whether it is dropped or not.
    pub(super) fn plan(&self, rail: usize) -> Option<&Plan> {
        let mut dead = self.dead.iter();
        match &self.rails[rail] {
            Some(rail) => Some(&rail.plan),
            None => dead.find(|dead| dead.rail == rail).map(|dead| &*dead.plan),
        }
    }

    /// Whether reports or messages are still outstanding because of a failed rail.
    pub(super) fn is_failing_over(&self) -> bool {
        let mut dead = self.dead.iter();
        !self.missed.is_empty()
            || self.has_lost_puts()
            || self.control.holds_back()
            || dead.any(Dead::needs_peer)
    }

    /// Takes a rail out of use.
    pub(in super::super) fn drop_rail(&mut self, rail: usize, problem: String) {
        if !self.stop_rail(rail, problem) {
            return;
        }
        self.dropped += 1;
        self.control
            .say(&ControlMessage::ArrivalReport(ArrivalReport {
                rail,
                progress: self.order.progress(),
            }));
        if self.rails().next().is_none()
            && let Some(Dead { name, problem, .. }) = self.dead.last()
        {
            let (name, problem) = (name.clone(), problem.clone());
            self.fail(name, problem);
        }
    }

    /// Stops a rail: it accepts nothing more from the peer, and its device writes no more to memory
    /// here. Returns whether this call has stopped it.
    pub(super) fn stop_rail(&mut self, rail: usize, problem: String) -> bool {
        let Some(lost) = self.rails[rail].take() else {
            return false;
        };
        let name = lost.name;
        let pair = match lost.pair.into_failed() {
            Ok(pair) => pair,
            Err(error) => {
                self.lose_control(name, &problem, &error);
                return false;
            }
        };
        let asked = self.last_asked(rail).max(self.last_put(rail));
        // A request that could not be posted does not end.
        let asked = asked.min(lost.posted);
        let ended = self.drain(rail, &lost.queue, lost.ended, asked);
        // A destroyed queue pair does not write either.
        let pair = if ended.last >= asked {
            Some(pair)
        } else if let Err(error) = pair.destroy() {
            self.lose_control(name, &problem, &error);
            return false;
        } else {
            None
        };
        self.ask_again(rail, ended.well);
        self.lose_puts(rail, ended.well);
        self.repeat_returns(lost.returns);
        self.dead.push(Dead {
            rail,
            name,
            problem,
            pair,
            is_confirmed: false,
            plan: lost.plan,
            start: lost.remote.addr,
            pace: lost.pace.resumed(Instant::now()),
            attempt: None,
        });
        true
    }

    /// Fails the link because a rail cannot be stopped: its device may still write what it was
    /// reading. The peer must not be told that the rail delivers nothing more, and no other rail
    /// may deliver the same. This error replaces any earlier one.
    fn lose_control(&mut self, rail: String, problem: &str, error: &spark_ccl_verbs::Error) {
        self.registry.lose_control();
        let problem = format!(
            "{problem}; then {error}. The device may still write to memory of this process: end \
             it, and look for the device's trouble in the kernel's log"
        );
        spark_ccl_log::error!("{rail}: {problem}");
        self.failed = Some(LinkError::Rdma { rail, problem });
    }

    /// Processes everything that has arrived over a stopped rail, and waits up to [`FLUSH`] for the
    /// request `awaited` to end. Until then, the device may write to memory into which it reads,
    /// and read memory that it puts.
    fn drain(
        &mut self,
        rail: usize,
        queue: &CompletionQueue,
        mut ended: Ended,
        awaited: u64,
    ) -> Ended {
        let until = Instant::now() + FLUSH;
        let mut room = self.room.take().unwrap_or_default();
        while let Ok(completions) = queue.poll(&mut room) {
            let mut count = 0;
            for completion in completions {
                count += 1;
                match completion {
                    Ok(completion) if completion.wr_id == RECEIVE => self.note(rail, completion),
                    Ok(completion) => ended.note(completion.wr_id, true),
                    Err(error) if error.wr_id == RECEIVE => {}
                    Err(error) => ended.note(error.wr_id, false),
                }
            }
            if count > 0 {
                continue;
            }
            if ended.last >= awaited || Instant::now() >= until {
                break;
            }
            std::thread::sleep(PAUSE);
        }
        self.room = Some(room);
        ended
    }

    /// Processes the peer's messages about failed rails, and advances failover and return.
    pub(in super::super) fn look_after(&mut self) {
        while self.failed.is_none() {
            match self.control.hear() {
                Ok(Some(message)) => self.heed(message),
                Ok(None) => break,
                Err(error) => drop(self.failed.get_or_insert(error)),
            }
        }
        self.revive();
        self.control.flush();
        let waiting = self.dead.iter().find(|dead| dead.needs_peer());
        if self.control.is_closed
            && let Some(Dead { name, problem, .. }) = waiting
        {
            let (name, problem) = (name.clone(), problem.clone());
            self.fail(
                name,
                format!(
                    "{problem}; and the other rails are of no use, because the peer has not \
                     confirmed what has become of this one: it has ended the link, is gone, or TCP \
                     to it goes by the same cable (NCCL_SOCKET_IFNAME chooses another)"
                ),
            );
        }
        self.resend();
        self.repeat_puts();
    }

    fn heed(&mut self, message: ControlMessage) {
        let heeded = match message {
            ControlMessage::ArrivalReport(report) => self.confirm(&report),
            ControlMessage::Offer { rail, end } => self.hear_offer(rail, end),
            ControlMessage::TrialResult { rail, works } => self.hear_trial_result(rail, works),
        };
        if let Err(error) = heeded {
            self.failed.get_or_insert(error);
        }
    }

    /// Drops rails that have failed silently. Completions must have been polled just before.
    pub(super) fn probe(&mut self) {
        // Only the control stream may have failed. A peer that closed in order has announced that
        // before.
        let may_be_gone = self.control.is_closed && !self.order.sender_gone();
        for index in 0..self.rails.len() {
            let Some(rail) = &mut self.rails[index] else {
                continue;
            };
            match rail.probe(may_be_gone, &self.outgoing) {
                Ok(true) => {}
                Ok(false) => {
                    let problem = format!(
                        "for {:?}, the device has not said that anything has ended: check the \
                         port, the network interface and its address, here and at the peer",
                        rail.retry_time
                    );
                    self.drop_rail(index, problem);
                }
                Err(error) => self.drop_rail(index, error.to_string()),
            }
        }
    }

    /// Takes the peer's report that it has dropped a rail.
    fn confirm(&mut self, report: &ArrivalReport) -> Result<(), LinkError> {
        let rail = report.rail;
        self.drop_rail(rail, "the peer has dropped it".to_owned());
        let rails = &mut self.rails;
        let missed = self.order.note_report(report, |load| unload(rails, load))?;
        self.missed.extend(missed);
        self.free_puts(rail);
        let left: Vec<_> = self.rails().map(|rail| rail.name.clone()).collect();
        let Some(dead) = self.dead.iter_mut().find(|dead| dead.rail == rail) else {
            return Ok(());
        };
        if std::mem::replace(&mut dead.is_confirmed, true) {
            let problem = format!("the peer drops {} twice", dead.name);
            return Err(LinkError::Protocol(problem));
        }
        if !left.is_empty() {
            let (name, left) = (&dead.name, left.join(", "));
            spark_ccl_log::warn!("{name} is dropped, {left} carries on: {}", dead.problem);
        }
        Ok(())
    }

    /// Sends again what failed rails have not delivered, as far as the others have room for it.
    fn resend(&mut self) {
        while self.failed.is_none() && self.rails().all(|rail| rail.has_room(UNRESERVED)) {
            let Some(Missed { number, bytes }) = self.missed.pop_front() else {
                return;
            };
            if self.order.is_on_its_way(number) {
                // SAFETY: the peer has not acknowledged the message, so its slot is not written
                // again.
                let sent = unsafe { self.transmit(number, bytes) };
                if let Ok(load) = sent {
                    self.order.note_sent_again(number, load);
                }
            }
        }
    }
}

impl Dead {
    /// Whether the peer has to send its report or verdict before it is known what the rail
    /// delivers.
    fn needs_peer(&self) -> bool {
        !self.is_confirmed || self.is_undecided()
    }
}
