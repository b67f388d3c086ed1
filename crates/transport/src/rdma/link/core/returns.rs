//! Tells the peer which lent messages have been read, so that it may reuse their memory.
//!
//! A device that gets no answer to a read repeats the request. If the answer was only late, the
//! repetition reaches the peer's device after the read has ended here; if the memory is
//! deregistered by then, that device fails the queue pair. The peer must therefore not learn that
//! the read has ended before the last repetition has arrived. A queue pair's packets arrive in
//! order, so the notice goes over the rail that has read the message. If that rail is dropped, the
//! peer drops it as well, and the notice is repeated over another one.

use super::{Core, UNRESERVED};
use crate::rdma::link::immediate::Immediate;
use crate::rdma::link::returns::Returns;

impl Core {
    /// Notes that a lent message was read over this rail; `None` if that has been dropped since.
    pub(super) fn give_back(&mut self, number: u64, reader: Option<usize>) {
        let speaker = reader.filter(|rail| self.rails[*rail].is_some());
        let speaker = speaker.or_else(|| self.rails.iter().position(Option::is_some));
        // Without any rail, the link has failed.
        if let Some(rail) = speaker.and_then(|rail| self.rails[rail].as_mut()) {
            rail.returns.unsaid.push_back(number);
        }
    }

    /// Sends the pending notices, as far as each rail has room for them.
    pub(super) fn say_returns(&mut self) {
        for index in 0..self.rails.len() {
            while self.failed.is_none()
                && let Some(rail) = &mut self.rails[index]
                && rail.has_room(UNRESERVED)
                && let Some(number) = rail.returns.unsaid.pop_front()
            {
                rail.returns.said.push_back(number);
                let number = number as u32;
                self.say(index, Immediate::Returned { number });
                self.forget_what_is_known(index);
            }
        }
    }

    /// Only from time to time, to keep the cost low.
    fn forget_what_is_known(&mut self, rail: usize) {
        let geometry = self.outgoing.geometry();
        let Self { rails, order, .. } = self;
        if let Some(rail) = &mut rails[rail]
            && rail.returns.said.len() > 2 * geometry.slots
        {
            let said = &mut rail.returns.said;
            said.retain(|&number| !order.knows_read(number));
        }
    }

    /// Repeats over another rail the notices of a dropped rail that may not have arrived.
    pub(super) fn repeat_returns(&mut self, lost: Returns) {
        for number in lost.said.into_iter().chain(lost.unsaid) {
            if !self.order.knows_read(number) {
                self.give_back(number, None);
            }
        }
    }

    /// Whether notices are still pending.
    pub(super) fn owes(&self) -> bool {
        let mut rails = self.rails();
        self.owed.is_some() || rails.any(|rail| !rail.returns.unsaid.is_empty())
    }
}
