//! Signals, and what they say. The tags of messages are digests: where a rank relies on more of what its peer has
//! called than the length of the message at hand, a signal spells it out.

use super::exec::Run;
use super::request::Program;
use super::wires::{CHANNEL, Obstacle};
use crate::buffer::Home;
use crate::signature::Side;
use spark_ccl_sched::Rank;

/// So many words still travel with a message's header over shared memory.
const MOST: usize = 5;

/// What a rank says to another one about their part of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Terms {
    words: [u64; MOST],
    len: usize,
}

/// Two ranks whose calls differ.
#[derive(Debug)]
pub(super) struct Disagreement {
    pub(super) here: Terms,
    pub(super) there: Terms,
}

impl Terms {
    fn new(said: &[u64]) -> Self {
        let (mut words, len) = ([0; MOST], said.len());
        words[..len].copy_from_slice(said);
        Self { words, len }
    }

    /// How many elements a rank sends to the other, and expects from it.
    fn counts(sent: u64, expected: u64) -> Self {
        Self::new(&[sent, expected])
    }

    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.words[..self.len])
    }

    /// What a peer has said; as much as it may say.
    fn read(bytes: &[u8]) -> Self {
        let mut terms = Self::default();
        for chunk in bytes.chunks_exact(size_of::<u64>()).take(MOST) {
            terms.words[terms.len] = bytemuck::pod_read_unaligned(chunk);
            terms.len += 1;
        }
        terms
    }

    /// For errors, of a rank that says this to `peer`.
    pub(super) fn describe(&self, peer: Rank) -> String {
        match self.words[..self.len] {
            [sent, expected] => {
                format!("{sent} elements to rank {peer} and {expected} from it")
            }
            [_, _, allocations, first, second] => {
                let (a, b) = (allocations as u32, allocations >> 32);
                format!("allocations {a} and {b} from bytes {first} and {second} on")
            }
            _ => "nothing more".to_owned(),
        }
    }
}

impl Run<'_> {
    /// An empty message, but for the terms.
    pub(super) fn signal(&mut self, channel: u32, peer: Rank) -> Result<bool, Obstacle> {
        let lane = self.base + channel as usize;
        let terms = self.terms(peer);
        let said = terms.bytes();
        match self.wires.tx(peer, lane)?.reserve(CHANNEL, said.len()) {
            Ok(Some(slot)) => slot.copy_from_slice(said),
            Ok(None) => return Err(Obstacle::Credit { peer }),
            Err(error) => return Err(Obstacle::Link { peer, error }),
        }
        self.wires.commit(peer, lane, said.len(), self.tag)?;
        Ok(true)
    }

    /// Takes the peer's signal, which must be on the same terms.
    pub(super) fn await_signal(&mut self, channel: u32, peer: Rank) -> Result<bool, Obstacle> {
        let lane = self.base + channel as usize;
        let expected = self.terms_of(peer);
        let rx = self.wires.rx(peer, lane)?;
        match rx.peek(CHANNEL) {
            Ok(Some(arrival)) if arrival.tag != self.tag => Err(Obstacle::Foreign {
                peer,
                tag: arrival.tag,
            }),
            Ok(Some(arrival)) if arrival.payload != expected.bytes() => {
                let there = Terms::read(arrival.payload);
                let here = self.terms(peer);
                let terms = Box::new(Disagreement { here, there });
                Err(Obstacle::Terms { peer, terms })
            }
            Ok(Some(_)) => {
                rx.release(CHANNEL);
                Ok(true)
            }
            Ok(None) => Err(Obstacle::Message { peer, lane }),
            Err(error) => Err(Obstacle::Link { peer, error }),
        }
    }

    /// What this rank says to the peer.
    fn terms(&self, peer: Rank) -> Terms {
        match self.program {
            Program::Blocks(blocks) => {
                let peer = peer as usize;
                Terms::counts(blocks.sent[peer], blocks.expected[peer])
            }
            _ if self.task.signature.place != 0 => self.place(),
            _ => Terms::default(),
        }
    }

    /// What the peer is to say to this rank.
    fn terms_of(&self, peer: Rank) -> Terms {
        match self.program {
            Program::Blocks(blocks) => {
                let peer = peer as usize;
                Terms::counts(blocks.expected[peer], blocks.sent[peer])
            }
            _ => self.terms(peer),
        }
    }

    /// All that says what peers may reach of this rank's registered memory.
    fn place(&self) -> Terms {
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
        Terms::new(&[
            head,
            count,
            allocations,
            first.offset as u64,
            second.offset as u64,
        ])
    }
}
