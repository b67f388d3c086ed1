//! Puts a failed rail back into use.
//!
//! Once both ends have dropped a rail, the first end tries from time to time whether it works
//! again. It offers a new queue pair; the other end connects one of its own to it, and offers that
//! in turn; they exchange greetings as when the link was made, the first end first; and each sends
//! its verdict once. If both verdicts are good, the rail is in use again, at each end from the
//! moment when it has both sent and received a good verdict. What the peer sends before that waits
//! in the new completion queue.
//!
//! Nothing here blocks: calls for which the kernel may need time are made by threads.

use std::time::Instant;

use super::Core;
use super::attempt::{Environment, Outcome, Try};
use super::failover::Dead;
use super::job::discard;
use crate::LinkError;
use crate::rdma::link::offer::End;

impl Core {
    /// Advances the return of rails that both ends have dropped.
    pub(super) fn revive(&mut self) {
        if self.failed.is_some() {
            return;
        }
        let is_ending = !self.announcements.is_empty();
        for index in (0..self.dead.len()).rev() {
            let dead = &mut self.dead[index];
            if self.control.is_closed || !dead.is_confirmed {
                continue;
            }
            if !is_ending && !self.is_neglected {
                dead.begin();
            }
            let Some(attempt) = &mut dead.attempt else {
                continue;
            };
            let environment = Environment {
                plan: &dead.plan,
                rail: dead.rail,
                start: dead.start,
                slots: &self.outgoing,
                control: &mut self.control,
            };
            // While nobody polls, no try begins, and one that the peer does not know of ends.
            let is_neglected = self.is_neglected && attempt.is_unknown_to_peer();
            attempt.advance(environment, is_ending || is_neglected);
            self.order.set_silent(dead.rail, !attempt.may_be_in_use());
            match attempt.outcome() {
                None => {}
                Some(Outcome::Carries) => self.put_back(index),
                Some(other) => dead.give_up(other),
            }
        }
    }

    /// Puts a rail back into use.
    fn put_back(&mut self, index: usize) {
        let Dead {
            rail,
            name,
            pair,
            pace,
            attempt,
            ..
        } = self.dead.swap_remove(index);
        discard(pair);
        let Some(mut revived) = attempt.and_then(Try::into_rail) else {
            return;
        };
        revived.pace = pace.slower(Instant::now());
        // A thread may be about to block on its notifications. (If this fails, waits still end
        // after a while.)
        let _ = revived.queue.arm(false);
        self.rails[rail] = Some(revived);
        while self.poll_rail(rail) {}
        self.returned += 1;
        spark_ccl_log::info!("{name} carries again");
        // The peer expects these on every rail that it uses.
        for what in self.announcements.clone() {
            self.say(rail, what);
        }
    }

    /// Takes the peer's offer of a queue pair.
    pub(super) fn hear_offer(&mut self, rail: usize, end: End) -> Result<(), LinkError> {
        let dead = self.confirmed(rail)?;
        match &mut dead.attempt {
            None if !dead.plan.is_first => {
                dead.attempt = Some(Try::new(&dead.plan, Some(end)));
                Ok(())
            }
            Some(attempt) if dead.plan.is_first => attempt.hear_answer(end, dead.start),
            _ => Err(out_of_turn(rail)),
        }
    }

    /// Takes the peer's verdict on whether the rail works.
    pub(super) fn hear_trial_result(&mut self, rail: usize, works: bool) -> Result<(), LinkError> {
        let dead = self.confirmed(rail)?;
        let attempt = dead.attempt.as_mut().ok_or_else(|| out_of_turn(rail))?;
        attempt.hear_trial_result(works)?;
        // The peer's next message may be about the rail that has just returned.
        self.revive();
        Ok(())
    }

    fn confirmed(&mut self, rail: usize) -> Result<&mut Dead, LinkError> {
        let mut dead = self.dead.iter_mut();
        dead.find(|dead| dead.rail == rail && dead.is_confirmed)
            .ok_or_else(|| out_of_turn(rail))
    }
}

fn out_of_turn(rail: usize) -> LinkError {
    LinkError::Protocol(format!(
        "the peer talks about the return of rail {rail} when it must not"
    ))
}

impl Dead {
    /// Begins a try, if this is the first end and the pause is over.
    fn begin(&mut self) {
        let is_due = self.plan.is_first && self.pace.is_over(Instant::now());
        if is_due && self.attempt.is_none() {
            self.attempt = Some(Try::new(&self.plan, None));
        }
    }

    fn give_up(&mut self, outcome: Outcome) {
        let now = Instant::now();
        discard(self.attempt.take());
        self.pace = match outcome {
            // Querying a port costs little.
            Outcome::Untried => self.pace.again(now),
            _ => self.pace.slower(now),
        };
    }

    #[cfg(test)]
    pub(in super::super) fn is_first(&self) -> bool {
        self.plan.is_first
    }

    #[cfg(test)]
    pub(in super::super) fn is_tried(&self) -> bool {
        self.attempt.is_some()
    }

    #[cfg(test)]
    pub(in super::super) fn is_unknown_to_peer(&self) -> bool {
        let attempt = self.attempt.as_ref();
        attempt.is_some_and(Try::is_unknown_to_peer)
    }

    /// Whether the peer may use it already, but has not sent its verdict.
    pub(in super::super) fn is_undecided(&self) -> bool {
        let attempt = self.attempt.as_ref();
        attempt.is_some_and(Try::is_undecided)
    }
}
