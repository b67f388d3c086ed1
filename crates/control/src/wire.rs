//! The wire format of the control streams.
//!
//! A frame is a header (magic `0x5CC1`, version, kind, body length) and a body of at most
//! [`MAX_BODY`] bytes. All numbers are little endian. [`parse`] is a pure function of the bytes.

mod body;

use std::time::Duration;

use body::{Reader, Writer};

use crate::comparison::Claim;
use crate::fault::Fault;
use crate::leave::Leave;
use crate::ledger::Entry;
use crate::proposal::{Bound, Proposal};
use crate::standing::Answer;

const MAGIC: u16 = 0x5CC1;
const VERSION: u8 = 8;
const HEADER: usize = 8;
/// Longer bodies are refused before anything is allocated for them.
pub(crate) const MAX_BODY: usize = 4096;

/// A message on a control stream.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Frame {
    /// Credit, for the neighbour only: this many bytes were read since the last acknowledgement.
    Ack { bytes: u32 },
    /// A heartbeat, for the neighbour only.
    Heartbeat(Heartbeat),
    /// News that is forwarded to every rank.
    Flood(Flood),
    /// A notice from one rank to another, forwarded hop by hop.
    Notice { to: u32, notice: Notice },
}

/// The frame that neighbours send each other once a second.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Heartbeat {
    /// The number of floods that have arrived on this stream and on the streams that it replaced.
    pub(crate) received: u64,
    /// The ranks that the sender hears over its own streams.
    pub(crate) hears: Vec<u32>,
}

/// The message of a member of a communicator to another. It may get lost, since it is announced
/// again.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Notice {
    /// World rank of the sender.
    pub(crate) origin: u32,
    /// Increases with each notice of `origin`.
    pub(crate) counter: u64,
    pub(crate) content: Content,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Content {
    /// The present action of `origin`.
    Progress(Progress),
    /// A member that is late, as `origin` sees it.
    Late(LateReport),
    /// `origin` asks how far the receiver is.
    Query { context: u64 },
    /// How far `origin` is.
    Answer(Answer),
    /// The statement of `origin` about a call of device memory.
    Claim(Claim),
}

impl Content {
    /// The communicator's context.
    pub(crate) fn context(&self) -> u64 {
        match self {
            Self::Progress(progress) => progress.context,
            Self::Late(report) => report.context,
            Self::Query { context } => *context,
            Self::Answer(answer) => answer.context,
            Self::Claim(claim) => claim.context,
        }
    }
}

/// A member that does not take part in an operation, as another member sees it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LateReport {
    pub(crate) context: u64,
    pub(crate) sequence: u64,
    /// World rank.
    pub(crate) rank: u32,
    /// Its last operation: sequence number and signature.
    pub(crate) last: Option<(u64, [u64; 2])>,
    /// How long ago anything was heard of it; `None` if nothing ever was.
    pub(crate) age: Option<Duration>,
}

/// News and its origin.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Flood {
    /// World rank of the sender.
    pub(crate) origin: u32,
    /// Increases with each flood of `origin`.
    pub(crate) counter: u64,
    pub(crate) news: News,
}

/// How a rank left the world without a goodbye.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Failure {
    /// Its process ended, according to the kernel that it ran on.
    Died,
    /// It cannot be reached, for this reason.
    Lost(String),
    /// Its host refuses connections to it. Most likely its process ended; but a firewall may refuse
    /// them, too.
    Refused,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum News {
    /// `origin` leaves a communicator.
    Leave { context: u64, leave: Box<Leave> },
    /// `origin` leaves the world.
    Goodbye,
    /// A neighbour of `origin` left the world without a goodbye.
    Gone { rank: u32, failure: Failure },
    /// A communicator failed.
    Fault { context: u64, fault: Fault },
    /// How `origin` wants to go on after this communicator.
    Proposal { context: u64, proposal: Proposal },
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Progress {
    pub(crate) context: u64,
    /// All collectives up to this one are finished.
    pub(crate) finished: u64,
    /// The operation that the rank waits in, or entered last.
    pub(crate) sequence: u64,
    pub(crate) signature: [u64; 2],
    pub(crate) waiting: Option<WaitingFor>,
}

/// Which rank a waiting rank waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitingFor {
    Anyone,
    /// World rank.
    Rank(u32),
}

/// Why bytes are not a frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WireError {
    #[error("expected the start of a control message, saw bytes {0:02x?}")]
    Magic([u8; 2]),
    #[error("expected control protocol version {VERSION}, saw version {0}")]
    Version(u8),
    #[error("expected a control message of at most {MAX_BODY} bytes, saw a length of {0}")]
    Length(u32),
    #[error("saw a control message of unknown kind {0}")]
    Kind(u8),
    #[error("saw a control message of kind {0} with a malformed body")]
    Body(u8),
}

const ACK: u8 = 0;
const PROGRESS: u8 = 1;
const LEAVE: u8 = 2;
const GOODBYE: u8 = 3;
const GONE: u8 = 4;
const FAULT: u8 = 5;
const LATE: u8 = 6;
const HEARTBEAT: u8 = 7;
const PROPOSAL: u8 = 8;
const QUERY: u8 = 9;
const ANSWER: u8 = 10;
const CLAIM: u8 = 11;

/// The first frame in `bytes` and its length, or `None` when more bytes are needed.
///
/// Ranks at or above `size`, the size of the world, make a body malformed.
pub(crate) fn parse(bytes: &[u8], size: u32) -> Result<Option<(Frame, usize)>, WireError> {
    let Some(header) = bytes.first_chunk::<HEADER>() else {
        return Ok(None);
    };
    let &[magic_0, magic_1, version, kind, l0, l1, l2, l3] = header;
    if [magic_0, magic_1] != MAGIC.to_le_bytes() {
        return Err(WireError::Magic([magic_0, magic_1]));
    }
    if version != VERSION {
        return Err(WireError::Version(version));
    }
    let length = u32::from_le_bytes([l0, l1, l2, l3]);
    if length as usize > MAX_BODY {
        return Err(WireError::Length(length));
    }
    if kind > CLAIM {
        return Err(WireError::Kind(kind));
    }
    let end = HEADER + length as usize;
    let Some(body) = bytes.get(HEADER..end) else {
        return Ok(None);
    };
    let frame = read_body(kind, Reader::new(body, size)).ok_or(WireError::Body(kind))?;
    Ok(Some((frame, end)))
}

fn read_body(kind: u8, mut body: Reader<'_>) -> Option<Frame> {
    let frame = match kind {
        ACK => Frame::Ack { bytes: body.u32()? },
        HEARTBEAT => Frame::Heartbeat(Heartbeat {
            received: body.u64()?,
            hears: body.ranks()?,
        }),
        PROGRESS | LATE | QUERY | ANSWER | CLAIM => Frame::Notice {
            to: body.rank()?,
            notice: Notice {
                origin: body.rank()?,
                counter: body.u64()?,
                content: read_content(kind, &mut body)?,
            },
        },
        _ => Frame::Flood(Flood {
            origin: body.rank()?,
            counter: body.u64()?,
            news: read_news(kind, &mut body)?,
        }),
    };
    body.is_empty().then_some(frame)
}

fn read_content(kind: u8, body: &mut Reader<'_>) -> Option<Content> {
    Some(match kind {
        PROGRESS => Content::Progress(Progress {
            context: body.u64()?,
            finished: body.u64()?,
            sequence: body.u64()?,
            signature: [body.u64()?, body.u64()?],
            waiting: match body.u8()? {
                0 => None,
                1 => Some(WaitingFor::Anyone),
                2 => Some(WaitingFor::Rank(body.rank()?)),
                _ => return None,
            },
        }),
        LATE => Content::Late(LateReport {
            context: body.u64()?,
            sequence: body.u64()?,
            rank: body.rank()?,
            last: if body.flag()? {
                Some((body.u64()?, [body.u64()?, body.u64()?]))
            } else {
                None
            },
            age: if body.flag()? {
                Some(body.millis()?)
            } else {
                None
            },
        }),
        QUERY => Content::Query {
            context: body.u64()?,
        },
        ANSWER => Content::Answer(body.answer()?),
        CLAIM => Content::Claim(Claim {
            context: body.u64()?,
            number: body.u64()?,
            entry: Entry {
                digest: body.u64()?,
                signature: [body.u64()?, body.u64()?],
            },
            agreed: body.u64()?,
            differs: body.u64()?,
            question: body.u64()?,
            asks: body.flag()?,
        }),
        _ => return None,
    })
}

fn read_news(kind: u8, body: &mut Reader<'_>) -> Option<News> {
    Some(match kind {
        LEAVE => News::Leave {
            context: body.u64()?,
            leave: Box::new(body.leave()?),
        },
        GOODBYE => News::Goodbye,
        GONE => News::Gone {
            rank: body.rank()?,
            failure: match body.u8()? {
                0 => Failure::Died,
                1 => Failure::Lost(body.text()?),
                2 => Failure::Refused,
                _ => return None,
            },
        },
        FAULT => News::Fault {
            context: body.u64()?,
            fault: body.fault()?,
        },
        PROPOSAL => News::Proposal {
            context: body.u64()?,
            proposal: Proposal {
                generation: body.u64()?,
                context: if body.flag()? {
                    Some(body.u64()?)
                } else {
                    None
                },
                bound: if body.flag()? {
                    Some(Bound {
                        generation: body.u64()?,
                        context: body.u64()?,
                        without: body.members()?,
                    })
                } else {
                    None
                },
                without: body.members()?,
                silent: body.members()?,
            },
        },
        _ => return None,
    })
}

/// The bytes of a frame. Texts that are too long are cut.
pub(crate) fn encode(frame: &Frame) -> Vec<u8> {
    let mut body = Writer::default();
    let kind = match frame {
        Frame::Ack { bytes } => {
            body.u32(*bytes);
            ACK
        }
        Frame::Heartbeat(heartbeat) => {
            body.u64(heartbeat.received);
            body.ranks(&heartbeat.hears);
            HEARTBEAT
        }
        Frame::Flood(flood) => {
            body.u32(flood.origin);
            body.u64(flood.counter);
            write_news(&flood.news, &mut body)
        }
        Frame::Notice { to, notice } => {
            body.u32(*to);
            body.u32(notice.origin);
            body.u64(notice.counter);
            write_content(&notice.content, &mut body)
        }
    };
    let body = body.into_bytes();
    let mut bytes = Vec::with_capacity(HEADER + body.len());
    bytes.extend(MAGIC.to_le_bytes());
    bytes.extend([VERSION, kind]);
    bytes.extend((body.len() as u32).to_le_bytes());
    bytes.extend(body);
    bytes
}

fn write_content(content: &Content, body: &mut Writer) -> u8 {
    match content {
        Content::Progress(progress) => {
            body.u64(progress.context);
            body.u64(progress.finished);
            body.u64(progress.sequence);
            body.u64(progress.signature[0]);
            body.u64(progress.signature[1]);
            match progress.waiting {
                None => body.u8(0),
                Some(WaitingFor::Anyone) => body.u8(1),
                Some(WaitingFor::Rank(rank)) => {
                    body.u8(2);
                    body.u32(rank);
                }
            }
            PROGRESS
        }
        Content::Late(report) => {
            body.u64(report.context);
            body.u64(report.sequence);
            body.u32(report.rank);
            body.optional(report.last, |body, (sequence, signature)| {
                body.u64(sequence);
                body.u64(signature[0]);
                body.u64(signature[1]);
            });
            body.optional(report.age, Writer::millis);
            LATE
        }
        Content::Query { context } => {
            body.u64(*context);
            QUERY
        }
        Content::Answer(answer) => {
            body.answer(answer);
            ANSWER
        }
        Content::Claim(claim) => {
            body.u64(claim.context);
            body.u64(claim.number);
            body.u64(claim.entry.digest);
            body.u64(claim.entry.signature[0]);
            body.u64(claim.entry.signature[1]);
            body.u64(claim.agreed);
            body.u64(claim.differs);
            body.u64(claim.question);
            body.u8(claim.asks.into());
            CLAIM
        }
    }
}

fn write_news(news: &News, body: &mut Writer) -> u8 {
    match news {
        News::Leave { context, leave } => {
            body.u64(*context);
            body.leave(leave);
            LEAVE
        }
        News::Goodbye => GOODBYE,
        News::Gone { rank, failure } => {
            body.u32(*rank);
            match failure {
                Failure::Died => body.u8(0),
                Failure::Lost(error) => {
                    body.u8(1);
                    body.text(error);
                }
                Failure::Refused => body.u8(2),
            }
            GONE
        }
        News::Fault { context, fault } => {
            body.u64(*context);
            body.fault(fault);
            FAULT
        }
        News::Proposal { context, proposal } => {
            body.u64(*context);
            body.u64(proposal.generation);
            body.optional(proposal.context, Writer::u64);
            body.optional(proposal.bound.as_ref(), |body, bound| {
                body.u64(bound.generation);
                body.u64(bound.context);
                body.members(&bound.without);
            });
            body.members(&proposal.without);
            body.members(&proposal.silent);
            PROPOSAL
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
