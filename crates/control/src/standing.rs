//! How far members are, by their answers to this rank. Plain data; `state/inquiry.rs` asks and
//! answers.

use std::time::Duration;

use crate::fault::Member;

/// How many kinds of calls an answer counts.
pub const KINDS: usize = 16;

/// How far a member is, as this rank knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// The member.
    pub rank: Member,
    /// Whether it still takes part.
    pub presence: Presence,
    /// Its latest answer and how long ago that came; `None` if it has not answered yet.
    pub answer: Option<(Answer, Duration)>,
}

/// Whether a member still takes part in a communicator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// As far as this rank knows, it does.
    Here,
    /// It has left the communicator, or the world, in order.
    Left,
    /// It has died, or is lost.
    Gone,
}

/// How far a member says it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    pub(crate) context: u64,
    /// The collective that it entered last; 0 before the first.
    pub entered: u64,
    /// All collectives up to this one are finished.
    pub finished: u64,
    /// The signature of the collective that it entered last.
    pub signature: [u64; 2],
    /// The operation that it waits in, if it has waited long enough to announce that.
    pub waits: Option<Wait>,
    /// How many calls of each kind it has made; all 0 where it does not count them.
    pub calls: [u64; KINDS],
}

/// An operation that a member waits in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait {
    /// Its number; marked with [`POINT_TO_POINT_MARK`](crate::POINT_TO_POINT_MARK) if it is one
    /// between two ranks, and with [`DEVICE_MARK`](crate::DEVICE_MARK) if it is on devices.
    pub sequence: u64,
    /// Its signature.
    pub signature: [u64; 2],
    /// The rank that it waits for, by its number in the world, if it knows.
    pub for_rank: Option<u32>,
    /// How long ago it first announced that.
    pub since: Duration,
}
