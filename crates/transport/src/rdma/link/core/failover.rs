//! How a link goes on when one of its rails fails.
//!
//! The end that notices moves its queue pair to the error state, takes note of what has arrived, and
//! reports to the peer, which does the same. An end that has failed the rail takes nothing more that
//! comes by it. So an end that has heard the other's report knows what the rail has carried, and that
//! nothing else of it can ever land there: it sends the rest once more, by the other rails.

use std::sync::Arc;
use std::time::{Duration, Instant};

use spark_ccl_verbs::{CompletionQueue, Failed, QueuePair};

use super::attempt::Try;
use super::{Core, Missed, PAUSE, RECEIVE, unload};
use crate::rdma::link::message::Message;
use crate::rdma::link::pace::Pace;
use crate::rdma::link::plan::Plan;
use crate::rdma::link::rail::Ended;
use crate::rdma::link::report::Report;
use crate::{LinkError, Rails};

/// For so long a device may take to end what was posted on a queue pair that has failed.
const FLUSH: Duration = Duration::from_secs(1);

/// A rail that has failed.
#[derive(Debug)]
pub(in super::super) struct Dead {
    pub(super) rail: usize,
    pub(super) name: String,
    problem: String,
    /// Destroyed when the rail returns, or with the link; or before, where its device has not ended what
    /// was posted.
    pub(in super::super) pair: Option<QueuePair<Failed>>,
    /// The peer has failed it, too.
    pub(super) is_confirmed: bool,
    /// What its next queue pair is made from, and where the peer's slots begin.
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

    /// Why the link has ended at this end.
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

    /// What a rail's queue pairs are made from, be it dropped or not.
    pub(super) fn plan(&self, rail: usize) -> Option<&Plan> {
        let mut dead = self.dead.iter();
        match &self.rails[rail] {
            Some(rail) => Some(&rail.plan),
            None => dead.find(|dead| dead.rail == rail).map(|dead| &*dead.plan),
        }
    }

    /// Whether something is still to be said, heard or sent because of a rail that failed.
    pub(super) fn is_failing_over(&self) -> bool {
        let mut dead = self.dead.iter();
        !self.missed.is_empty() || self.control.holds_back() || dead.any(Dead::needs_peer)
    }

    /// Takes a rail out of use.
    pub(in super::super) fn drop_rail(&mut self, rail: usize, problem: String) {
        if !self.stop_rail(rail, problem) {
            return;
        }
        self.dropped += 1;
        self.control.say(&Message::Report(Report {
            rail,
            channels: self.order.progress(),
        }));
        if self.rails().next().is_none()
            && let Some(Dead { name, problem, .. }) = self.dead.last()
        {
            let (name, problem) = (name.clone(), problem.clone());
            self.fail(name, problem);
        }
    }

    /// Has a rail take nothing more from the peer and bring nothing more to memory here; whether that is
    /// so, and was not before.
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
        let asked = self.last_asked(rail);
        let ended = self.drain(rail, &lost.queue, lost.ended, asked);
        // A queue pair that is destroyed writes nothing either.
        let pair = if ended.last >= asked {
            Some(pair)
        } else if let Err(error) = pair.destroy() {
            self.lose_control(name, &problem, &error);
            return false;
        } else {
            None
        };
        self.ask_again(rail, ended.well);
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

    /// A rail cannot be stopped, so that its device may still write what it was to read. The peer must not be told that
    /// nothing lands here any more, and no other rail may bring the same. This counts, whatever has ended the link before.
    fn lose_control(&mut self, rail: String, problem: &str, error: &spark_ccl_verbs::Error) {
        self.registry.lose_control();
        let problem = format!(
            "{problem}; then {error}. The device may still write to memory of this process: end it, and look \
             for the device's trouble in the kernel's log"
        );
        tracing::error!("{rail}: {problem}");
        self.failed = Some(LinkError::Rdma { rail, problem });
    }

    /// Takes note of everything that has arrived by a rail that takes nothing more, and waits a while for
    /// the end of the request of that number: until it has ended, the device may write what it reads.
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

    /// Listens to what the peer says about rails that failed, and does what is to be done about them.
    pub(in super::super) fn attend(&mut self) {
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
                    "{problem}; and the other rails are of no use, because the peer has not confirmed \
                     what has become of this one: it has ended the link, is gone, or TCP to it goes by \
                     the same cable (NCCL_SOCKET_IFNAME chooses another)"
                ),
            );
        }
        self.resend();
    }

    fn heed(&mut self, message: Message) {
        let heeded = match message {
            Message::Report(report) => self.confirm(&report),
            Message::Offer { rail, end } => self.hear_offer(rail, end),
            Message::Verdict { rail, works } => self.hear_verdict(rail, works),
        };
        if let Err(error) = heeded {
            self.failed.get_or_insert(error);
        }
    }

    /// Drops rails that carry nothing and do not say so. Completions were looked for just now.
    pub(super) fn probe(&mut self) {
        // Its stream may also have failed alone. One that has ended in order has said so before.
        let may_be_gone = self.control.is_closed && !self.order.sender_gone();
        for index in 0..self.rails.len() {
            let Some(rail) = &mut self.rails[index] else {
                continue;
            };
            match rail.probe(may_be_gone, &self.outgoing) {
                Ok(true) => {}
                Ok(false) => {
                    let problem = format!(
                        "for {:?}, the device has not said that anything has ended: check the port, the \
                         network interface and its address, here and at the peer",
                        rail.patience
                    );
                    self.drop_rail(index, problem);
                }
                Err(error) => self.drop_rail(index, error.to_string()),
            }
        }
    }

    /// The peer takes nothing more by a rail.
    fn confirm(&mut self, report: &Report) -> Result<(), LinkError> {
        let rail = report.rail;
        self.drop_rail(rail, "the peer has dropped it".to_owned());
        let rails = &mut self.rails;
        let missed = self.order.note_report(report, |load| unload(rails, load))?;
        self.missed.extend(missed);
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
            tracing::warn!("{name} is dropped, {left} carries on: {}", dead.problem);
        }
        Ok(())
    }

    /// Sends what failed rails have not carried, as far as the others have room for it.
    fn resend(&mut self) {
        let writes = self.unreserved();
        while self.failed.is_none() && self.rails().all(|rail| rail.has_room(writes)) {
            let Some(Missed {
                channel,
                number,
                bytes,
            }) = self.missed.pop_front()
            else {
                return;
            };
            if self.order.is_on_its_way(channel, number) {
                // SAFETY: the peer has not said that it has read the message.
                let sent = unsafe { self.transmit(channel, number, bytes) };
                if let Ok(load) = sent {
                    self.order.note_sent_again(channel, number, load);
                }
            }
        }
    }
}

impl Dead {
    /// Whether nobody knows what arrives by it until the peer has said something.
    fn needs_peer(&self) -> bool {
        !self.is_confirmed || self.is_undecided()
    }
}
