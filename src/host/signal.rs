//! Signals: messages without elements, by which two ranks check that their calls agree.

use spark_ccl_sched::Rank;
use spark_ccl_types::Side;

use super::call_details::{CallDetails, Disagreement};
use super::run::Run;
use super::wires::Obstacle;
use crate::memory::buffer::Home;
use crate::plan::Program;

impl Run<'_> {
    /// Sends a message with only this payload.
    pub(super) fn signal(&mut self, channel: u32, peer: Rank) -> Result<bool, Obstacle> {
        let lane = self.first_lane + channel as usize;
        let details = self.details(peer);
        let said = details.bytes();
        match self.wires.tx(peer, lane)?.reserve(said.len()) {
            Ok(Some(slot)) => slot.copy_from_slice(said),
            Ok(None) => return Err(self.wires.busy(peer, lane)),
            Err(error) => return Err(Obstacle::Link { peer, error }),
        }
        self.wires.commit(peer, lane, said.len(), self.tag)?;
        Ok(true)
    }

    /// Takes the peer's signal, whose payload must be the expected one.
    pub(super) fn await_signal(&mut self, channel: u32, peer: Rank) -> Result<bool, Obstacle> {
        let lane = self.first_lane + channel as usize;
        let expected = self.details_of(peer);
        let rx = self.wires.rx(peer, lane)?;
        match rx.peek() {
            Ok(Some(arrival)) if arrival.tag != self.tag => Err(Obstacle::TagMismatch {
                peer,
                tag: arrival.tag,
            }),
            Ok(Some(arrival)) if arrival.payload != expected.bytes() => {
                let there = CallDetails::read(arrival.payload);
                let here = self.details(peer);
                let details = Box::new(Disagreement { here, there });
                Err(Obstacle::Disagreement { peer, details })
            }
            Ok(Some(_)) => {
                rx.release();
                Ok(true)
            }
            Ok(None) => Err(Obstacle::Message { peer, lane }),
            Err(error) => Err(Obstacle::Link { peer, error }),
        }
    }

    /// The signal to the peer.
    fn details(&self, peer: Rank) -> CallDetails {
        match self.program {
            Program::Blocks(blocks) => {
                let peer = peer as usize;
                CallDetails::counts(blocks.sent[peer], blocks.expected[peer])
            }
            _ if self.task.signature.place != 0 => self.place(),
            _ => CallDetails::default(),
        }
    }

    /// The signal that is expected from the peer.
    fn details_of(&self, peer: Rank) -> CallDetails {
        match self.program {
            Program::Blocks(blocks) => {
                let peer = peer as usize;
                CallDetails::counts(blocks.expected[peer], blocks.sent[peer])
            }
            _ => self.details(peer),
        }
    }

    /// Everything that defines which part of this rank's registered memory peers may access.
    fn place(&self) -> CallDetails {
        let signature = self.task.signature;
        let home = |side: Side| -> Option<(&Home, u32)> {
            let home = match side {
                Side::Input => self.task.input.home.as_ref(),
                Side::Output => self.task.output.home.as_ref(),
            };
            home.and_then(|home| Some((home, home.segment.allocation()?.id)))
        };
        let sides = signature.operation.shared(signature.in_place);
        let Some([Some((first, a)), Some((second, b))]) = sides.map(|sides| sides.map(home)) else {
            unreachable!("the plan has found where the memory is");
        };
        let [head, count] = signature.words();
        let allocations = u64::from(a) | u64::from(b) << 32;
        CallDetails::new(&[
            head,
            count,
            allocations,
            first.offset as u64,
            second.offset as u64,
        ])
    }
}
