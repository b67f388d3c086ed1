//! How the peer hears that lent messages are read, and may have their memory back.
//!
//! A device that waits for an answer in vain asks for it once more. Where the answer was only late, the
//! repetition reaches the peer's device when the read has ended here; and if the memory is deregistered by
//! then, that device fails the queue pair. So the peer must not hear of the end before the last repetition
//! has arrived. A queue pair's packets arrive in order: what says that a message is read goes by the rail that
//! has read it. When that is dropped, the peer will drop it as well, and another one may say the same again.

use super::Core;
use crate::rdma::link::immediate::Immediate;
use crate::rdma::link::returns::{Read, Returns};

impl Core {
    /// A lent message is read, by that rail, or by one that was dropped since.
    pub(super) fn give_back(&mut self, channel: usize, number: u64, reader: Option<usize>) {
        let read = Read { channel, number };
        let speaker = reader.filter(|rail| self.rails[*rail].is_some());
        let speaker = speaker.or_else(|| self.rails.iter().position(Option::is_some));
        // Without any, the link has failed.
        if let Some(rail) = speaker.and_then(|rail| self.rails[rail].as_mut()) {
            rail.returns.unsaid.push_back(read);
        }
    }

    /// Says what is to be said, as far as each rail has room for it.
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

    /// Now and then, so that it costs little.
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

    /// A rail has been dropped: another one says again what the peer may not have heard.
    pub(super) fn repeat_returns(&mut self, lost: Returns) {
        for Read { channel, number } in lost.said.into_iter().chain(lost.unsaid) {
            if !self.order.knows_read(channel, number) {
                self.give_back(channel, number, None);
            }
        }
    }

    /// Whether the peer is still to be told of messages that are read.
    pub(super) fn owes(&self) -> bool {
        let mut rails = self.rails();
        self.owed.iter().any(Option::is_some) || rails.any(|rail| !rail.returns.unsaid.is_empty())
    }
}
