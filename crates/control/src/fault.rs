//! Faults: why a communicator fails, with texts that a user can act on. Knows members and their
//! names; how a fault is found is not known here.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Marks the sequence numbers of point-to-point operations, which are counted per peer and direction:
/// `POINT_TO_POINT_MARK | number`. They are announced for the other ranks' error texts, but never compared.
pub const POINT_TO_POINT_MARK: u64 = 1 << 63;

/// Marks the sequence numbers of calls with device memory, which are counted separately: `DEVICE_MARK | number`. They are
/// not announced to other ranks.
pub const DEVICE_MARK: u64 = 1 << 62;

/// A rank that was heard of within this time counts as alive: announcements and replies come about once a second.
pub(crate) const ALIVE: Duration = Duration::from_secs(3);

/// How many late ranks an error text lists.
const MAX_NAMED: usize = 8;

/// One rank of a communicator, with its numbers and its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The rank in the communicator.
    pub rank: u32,
    /// The rank in the world that the communicator was split from.
    pub world: u32,
    /// The rank's name in the world: "rank 3 (hostB, pid 17)".
    pub name: Arc<str>,
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
pub struct Late {
    /// The rank that is late.
    pub rank: Member,
    /// The last operation it is known to have entered: its sequence number, and its signature in words.
    pub last: Option<(u64, String)>,
    /// How long ago anything was heard of it in this communicator.
    pub age: Duration,
}

/// Why a communicator cannot continue. Ranks are numbered as in the communicator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
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
        "{rank} is lost: {error}; check that its host is up and that the network between the hosts works"
    )]
    Lost {
        /// The rank that is lost.
        rank: Member,
        /// Which rank noticed, and the system's error.
        error: String,
    },
    /// A rank left the communicator although this operation needs it.
    #[error(
        "{rank} left the communicator {}, but operation {} ({words}) needs it; every rank must make the same calls \
        before any of them finalizes or drops the communicator",
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
    #[error(
        "operation {} differs between the ranks: {rank_a} called {words_a}, but {rank_b} called \
         {words_b}; all ranks must make the same calls, with the same arguments, in the same order",
        number(*sequence)
    )]
    Mismatch {
        /// The operation's sequence number.
        sequence: u64,
        /// The rank that noticed.
        rank_a: Member,
        /// What it called.
        words_a: String,
        /// The rank that called something else.
        rank_b: Member,
        /// What that rank called.
        words_b: String,
    },
    /// An operation did not finish before its deadline.
    #[error(
        "{by} gave up after {waited:.1?} in operation {} ({words}); {}",
        number(*sequence),
        late_text(late, *sequence)
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
        /// The ranks that did not take part, as far as `by` could tell. Of a message, its other end, whom that one waits for
        /// in a message, and so on.
        late: Vec<Late>,
    },
    /// The link that carries data between two ranks failed.
    #[error("the link between {by} and {peer} failed: {text}")]
    Link {
        /// The rank that noticed.
        by: Member,
        /// The other end.
        peer: Member,
        /// The error, and what to do, which depends on what the link is made of.
        text: String,
    },
}

impl Fault {
    /// The ranks that brought it about, as far as that is known: those that died, are lost, left, or aborted; both
    /// whose calls differ, or whose link failed; and those that are late.
    ///
    /// ```
    /// use spark_ccl_control::{Fault, Member};
    ///
    /// let rank = Member { rank: 1, world: 3, name: "rank 3 (hostB, pid 17)".into() };
    /// let ranks: Vec<u32> = Fault::Died { rank }.ranks().map(|member| member.rank).collect();
    /// assert_eq!(ranks, [1]);
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

/// An operation's sequence number as error texts show it.
fn number(sequence: u64) -> String {
    if is_point_to_point(sequence) {
        format!("point-to-point #{}", sequence & !POINT_TO_POINT_MARK)
    } else if sequence & DEVICE_MARK != 0 {
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

fn late_text(late: &[Late], sequence: u64) -> String {
    let on_devices = sequence & DEVICE_MARK != 0;
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
                // Its last operation in host memory says nothing about its kernels.
                late.rank.to_string()
            } else {
                one_late(late, sequence)
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

fn one_late(late: &Late, sequence: u64) -> String {
    let Late { rank, last, age } = late;
    let silent = *age > ALIVE;
    match last
        .as_ref()
        .map(|(last, words)| (*last, number(*last), words))
    {
        Some((_, last, words)) if silent => format!(
            "{rank}, silent for {age:.1?} (stopped, or its host hangs), last seen in \
             operation {last} ({words})"
        ),
        Some((number, last, words)) if number >= sequence => {
            format!("{rank}, which called operation {last} ({words}) but does not progress in it")
        }
        Some((_, last, words)) => format!(
            "{rank}, which is alive but has not made this call; its last is operation {last} \
             ({words})"
        ),
        None if silent => {
            format!("{rank}, silent for {age:.1?} (stopped, or its host hangs)")
        }
        None => format!("{rank}, which is alive but has made no call yet"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(rank: u32, world: u32) -> Member {
        Member {
            rank,
            world,
            name: format!("rank {world} (host{world}, pid 1{world})").into(),
        }
    }

    #[test]
    fn a_rank_of_a_split_has_both_numbers() {
        assert_eq!(member(3, 3).to_string(), "rank 3 (host3, pid 13)");
        assert_eq!(
            member(1, 3).to_string(),
            "rank 1 (world rank 3 (host3, pid 13))"
        );
    }

    #[test]
    fn a_timeout_tells_the_stopped_from_the_busy() {
        let last = Some((4, "barrier".to_string()));
        let fault = Fault::TimedOut {
            by: member(0, 0),
            sequence: 5,
            words: "all_reduce of 8 f32, sum".into(),
            waited: Duration::from_secs(600),
            late: vec![
                Late {
                    rank: member(1, 1),
                    last: last.clone(),
                    age: Duration::from_secs(590),
                },
                Late {
                    rank: member(2, 2),
                    last,
                    age: Duration::from_millis(100),
                },
                Late {
                    rank: member(3, 3),
                    last: None,
                    age: Duration::from_secs(600),
                },
            ],
        };
        let text = fault.to_string();
        for part in [
            "rank 0 (host0, pid 10) gave up after 600.0s in operation #5 (all_reduce of 8 f32, sum)",
            "rank 1 (host1, pid 11), silent for 590.0s",
            "rank 2 (host2, pid 12), which is alive but has not made this call; its last is operation #4 (barrier)",
            "rank 3 (host3, pid 13), silent for 600.0s",
        ] {
            assert!(text.contains(part), "{part:?} is not in {text:?}");
        }
    }

    /// One fault of each kind but timeouts, and what the troubleshooting guide quotes of its text.
    fn faults(by: &Member, rank: &Member) -> Vec<(Fault, &'static str)> {
        let text = || "so".to_string();
        let (by, rank) = (by.clone(), rank.clone());
        let died = Fault::Died { rank: rank.clone() };
        let lost = Fault::Lost {
            rank: rank.clone(),
            error: text(),
        };
        let left = Fault::Left {
            rank: rank.clone(),
            last_sequence: 1,
            sequence: 2,
            words: text(),
        };
        let aborted = Fault::Aborted {
            by: rank.clone(),
            reason: text(),
        };
        let mismatch = Fault::Mismatch {
            sequence: 1,
            rank_a: by.clone(),
            words_a: text(),
            rank_b: rank.clone(),
            words_b: text(),
        };
        let link = Fault::Link {
            by,
            peer: rank,
            text: text(),
        };
        vec![
            (died, "died: its process ended without a goodbye"),
            (lost, "is lost: "),
            (left, "left the communicator "),
            (aborted, "aborted the communicator: "),
            (mismatch, " differs between the ranks: "),
            (link, "the link between "),
        ]
    }

    /// Timeouts for each state of the late rank, and what the troubleshooting guide quotes of their texts.
    fn timeouts(by: &Member, rank: &Member) -> Vec<(Fault, &'static str)> {
        let timed_out = |late| Fault::TimedOut {
            by: by.clone(),
            sequence: 5,
            words: "so".to_string(),
            waited: ALIVE,
            late,
        };
        let late = |last: Option<u64>, age| {
            let rank = rank.clone();
            let last = last.map(|sequence| (sequence, "so".to_string()));
            timed_out(vec![Late { rank, last, age }])
        };
        vec![
            (late(None, ALIVE * 2), "(stopped, or its host hangs)"),
            (late(None, ALIVE), "alive but has made no call yet"),
            (
                late(Some(4), ALIVE),
                "alive but has not made this call; its last is ",
            ),
            (late(Some(5), ALIVE), "but does not progress in it"),
            (
                timed_out(Vec::new()),
                "every other rank is in it too, so the links are slow or stuck",
            ),
        ]
    }

    #[test]
    fn a_timeout_on_devices_names_who_is_late() {
        let late = Late {
            rank: member(1, 1),
            last: Some((4, "barrier".to_string())),
            age: Duration::from_secs(590),
        };
        let fault = Fault::TimedOut {
            by: member(0, 0),
            sequence: DEVICE_MARK | 7,
            words: "all_reduce".into(),
            waited: Duration::from_secs(3),
            late: vec![late],
        };
        let text = fault.to_string();
        assert!(text.contains("#7 on the device"), "{text}");
        assert!(
            text.contains("it waits for: rank 1 (host1, pid 11); look"),
            "{text}"
        );
    }

    #[test]
    fn the_troubleshooting_guide_explains_every_fault() {
        let guide = include_str!("../../../docs/troubleshooting.md");
        let [by, rank] = [member(0, 0), member(1, 1)];
        for (fault, quote) in faults(&by, &rank).into_iter().chain(timeouts(&by, &rank)) {
            assert!(fault.to_string().contains(quote), "{fault}");
            assert!(
                guide.contains(quote),
                "the guide does not explain {quote:?}"
            );
        }
    }
}
