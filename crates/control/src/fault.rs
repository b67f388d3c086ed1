//! Faults: why a communicator fails, with texts that a user can act on. Knows members and their
//! names, not how a fault is found.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Marks the sequence numbers of point-to-point operations, which are counted per peer and
/// direction: `POINT_TO_POINT_MARK | number`. They are announced for the other ranks' error texts,
/// but never compared.
pub const POINT_TO_POINT_MARK: u64 = 1 << 63;

/// Marks the sequence numbers of calls with device memory, which are counted separately:
/// `DEVICE_MARK | number`. They are compared with the calls that were
/// [recorded](crate::Watch::record_on_device). Calls whose data GPUs' kernels pass among themselves
/// are not announced. A number with both marks is that of a message of device memory, in which a
/// stream waits, not the thread that makes host calls.
pub const DEVICE_MARK: u64 = 1 << 62;

/// The orderly end of a communicator, in words. In a mismatch it reads as an end that came too
/// early.
pub const FINALIZE: &str = "finalize";

/// A rank that was heard of within this time counts as alive: announcements and replies come about
/// once a second.
pub(crate) const ALIVE: Duration = Duration::from_secs(3);

/// A rank that does not wait answers a waiting companion within this time, and not more often.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);

/// The remedy where a rank has ended while others went on.
const UNEVEN: &str = "every rank must make the same calls before any of them finalizes or drops \
                      the communicator";

/// How many late ranks an error text lists.
const MAX_NAMED: usize = 8;

/// One rank of a communicator, with its numbers and its name.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Member {
    /// The rank in the communicator.
    pub rank: usize,
    /// The rank in the world that the communicator was split from.
    pub world: usize,
    /// The rank's name in the world: "rank 3 (hostB, pid 17)".
    pub name: Arc<str>,
}

impl Member {
    pub(crate) fn new(rank: u32, world: u32, name: Arc<str>) -> Self {
        Self {
            rank: rank as usize,
            world: world as usize,
            name,
        }
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.rank == self.world {
            f.write_str(&self.name)
        } else {
            write!(f, "rank {} (world {})", self.rank, self.name)
        }
    }
}

/// A rank that did not take part in an operation in time.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Late {
    /// The rank that is late.
    pub rank: Member,
    /// The last operation it is known to have entered: its sequence number, and its signature in
    /// words.
    pub last: Option<(u64, String)>,
    /// How long ago anything was heard of it in this communicator; `None` if nothing ever was.
    pub age: Option<Duration>,
    /// Whether it is in the process of the rank that waits for it, and no thread but the waiting
    /// one has called on it.
    pub needs_thread: bool,
}

/// Why a communicator cannot continue. Ranks are numbered as in the communicator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// A process ended without saying goodbye.
    #[error(
        "{rank} died: its process ended without a goodbye; \
         look at that process's own output and exit status (a crash, a signal, or out of memory)"
    )]
    Died {
        /// The rank that died.
        rank: Member,
    },
    /// The connection to a rank failed: its host, or the network in between, is down.
    #[error(
        "{rank} is lost: {error}; check that its host is up and that the network between the hosts \
         works"
    )]
    Lost {
        /// The rank that is lost.
        rank: Member,
        /// Which rank noticed, and the system's error.
        error: String,
    },
    /// A rank left the communicator although this operation needs it.
    #[error(
        "{rank} left the communicator {}, but operation {} ({words}) needs it; {UNEVEN}",
        last_text(*last_sequence),
        number(*sequence)
    )]
    Left {
        /// The rank that left.
        rank: Member,
        /// The last operation that it took part in; 0 for none.
        last_sequence: u64,
        /// The operation that needs it.
        sequence: u64,
        /// That operation in words.
        words: String,
    },
    /// A rank aborted the communicator.
    #[error("{by} aborted the communicator: {reason}")]
    Aborted {
        /// The rank that called abort.
        by: Member,
        /// Its reason.
        reason: String,
    },
    /// Two ranks made different calls as the same operation.
    #[error("{}", mismatch_text(*sequence, (rank_a, words_a), (rank_b, words_b)))]
    Mismatch {
        /// The operation's sequence number.
        sequence: u64,
        /// The rank that noticed.
        rank_a: Member,
        /// Its call.
        words_a: String,
        /// The rank that called something else.
        rank_b: Member,
        /// The call of that rank.
        words_b: String,
    },
    /// An operation did not finish before its deadline.
    #[error(
        "{by} gave up after {waited:.1?} in operation {} ({words}); {}",
        number(*sequence),
        late_text(late, *sequence, *waited)
    )]
    TimedOut {
        /// The rank whose deadline passed.
        by: Member,
        /// The operation's sequence number.
        sequence: u64,
        /// The operation in words.
        words: String,
        /// How long it waited.
        waited: Duration,
        /// The ranks that did not take part, as far as `by` could tell, without ranks that only
        /// wait for another of them. For a message: its other end, the rank for which that one
        /// waits in a message, and so on.
        late: Vec<Late>,
    },
    /// The link that carries data between two ranks failed.
    #[error("the link between {by} and {peer} failed: {text}")]
    Link {
        /// The rank that noticed.
        by: Member,
        /// The other end.
        peer: Member,
        /// The error and the remedy, which depends on the link's transport.
        text: String,
    },
}

impl Fault {
    /// The ranks that caused it, as far as is known. These are ranks that died, are lost, left, or
    /// aborted; both ranks of a mismatch or of a failed link; and late ranks.
    ///
    /// ```
    /// # use spark_ccl_control as spark_ccl;
    /// use spark_ccl::Fault;
    ///
    /// /// The names of the ranks, for a report.
    /// fn names(fault: &Fault) -> Vec<String> {
    ///     fault.ranks().map(|member| member.name.to_string()).collect()
    /// }
    /// ```
    pub fn ranks(&self) -> impl Iterator<Item = &Member> {
        let (first, second, late) = match self {
            Self::Died { rank } | Self::Lost { rank, .. } | Self::Left { rank, .. } => {
                (Some(rank), None, &[][..])
            }
            Self::Aborted { by, .. } => (Some(by), None, &[][..]),
            Self::Mismatch { rank_a, rank_b, .. } => (Some(rank_a), Some(rank_b), &[][..]),
            Self::TimedOut { late, .. } => (None, None, &late[..]),
            Self::Link { by, peer, .. } => (Some(by), Some(peer), &[][..]),
        };
        let late = late.iter().map(|late| &late.rank);
        first.into_iter().chain(second).chain(late)
    }

    /// Whether it concerns only calls that need one rank, which has ended or left. All members
    /// learn that by themselves.
    pub(crate) fn is_departure(&self) -> bool {
        matches!(
            self,
            Self::Died { .. } | Self::Lost { .. } | Self::Left { .. }
        )
    }

    /// Whether it says that the process of a member has ended, or is lost.
    pub(crate) fn is_end_of(&self, member: u32) -> bool {
        let (Self::Died { rank } | Self::Lost { rank, .. }) = self else {
            return false;
        };
        rank.rank == member as usize
    }

    /// A timeout as a remark on an operation that waits for `left` more; `None` for other faults.
    pub fn so_far(&self, left: Duration) -> Option<String> {
        let Self::TimedOut {
            by,
            sequence,
            words,
            waited,
            late,
        } = self
        else {
            return None;
        };
        Some(format!(
            "{by} has waited for {waited:.0?} in operation {} ({words}), \
             and gives up in {left:.0?}; {}",
            number(*sequence),
            late_text(late, *sequence, *waited)
        ))
    }

    /// Every rank that the fault names.
    pub(crate) fn members_mut(&mut self) -> Vec<&mut Member> {
        match self {
            Self::Died { rank } | Self::Lost { rank, .. } | Self::Left { rank, .. } => vec![rank],
            Self::Aborted { by, .. } => vec![by],
            Self::Mismatch { rank_a, rank_b, .. } => vec![rank_a, rank_b],
            Self::TimedOut { by, late, .. } => {
                let late = late.iter_mut().map(|late| &mut late.rank);
                std::iter::once(by).chain(late).collect()
            }
            Self::Link { by, peer, .. } => vec![by, peer],
        }
    }
}

pub(crate) fn is_point_to_point(sequence: u64) -> bool {
    sequence & POINT_TO_POINT_MARK != 0
}

pub(crate) fn is_on_device(sequence: u64) -> bool {
    !is_point_to_point(sequence) && sequence & DEVICE_MARK != 0
}

/// Whether a stream waits in it: in a call of device memory, or in a message.
pub(crate) fn is_in_stream(sequence: u64) -> bool {
    sequence & DEVICE_MARK != 0
}

/// Whether this is not the number of a collective of host memory. Only those have the same number
/// on all ranks.
pub(crate) fn is_apart(sequence: u64) -> bool {
    is_point_to_point(sequence) || is_on_device(sequence)
}

/// An operation's sequence number as error texts show it.
fn number(sequence: u64) -> String {
    if is_point_to_point(sequence) {
        let number = sequence & !(POINT_TO_POINT_MARK | DEVICE_MARK);
        format!("point-to-point #{number}")
    } else if is_on_device(sequence) {
        format!("#{} on the device", sequence & !DEVICE_MARK)
    } else {
        format!("#{sequence}")
    }
}

fn last_text(sequence: u64) -> String {
    match sequence {
        0 => "without taking part in any operation".into(),
        _ => format!("after operation {}", number(sequence)),
    }
}

fn mismatch_text(sequence: u64, first: (&Member, &str), second: (&Member, &str)) -> String {
    let [(ended, words), (other, other_words)] = match second.1 {
        FINALIZE => [second, first],
        _ => [first, second],
    };
    let number = number(sequence);
    if words == FINALIZE {
        let last = last_text(sequence.saturating_sub(1));
        return format!(
            "{ended} called {FINALIZE} {last}, but {other} called {other_words} as operation \
             {number}; {UNEVEN}"
        );
    }
    format!(
        "operation {number} differs between the ranks: {ended} called {words}, but {other} called \
         {other_words}; all ranks must make the same calls, with the same arguments, in the same \
         order"
    )
}

fn late_text(late: &[Late], sequence: u64, waited: Duration) -> String {
    let on_devices = is_on_device(sequence);
    if on_devices && late.is_empty() {
        return "a rank has not made the same call, or a GPU or the network between them is stuck: \
                look at what the other processes do, set NCCL_DEBUG=INFO, or raise the timeout"
            .into();
    }
    if late.is_empty() {
        return "every other rank is in it too, so the links are slow or stuck: check the network, \
                or raise the timeout"
            .into();
    }
    let mut who: Vec<String> = late
        .iter()
        .take(MAX_NAMED)
        .map(|late| {
            if on_devices {
                one_late_on_devices(late)
            } else {
                one_late(late, sequence, waited)
            }
        })
        .collect();
    if late.len() > MAX_NAMED {
        who.push(format!("and {} more ranks", late.len() - MAX_NAMED));
    }
    format!(
        "it waits for: {}; look at what these processes do, or raise the timeout",
        who.join("; ")
    )
}

/// A rank's last operation in host memory says nothing about its kernels.
fn one_late_on_devices(late: &Late) -> String {
    match &late.last {
        Some((last, words)) if is_on_device(*last) => {
            format!(
                "{}, which waits in operation {} ({words})",
                late.rank,
                number(*last)
            )
        }
        _ => late.rank.to_string(),
    }
}

/// A live rank answers one that waits, so what came before the wait says nothing about now.
fn one_late(late: &Late, sequence: u64, waited: Duration) -> String {
    let Late {
        rank, last, age, ..
    } = late;
    let limit = waited.clamp(ANSWERS_WITHIN, ALIVE);
    let silent = match age {
        None => Some("which has not answered (stopped, or its host hangs)".to_owned()),
        Some(age) if *age > limit => {
            Some(format!("silent for {age:.1?} (stopped, or its host hangs)"))
        }
        Some(_) => None,
    };
    let last = last
        .as_ref()
        .map(|(last, words)| (*last, number(*last), words));
    let text = match (silent, last) {
        (Some(silent), Some((_, last, words))) => {
            format!("{rank}, {silent}, last seen in operation {last} ({words})")
        }
        (Some(silent), None) => format!("{rank}, {silent}; its last call is not known"),
        (None, Some((number, last, words))) if number >= sequence => {
            format!("{rank}, which called operation {last} ({words}) but does not progress in it")
        }
        (None, Some((_, last, words))) => format!(
            "{rank}, which is alive but has not made this call; its last is operation {last} \
             ({words})"
        ),
        (None, None) => format!("{rank}, which is alive but in no call that it has told of"),
    };
    if late.needs_thread {
        return format!(
            "{text} (it is a rank of this process, and no other thread has called on it: each rank \
             needs a thread of its own, or calls that are started before one is waited for)"
        );
    }
    text
}

#[cfg(test)]
mod tests;
