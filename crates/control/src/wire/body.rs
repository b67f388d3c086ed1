//! Encoding and decoding of the fields of a frame's body. Pure functions of bytes; each length is
//! checked before it is used.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::agreement::MAX_LISTED;
use crate::device_calls::{DeviceCalls, MOST_PEERS, Messages};
use crate::fault::{Fault, Late, Member};
use crate::leave::{Leave, MOST_CALLS};
use crate::standing::{Answer, KINDS, Wait};

/// Longest text of a fault (a reason, an error), in bytes.
const MAX_TEXT: usize = 512;
/// Longest description of an operation, in bytes.
const MAX_WORDS: usize = 192;
/// How many late ranks a fault carries. A test checks that they fit into a frame.
pub(super) const MAX_LATE: usize = 12;
/// How many ranks a heartbeat lists. That is enough for all neighbours in a world of any size.
pub(super) const MAX_RANKS: usize = 128;

#[derive(Default)]
pub(super) struct Writer(Vec<u8>);

impl Writer {
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    pub(super) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }

    pub(super) fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    pub(super) fn text(&mut self, text: &str) {
        self.cut_text(text, MAX_TEXT);
    }

    fn words(&mut self, words: &str) {
        self.cut_text(words, MAX_WORDS);
    }

    fn cut_text(&mut self, text: &str, most: usize) {
        let mut end = text.len().min(most);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.0.extend((end as u16).to_le_bytes());
        self.0.extend(&text.as_bytes()[..end]);
    }

    pub(super) fn millis(&mut self, duration: Duration) {
        self.u64(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX));
    }

    pub(super) fn ranks(&mut self, ranks: &[u32]) {
        let ranks = &ranks[..ranks.len().min(MAX_RANKS)];
        self.u8(ranks.len() as u8);
        for &rank in ranks {
            self.u32(rank);
        }
    }

    /// A proposal's list of members.
    pub(super) fn members(&mut self, ranks: &[u32]) {
        let ranks = &ranks[..ranks.len().min(MAX_LISTED)];
        self.0.extend((ranks.len() as u16).to_le_bytes());
        for &rank in ranks {
            self.u32(rank);
        }
    }

    pub(super) fn leave(&mut self, leave: &Leave) {
        self.u64(leave.last_sequence);
        self.u8(leave.is_in_flight.into());
        let calls = &leave.calls[..leave.calls.len().min(MOST_CALLS)];
        self.u8(calls.len() as u8);
        for &(sequence, signature) in calls {
            self.u64(sequence);
            self.signature(signature);
        }
        let told = leave.messages.as_ref();
        self.optional(told.filter(|messages| are_few(messages)), Self::messages);
        self.device_calls(&leave.device_calls);
        self.optional(leave.cause.as_ref(), Self::fault);
    }

    pub(super) fn device_calls(&mut self, calls: &DeviceCalls) {
        self.u64(calls.collectives);
        let are_told = are_few(&calls.messages);
        self.u8((calls.has_uncounted || !are_told).into());
        let none = BTreeMap::new();
        self.messages(if are_told { &calls.messages } else { &none });
    }

    fn messages(&mut self, messages: &BTreeMap<u32, Messages>) {
        self.u8(messages.len() as u8);
        for (&rank, messages) in messages {
            self.u32(rank);
            self.u64(messages.sent);
            self.u64(messages.received);
        }
    }

    pub(super) fn optional<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.u8(value.is_some().into());
        if let Some(value) = value {
            write(self, value);
        }
    }

    pub(super) fn answer(&mut self, answer: &Answer) {
        self.u64(answer.context);
        self.u64(answer.entered);
        self.u64(answer.finished);
        self.signature(answer.signature);
        self.optional(answer.waits, |body, wait| {
            body.u64(wait.sequence);
            body.signature(wait.signature);
            body.optional(wait.for_rank, Self::u32);
            body.millis(wait.since);
        });
        for calls in answer.calls {
            self.u64(calls);
        }
    }

    fn signature(&mut self, signature: [u64; 2]) {
        self.u64(signature[0]);
        self.u64(signature[1]);
    }

    pub(super) fn fault(&mut self, fault: &Fault) {
        match fault {
            Fault::Died { rank } => self.tag(0, rank),
            Fault::Lost { rank, error } => {
                self.tag(1, rank);
                self.text(error);
            }
            Fault::Left {
                rank,
                last_sequence,
                sequence,
                words,
            } => {
                self.tag(2, rank);
                self.u64(*last_sequence);
                self.u64(*sequence);
                self.words(words);
            }
            Fault::Aborted { by, reason } => {
                self.tag(3, by);
                self.text(reason);
            }
            Fault::Mismatch {
                sequence,
                rank_a,
                words_a,
                rank_b,
                words_b,
            } => {
                self.u8(4);
                self.u64(*sequence);
                self.called(rank_a, words_a);
                self.called(rank_b, words_b);
            }
            Fault::TimedOut {
                by,
                sequence,
                words,
                waited,
                late,
            } => {
                self.tag(5, by);
                self.u64(*sequence);
                self.words(words);
                self.millis(*waited);
                self.late(late);
            }
            Fault::Link { by, peer, text } => {
                self.tag(6, by);
                self.u32(peer.world as u32);
                self.text(text);
            }
        }
    }

    /// A fault's kind, and the first rank that it names.
    fn tag(&mut self, kind: u8, rank: &Member) {
        self.u8(kind);
        self.u32(rank.world as u32);
    }

    /// A rank and what it called.
    fn called(&mut self, rank: &Member, words: &str) {
        self.u32(rank.world as u32);
        self.words(words);
    }

    fn late(&mut self, late: &[Late]) {
        let late = &late[..late.len().min(MAX_LATE)];
        self.u8(late.len() as u8);
        for late in late {
            let Late {
                rank,
                last,
                age,
                needs_thread,
            } = late;
            self.u32(rank.world as u32);
            self.optional(last.as_ref(), |body, (sequence, words)| {
                body.u64(*sequence);
                body.words(words);
            });
            self.optional(*age, Self::millis);
            self.u8((*needs_thread).into());
        }
    }
}

/// Whether all message counts fit into a frame.
fn are_few(messages: &BTreeMap<u32, Messages>) -> bool {
    messages.len() <= MOST_PEERS
}

/// Every method returns `None` if the body ends early or the value is out of bounds.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
    size: u32,
}

impl<'a> Reader<'a> {
    pub(super) fn new(body: &'a [u8], size: u32) -> Self {
        Self { rest: body, size }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*first)
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn rank(&mut self) -> Option<u32> {
        self.u32().filter(|&rank| rank < self.size)
    }

    pub(super) fn ranks(&mut self) -> Option<Vec<u32>> {
        let count: usize = self.u8()?.into();
        if count > MAX_RANKS {
            return None;
        }
        (0..count).map(|_| self.rank()).collect()
    }

    pub(super) fn members(&mut self) -> Option<Vec<u32>> {
        let count: usize = self.array().map(u16::from_le_bytes)?.into();
        if count > MAX_LISTED {
            return None;
        }
        (0..count).map(|_| self.rank()).collect()
    }

    pub(super) fn leave(&mut self) -> Option<Leave> {
        let last_sequence = self.u64()?;
        let is_in_flight = self.flag()?;
        let calls: usize = self.u8()?.into();
        if calls > MOST_CALLS {
            return None;
        }
        let calls = (0..calls).map(|_| Some((self.u64()?, self.signature()?)));
        Some(Leave {
            last_sequence,
            is_in_flight,
            calls: calls.collect::<Option<_>>()?,
            messages: if self.flag()? {
                Some(self.messages()?)
            } else {
                None
            },
            device_calls: self.device_calls()?,
            cause: if self.flag()? {
                let cause = self.fault()?;
                let is_one = cause.is_departure() || matches!(cause, Fault::Aborted { .. });
                Some(Some(cause).filter(|_| is_one)?)
            } else {
                None
            },
        })
    }

    pub(super) fn device_calls(&mut self) -> Option<DeviceCalls> {
        let collectives = self.u64()?;
        let has_uncounted = self.flag()?;
        Some(DeviceCalls {
            collectives,
            messages: self.messages()?,
            has_uncounted,
        })
    }

    fn messages(&mut self) -> Option<BTreeMap<u32, Messages>> {
        let peers: usize = self.u8()?.into();
        if peers > MOST_PEERS {
            return None;
        }
        let messages = (0..peers).map(|_| {
            let rank = self.rank()?;
            let (sent, received) = (self.u64()?, self.u64()?);
            Some((rank, Messages { sent, received }))
        });
        messages.collect()
    }

    pub(super) fn text(&mut self) -> Option<String> {
        self.text_up_to(MAX_TEXT)
    }

    fn words(&mut self) -> Option<String> {
        self.text_up_to(MAX_WORDS)
    }

    fn text_up_to(&mut self, most: usize) -> Option<String> {
        let length = self.array().map(u16::from_le_bytes)?.into();
        let (text, rest) = self
            .rest
            .split_at_checked(length)
            .filter(|_| length <= most)?;
        self.rest = rest;
        str::from_utf8(text).ok().map(str::to_owned)
    }

    pub(super) fn millis(&mut self) -> Option<Duration> {
        self.u64().map(Duration::from_millis)
    }

    pub(super) fn flag(&mut self) -> Option<bool> {
        match self.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    pub(super) fn answer(&mut self) -> Option<Answer> {
        let mut answer = Answer {
            context: self.u64()?,
            entered: self.u64()?,
            finished: self.u64()?,
            signature: self.signature()?,
            waits: if self.flag()? {
                Some(self.wait()?)
            } else {
                None
            },
            calls: [0; KINDS],
        };
        for calls in &mut answer.calls {
            *calls = self.u64()?;
        }
        Some(answer)
    }

    fn wait(&mut self) -> Option<Wait> {
        Some(Wait {
            sequence: self.u64()?,
            signature: self.signature()?,
            for_rank: if self.flag()? {
                Some(self.rank()?)
            } else {
                None
            },
            since: self.millis()?,
        })
    }

    fn signature(&mut self) -> Option<[u64; 2]> {
        Some([self.u64()?, self.u64()?])
    }

    /// A rank of the world. The receiving communicator fills in its own number and the name.
    fn member(&mut self) -> Option<Member> {
        let world = self.rank()?;
        Some(Member::new(world, world, "".into()))
    }

    pub(super) fn fault(&mut self) -> Option<Fault> {
        Some(match self.u8()? {
            0 => Fault::Died {
                rank: self.member()?,
            },
            1 => Fault::Lost {
                rank: self.member()?,
                error: self.text()?,
            },
            2 => Fault::Left {
                rank: self.member()?,
                last_sequence: self.u64()?,
                sequence: self.u64()?,
                words: self.words()?,
            },
            3 => Fault::Aborted {
                by: self.member()?,
                reason: self.text()?,
            },
            4 => Fault::Mismatch {
                sequence: self.u64()?,
                rank_a: self.member()?,
                words_a: self.words()?,
                rank_b: self.member()?,
                words_b: self.words()?,
            },
            5 => Fault::TimedOut {
                by: self.member()?,
                sequence: self.u64()?,
                words: self.words()?,
                waited: self.millis()?,
                late: self.late()?,
            },
            6 => Fault::Link {
                by: self.member()?,
                peer: self.member()?,
                text: self.text()?,
            },
            _ => return None,
        })
    }

    fn late(&mut self) -> Option<Vec<Late>> {
        let count: usize = self.u8()?.into();
        if count > MAX_LATE {
            return None;
        }
        (0..count)
            .map(|_| {
                Some(Late {
                    rank: self.member()?,
                    last: if self.flag()? {
                        Some((self.u64()?, self.words()?))
                    } else {
                        None
                    },
                    age: if self.flag()? {
                        Some(self.millis()?)
                    } else {
                        None
                    },
                    needs_thread: self.flag()?,
                })
            })
            .collect()
    }
}
