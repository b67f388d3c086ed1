//! The report that an end sends when a rail has failed.

use crate::Geometry;

/// A rail has failed at the sender of this report, which accepts nothing more over it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ArrivalReport {
    pub(super) rail: usize,
    /// The messages sent and arrived, over any rail.
    pub(super) progress: Progress,
}

/// The progress of messages at one end. Messages are numbered from 1 in each direction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Progress {
    /// Messages sent.
    pub(super) sent: u64,
    /// Messages read.
    pub(super) read: u64,
    /// Which of the messages after those, one per slot, have arrived.
    pub(super) arrived: Vec<bool>,
}

impl ArrivalReport {
    /// The size of a report for a link of this geometry.
    pub(super) fn len(geometry: Geometry) -> usize {
        4 + 16 + geometry.slots.div_ceil(8)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = (self.rail as u32).to_le_bytes().to_vec();
        let Progress {
            sent,
            read,
            arrived,
        } = &self.progress;
        bytes.extend(sent.to_le_bytes());
        bytes.extend(read.to_le_bytes());
        bytes.extend(arrived.chunks(8).map(|eight| {
            let bits = eight.iter().enumerate();
            bits.fold(0, |byte, (bit, arrived)| byte | u8::from(*arrived) << bit)
        }));
        bytes
    }

    /// Decodes a report; `None` if no peer of this version sends it for this link.
    pub(super) fn decode(bytes: &[u8], rails: usize, geometry: Geometry) -> Option<Self> {
        if bytes.len() != Self::len(geometry) {
            return None;
        }
        let (rail, progress) = bytes.split_first_chunk()?;
        let rail = u32::from_le_bytes(*rail) as usize;
        let progress = Progress::decode(progress, geometry.slots)?;
        let report = Self { rail, progress };
        (rail < rails).then_some(report)
    }
}

impl Progress {
    fn decode(bytes: &[u8], slots: usize) -> Option<Self> {
        let (sent, bytes) = bytes.split_first_chunk()?;
        let (read, bits) = bytes.split_first_chunk()?;
        let bit = |index: usize| bits[index / 8] >> (index % 8) & 1 == 1;
        if (slots..bits.len() * 8).any(bit) {
            return None;
        }
        Some(Self {
            sent: u64::from_le_bytes(*sent),
            read: u64::from_le_bytes(*read),
            arrived: (0..slots).map(bit).collect(),
        })
    }
}
