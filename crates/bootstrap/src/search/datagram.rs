//! The datagrams as bytes. Pure functions.

use super::SearchKey;
use crate::Secret;
use crate::handshake::WorldName;
use crate::wire::{Reader, WireError, Writer};
use crate::wiring::MOST_RANKS;

const MAGIC: [u8; 4] = *b"SCCN";
const LABEL: &[u8] = b"note";
const TAG: usize = 32;
/// The length of a datagram in bytes.
pub(super) const LENGTH: usize = 4 + 8 + 1 + 8 + 2 + 1 + TAG;
/// The most ranks that pass a connection on.
const MOST_HOPS: u8 = MOST_RANKS as u8;

/// A random number of a question, repeated in its answers. Answers to other runs are ignored.
pub(super) type Nonce = [u8; 8];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Datagram {
    pub(super) world: WorldName,
    pub(super) what: What,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    /// Who has reached the rendezvous?
    Question { nonce: Nonce },
    /// This rank has, and passes connections on at `port`, by way of `hops` ranks, itself included.
    Answer { nonce: Nonce, port: u16, hops: u8 },
}

impl Datagram {
    pub(super) fn encode(&self, key: &Secret) -> Vec<u8> {
        let (kind, nonce, port, hops) = match self.what {
            What::Question { nonce } => (0, nonce, 0, 0),
            What::Answer { nonce, port, hops } => (1, nonce, port, hops),
        };
        let mut to = Writer::default();
        to.bytes(&MAGIC).bytes(&self.world);
        to.u8(kind).bytes(&nonce).u16(port).u8(hops);
        let mut bytes = to.finish();
        bytes.extend(key.sign(LABEL, &bytes));
        bytes
    }

    /// Decodes a datagram; `None` unless a rank of this world has sent it.
    pub(super) fn decode(bytes: &[u8], datagram_key: &SearchKey) -> Option<What> {
        let (content, tag) = bytes.split_last_chunk::<TAG>()?;
        let read = || -> Result<(WorldName, u8, Nonce, u16, u8), WireError> {
            let mut from = Reader::new(content);
            if from.array()? != MAGIC {
                return Err(WireError::Field("mark"));
            }
            let (world, kind, nonce) = (from.array()?, from.u8()?, from.array()?);
            let fields = (world, kind, nonce, from.u16()?, from.u8()?);
            from.end()?;
            Ok(fields)
        };
        let (world, kind, nonce, port, hops) = read().ok()?;
        // Comparing the world's name first saves the digest for datagrams of other worlds.
        if world != datagram_key.world || !datagram_key.key.verify(LABEL, content, tag) {
            return None;
        }
        match kind {
            0 => Some(What::Question { nonce }),
            1 if (1..=MOST_HOPS).contains(&hops) => Some(What::Answer { nonce, port, hops }),
            _ => None,
        }
    }
}
