//! The accounts of a link: which messages are in flight in each direction. Independent of devices.

use super::immediate::{Immediate, distance};
use super::report::{ArrivalReport, Progress};
use super::slots::HEADER_BYTES;
use crate::{Geometry, LinkError};

/// The accounts of a link's end. Messages are numbered from 1 in each direction.
#[derive(Debug)]
pub(super) struct Order {
    /// Messages sent.
    sent: u64,
    /// The number of slots that the peer has returned, at most one for each message sent.
    returned: u64,
    /// The message in each slot.
    slots: Vec<Sent>,
    /// Messages read.
    read: u64,
    /// The payload bytes of the message in each slot, if it has arrived and was not read.
    arrived: Vec<Option<u32>>,
    /// How many messages the peer has reported as sent, of which failed rails may not have
    /// delivered all.
    promised: u64,
    slot_bytes: usize,
    /// Whether the peer's sender sends nothing more over each rail.
    silent: Vec<bool>,
    /// The peer's sender itself has announced that it is gone.
    sender_said: bool,
    /// The peer's receiver accepts nothing more.
    pub(super) receiver_gone: bool,
}

/// A message that was sent.
#[derive(Debug, Clone, Copy, Default)]
struct Sent {
    /// The rail that carries it and its bytes; `None` if that rail has failed since.
    load: Option<Load>,
    is_lent: bool,
    /// The peer has reported that it has read it.
    is_read: bool,
}

/// Bytes in flight over a rail.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) rail: usize,
    pub(super) bytes: u64,
}

/// A message that its rail has not delivered to the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Missed {
    pub(super) number: u64,
    /// The size of header and payload.
    pub(super) bytes: u64,
}

impl Order {
    pub(super) fn new(geometry: Geometry, rails: usize) -> Self {
        Self {
            sent: 0,
            returned: 0,
            slots: vec![Sent::default(); geometry.slots],
            read: 0,
            arrived: vec![None; geometry.slots],
            promised: 0,
            slot_bytes: geometry.slot_bytes,
            silent: vec![false; rails],
            sender_said: false,
            receiver_gone: false,
        }
    }

    /// The number of the next message, if its slot is free.
    pub(super) fn next_to_send(&self) -> Option<u64> {
        let free = self.sent - self.returned < self.slots.len() as u64;
        free.then_some(self.sent + 1)
    }

    /// Notes that the next message was sent.
    pub(super) fn note_sent(&mut self, load: Load, is_lent: bool) {
        self.sent += 1;
        let slot = self.slot(self.sent);
        self.slots[slot] = Sent {
            load: Some(load),
            is_lent,
            is_read: false,
        };
    }

    /// The number and payload bytes of the next message, if it has arrived.
    pub(super) fn next_to_read(&self) -> Option<(u64, usize)> {
        self.arrived(0)
    }

    /// The same for the message that is `behind` places after the next one.
    pub(super) fn arrived(&self, behind: u64) -> Option<(u64, usize)> {
        let number = self.read + 1 + behind;
        let is_near = behind < self.arrived.len() as u64;
        let bytes = self.arrived[self.slot(number)].filter(|_| is_near)?;
        Some((number, bytes as usize))
    }

    /// Notes that the next message was read; returns its number, unless there was none.
    pub(super) fn note_read(&mut self) -> Option<u64> {
        let slot = self.slot(self.read + 1);
        self.arrived[slot].take()?;
        self.read += 1;
        Some(self.read)
    }

    /// Whether the peer has certainly been told that the message was read: it has sent another one
    /// in the same slot.
    pub(super) fn knows_read(&self, number: u64) -> bool {
        number + self.slots.len() as u64 <= self.read
    }

    /// Whether the peer's sender is gone, and everything that it sent has arrived.
    pub(super) fn sender_gone(&self) -> bool {
        self.sender_said && self.silent.iter().all(|silent| *silent) && self.is_complete()
    }

    /// Notes that `bytes` bytes with an immediate value have arrived over a rail. Calls `returned`
    /// for what is no longer in flight.
    pub(super) fn note(
        &mut self,
        rail: usize,
        said: Immediate,
        bytes: u32,
        mut returned: impl FnMut(Load),
    ) -> Result<(), LinkError> {
        match said {
            Immediate::Hello => {}
            Immediate::SenderGone => {
                self.sender_said = true;
                self.silent[rail] = true;
            }
            Immediate::ReceiverGone => self.receiver_gone = true,
            Immediate::Message { number } => {
                let most = (HEADER_BYTES + self.slot_bytes) as u32;
                let fits = (HEADER_BYTES as u32..=most).contains(&bytes);
                let taken = fits && self.arrive(number, bytes);
                if !taken {
                    return Err(LinkError::Protocol(format!(
                        "message {number} of {bytes} bytes has no place here"
                    )));
                }
            }
            Immediate::Released { number } => {
                let number = self.sent_as(number)?;
                self.take_back(number, &mut returned);
            }
            Immediate::Returned { number } => {
                let number = self.sent_as(number)?;
                self.take_loan_back(number, &mut returned);
            }
        }
        Ok(())
    }

    /// Sets whether the peer's sender sends nothing more over a rail.
    pub(super) fn set_silent(&mut self, rail: usize, is_silent: bool) {
        self.silent[rail] = is_silent;
    }

    /// The messages sent and arrived at this end.
    pub(super) fn progress(&self) -> Progress {
        let next = self.read + 1..=self.read + self.arrived.len() as u64;
        Progress {
            sent: self.sent,
            read: self.read,
            arrived: next
                .map(|number| self.arrived[self.slot(number)].is_some())
                .collect(),
        }
    }

    /// Notes that a rail has failed at both ends. Calls `returned` for what is no longer in flight,
    /// and returns the messages that the rail has not delivered.
    pub(super) fn note_report(
        &mut self,
        report: &ArrivalReport,
        mut returned: impl FnMut(Load),
    ) -> Result<Vec<Missed>, LinkError> {
        self.silent[report.rail] = true;
        let peer = &report.progress;
        self.check(peer).map_err(|problem| {
            LinkError::Protocol(format!("the peer's report about its messages: {problem}"))
        })?;
        self.promised = self.promised.max(peer.sent);
        self.take_back(peer.read, &mut returned);
        let carried = self.forget(report.rail);
        Ok(carried.filter(|missed| !peer.has(missed.number)).collect())
    }

    /// Whether the message was sent and its slot has not been returned.
    pub(super) fn is_on_its_way(&self, number: u64) -> bool {
        (self.returned + 1..=self.sent).contains(&number)
    }

    /// Notes that the message was sent again.
    pub(super) fn note_sent_again(&mut self, number: u64, load: Load) {
        let slot = self.slot(number);
        self.slots[slot].load = Some(load);
    }

    fn slot(&self, number: u64) -> usize {
        (number % self.arrived.len() as u64) as usize
    }

    /// Notes the arrival of a message; returns whether its slot was free.
    fn arrive(&mut self, number: u32, bytes: u32) -> bool {
        let ahead = distance(number, self.read);
        if !(1..=self.arrived.len() as i64).contains(&ahead) {
            return false;
        }
        let slot = self.slot(self.read + ahead as u64);
        let payload = bytes - HEADER_BYTES as u32;
        self.arrived[slot].replace(payload).is_none()
    }

    /// Whether all messages that the peer has reported as sent have arrived.
    fn is_complete(&self) -> bool {
        let mut promised = self.read + 1..=self.promised;
        promised.all(|number| self.arrived[self.slot(number)].is_some())
    }

    /// The full number of a message that the peer reports as read. Reports over several rails may
    /// arrive in any order and repeatedly.
    fn sent_as(&self, number: u32) -> Result<u64, LinkError> {
        let ahead = distance(number, self.returned);
        if ahead > (self.sent - self.returned) as i64 {
            return Err(LinkError::Protocol(format!(
                "of {} messages, the peer says it has read {ahead} more than {}",
                self.sent, self.returned
            )));
        }
        Ok(self.returned.saturating_add_signed(ahead))
    }

    /// Notes that the peer has read the messages up to this number that are not lent.
    fn take_back(&mut self, number: u64, returned: &mut impl FnMut(Load)) {
        for number in self.returned + 1..=number {
            let slot = self.slot(number);
            self.slots[slot].is_read |= !self.slots[slot].is_lent;
        }
        self.pass_on(returned);
    }

    /// Notes that the peer has read the lent message with this number, and will not read it again.
    fn take_loan_back(&mut self, number: u64, returned: &mut impl FnMut(Load)) {
        if number > self.returned {
            let slot = self.slot(number);
            self.slots[slot].is_read = true;
            self.pass_on(returned);
        }
    }

    fn pass_on(&mut self, returned: &mut impl FnMut(Load)) {
        while self.returned < self.sent && self.slots[self.slot(self.returned + 1)].is_read {
            self.returned += 1;
            if let Some(load) = self.slots[self.slot(self.returned)].load {
                returned(load);
            }
        }
    }

    /// Checks that the peer's report is possible.
    fn check(&self, peer: &Progress) -> Result<(), String> {
        let last = peer.arrived.iter().rposition(|arrived| *arrived);
        let last = last.map_or(0, |index| index as u64 + 1);
        if peer.read > self.sent || last > self.sent - peer.read {
            return Err(format!(
                "it has read {} messages and has {last} more, of {}",
                peer.read, self.sent
            ));
        }
        if peer.sent > self.read + self.arrived.len() as u64 {
            return Err(format!(
                "it has sent {} messages, of which {} are read here",
                peer.sent, self.read
            ));
        }
        Ok(())
    }

    /// Returns the messages that a rail was carrying, and removes the rail from them: when it
    /// returns, they must not count for it.
    fn forget(&mut self, rail: usize) -> impl Iterator<Item = Missed> {
        let open = self.returned + 1..=self.sent;
        open.filter_map(move |number| {
            let slot = self.slot(number);
            let load = self.slots[slot].load.take_if(|load| load.rail == rail)?;
            let bytes = load.bytes;
            Some(Missed { number, bytes })
        })
    }
}

impl Progress {
    /// Whether the message has arrived.
    fn has(&self, number: u64) -> bool {
        let index = number.checked_sub(self.read + 1);
        index.is_none_or(|index| self.arrived.get(index as usize) == Some(&true))
    }
}

#[cfg(test)]
mod tests;
