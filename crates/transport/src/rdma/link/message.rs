//! The control messages about rails that fail and return.

use super::offer::End;
use super::report::ArrivalReport;
use crate::Geometry;

const REPORT: u8 = 0;
const OFFER: u8 = 1;
const TRIAL_RESULT: u8 = 2;

/// Numbers of queue pairs and packets have 24 bits.
const NUMBERS: u32 = 1 << 24;

/// A control message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ControlMessage {
    /// A rail has failed.
    ArrivalReport(ArrivalReport),
    /// A queue pair with which a rail may return. The first end offers one, and the other end
    /// answers with its own.
    Offer { rail: usize, end: End },
    /// Whether this end has found the rail to work again. Each end sends it once per try.
    TrialResult { rail: usize, works: bool },
}

impl ControlMessage {
    /// The size of every message that starts with this byte, for a link of this geometry.
    pub(super) fn len(first: u8, geometry: Geometry) -> Option<usize> {
        let rest = match first {
            REPORT => ArrivalReport::len(geometry),
            OFFER => 4 + 12 + 1,
            TRIAL_RESULT => 4 + 1,
            _ => return None,
        };
        Some(1 + rest)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Self::ArrivalReport(report) => [&[REPORT][..], &report.encode()].concat(),
            Self::Offer { rail, end } => {
                let End {
                    qp_num,
                    psn,
                    rkey,
                    reads,
                } = *end;
                let numbers = [*rail as u32, qp_num, psn, rkey].map(u32::to_le_bytes);
                [&[OFFER][..], numbers.as_flattened(), &[reads]].concat()
            }
            Self::TrialResult { rail, works } => {
                let rail = (*rail as u32).to_le_bytes();
                [&[TRIAL_RESULT][..], &rail, &[u8::from(*works)]].concat()
            }
        }
    }

    /// Decodes a message; `None` if no peer of this version sends it for this link.
    pub(super) fn decode(bytes: &[u8], rails: usize, geometry: Geometry) -> Option<Self> {
        let (&first, body) = bytes.split_first()?;
        if Some(bytes.len()) != Self::len(first, geometry) {
            return None;
        }
        if first == REPORT {
            return ArrivalReport::decode(body, rails, geometry).map(Self::ArrivalReport);
        }
        let (rail, rest) = body.split_first_chunk()?;
        let rail = u32::from_le_bytes(*rail) as usize;
        let message = match *rest {
            [works @ (0 | 1)] => Self::TrialResult {
                rail,
                works: works == 1,
            },
            _ => Self::Offer {
                rail,
                end: decode_end(rest)?,
            },
        };
        (rail < rails).then_some(message)
    }
}

fn decode_end(bytes: &[u8]) -> Option<End> {
    let (numbers, &[reads]) = bytes.as_chunks() else {
        return None;
    };
    let &[qp_num, psn, rkey] = numbers else {
        return None;
    };
    let end = End {
        qp_num: u32::from_le_bytes(qp_num),
        psn: u32::from_le_bytes(psn),
        rkey: u32::from_le_bytes(rkey),
        reads,
    };
    (end.qp_num < NUMBERS && end.psn < NUMBERS).then_some(end)
}
