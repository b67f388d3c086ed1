//! Tells the peer which lent messages have been read, so that it may reuse their memory.
//!
//! A device that gets no answer to a read repeats the request. If the answer was only late, the repetition reaches
//! the peer's device after the read has ended here; if the memory is deregistered by then, that device fails the
//! queue pair. The peer must therefore not learn that the read has ended before the last repetition has arrived. A
//! queue pair's packets arrive in order, so the notice goes over the rail that has read the message. If that rail
//! is dropped, the peer drops it as well, and the notice is repeated over another one.

use super::Core;
use crate::rdma::link::immediate::Immediate;
use crate::rdma::link::returns::{Read, Returns};

impl Core {
    /// Notes that a lent message was read over this rail; `None` if that has been dropped since.
    pub(super) fn give_back(&mut self, channel: usize, number: u64, reader: Option<usize>) {
        let read = Read { channel, number };
        let speaker = reader.filter(|rail| self.rails[*rail].is_some());
        let speaker = speaker.or_else(|| self.rails.iter().position(Option::is_some));
        // Without any rail, the link has failed.
        if let Some(rail) = speaker.and_then(|rail| self.rails[rail].as_mut()) {
            rail.returns.unsaid.push_back(read);
        }
    }

    /// Sends the pending notices, as far as each rail has room for them.
    pub(super) fn say_returns(&mut self) {
        let writes = self.unreserved();
        for index in 0..self.rails.len() {
            while self.failed.is_none()
                && let Some(rail) = &mut self.rails[index]
                && rail.has_room(writes)
                && let Some(read) = rail.returns.unsaid.pop_front()
            {
                rail.returns.said.push_back(read);
                let Read { channel, number } = read;
                let number = number as u32;
                self.say(index, Immediate::Returned { channel, number });
                self.forget_what_is_known(index);
            }
        }
    }

    /// Only from time to time, to keep the cost low.
    fn forget_what_is_known(&mut self, rail: usize) {
        let geometry = self.outgoing.geometry();
        let Self { rails, order, .. } = self;
        if let Some(rail) = &mut rails[rail]
            && rail.returns.said.len() > 2 * geometry.slots * geometry.channels
        {
            let said = &mut rail.returns.said;
            said.retain(|read| !order.knows_read(read.channel, read.number));
        }
    }

    /// Repeats over another rail the notices of a dropped rail that may not have arrived.
    pub(super) fn repeat_returns(&mut self, lost: Returns) {
        for Read { channel, number } in lost.said.into_iter().chain(lost.unsaid) {
            if !self.order.knows_read(channel, number) {
                self.give_back(channel, number, None);
            }
        }
    }

    /// Whether notices are still pending.
    pub(super) fn owes(&self) -> bool {
        let mut rails = self.rails();
        self.owed.iter().any(Option::is_some) || rails.any(|rail| !rail.returns.unsaid.is_empty())
    }
}
