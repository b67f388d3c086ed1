//! Frames are read back as written, and malformed ones are refused without a panic.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::agreement::MAX_LISTED;
use crate::device_calls::{DeviceCalls, MOST_PEERS, Messages};
use crate::fault::{Late, Member};
use crate::leave::MOST_CALLS;
use crate::standing::{KINDS, Wait};

pub(crate) const SIZE: u32 = 1000;

fn member() -> impl Strategy<Value = Member> {
    (0..SIZE).prop_map(|world| Member::new(world, world, "".into()))
}

fn millis() -> impl Strategy<Value = Duration> {
    any::<u64>().prop_map(Duration::from_millis)
}

fn late() -> impl Strategy<Value = Late> {
    (
        member(),
        proptest::option::of((any::<u64>(), "\\PC{0,40}")),
        proptest::option::of(millis()),
        any::<bool>(),
    )
        .prop_map(|(rank, last, age, needs_thread)| Late {
            rank,
            last,
            age,
            needs_thread,
        })
}

pub(crate) fn fault() -> impl Strategy<Value = Fault> {
    let text = || "\\PC{0,40}";
    prop_oneof![
        member().prop_map(|rank| Fault::Died { rank }),
        (member(), text()).prop_map(|(rank, error)| Fault::Lost { rank, error }),
        (member(), any::<u64>(), any::<u64>(), text()).prop_map(
            |(rank, last_sequence, sequence, words)| Fault::Left {
                rank,
                last_sequence,
                sequence,
                words
            }
        ),
        (member(), text()).prop_map(|(by, reason)| Fault::Aborted { by, reason }),
        (any::<u64>(), member(), text(), member(), text()).prop_map(
            |(sequence, rank_a, words_a, rank_b, words_b)| Fault::Mismatch {
                sequence,
                rank_a,
                words_a,
                rank_b,
                words_b
            }
        ),
        (
            (member(), any::<u64>(), text()),
            (millis(), prop::collection::vec(late(), 0..=body::MAX_LATE))
        )
            .prop_map(|((by, sequence, words), (waited, late))| Fault::TimedOut {
                by,
                sequence,
                words,
                waited,
                late
            }),
        (member(), member(), text()).prop_map(|(by, peer, text)| Fault::Link { by, peer, text }),
    ]
}

fn progress() -> impl Strategy<Value = Progress> {
    let waiting = prop_oneof![
        Just(None),
        Just(Some(WaitingFor::Anyone)),
        (0..SIZE).prop_map(|rank| Some(WaitingFor::Rank(rank))),
    ];
    (any::<[u64; 5]>(), waiting).prop_map(|([context, finished, sequence, s0, s1], waiting)| {
        Progress {
            context,
            finished,
            sequence,
            signature: [s0, s1],
            waiting,
        }
    })
}

fn answer() -> impl Strategy<Value = Answer> {
    let wait = (any::<[u64; 3]>(), proptest::option::of(0..SIZE), millis());
    let wait = wait.prop_map(|([sequence, s0, s1], for_rank, since)| Wait {
        sequence,
        signature: [s0, s1],
        for_rank,
        since,
    });
    let parts = (
        any::<[u64; 5]>(),
        proptest::option::of(wait),
        any::<[u64; KINDS]>(),
    );
    parts.prop_map(
        |([context, entered, finished, s0, s1], waits, calls)| Answer {
            context,
            entered,
            finished,
            signature: [s0, s1],
            waits,
            calls,
        },
    )
}

fn claim() -> impl Strategy<Value = Claim> {
    (any::<[u64; 8]>(), any::<bool>()).prop_map(|(words, asks)| {
        let [context, number, digest, s0, s1, agreed, differs, question] = words;
        let signature = [s0, s1];
        Claim {
            context,
            number,
            entry: Entry { digest, signature },
            agreed,
            differs,
            question,
            asks,
        }
    })
}

pub(crate) fn proposal() -> impl Strategy<Value = Proposal> {
    let members = || prop::collection::vec(0..SIZE, 0..=MAX_LISTED);
    let bound = (any::<u64>(), any::<u64>(), members());
    let bound = bound.prop_map(|(generation, context, without)| Bound {
        generation,
        context,
        without,
    });
    let (bound, context) = (
        proptest::option::of(bound),
        proptest::option::of(any::<u64>()),
    );
    let parts = (any::<u64>(), context, bound, members(), members());
    parts.prop_map(|(generation, context, bound, without, silent)| Proposal {
        generation,
        context,
        bound,
        without,
        silent,
    })
}

fn messages() -> impl Strategy<Value = BTreeMap<u32, Messages>> {
    let messages = any::<[u64; 2]>().prop_map(|[sent, received]| Messages { sent, received });
    prop::collection::btree_map(0..SIZE, messages, 0..=MOST_PEERS)
}

fn leave() -> impl Strategy<Value = Leave> {
    let calls = prop::collection::vec(any::<(u64, [u64; 2])>(), 0..=MOST_CALLS);
    let cause = (member(), any::<[u64; 2]>(), "\\PC{0,40}");
    let cause = cause.prop_map(
        |(rank, [last_sequence, sequence], words)| match sequence % 2 {
            0 => Fault::Aborted {
                by: rank,
                reason: words,
            },
            _ => Fault::Left {
                rank,
                last_sequence,
                sequence,
                words,
            },
        },
    );
    let options = (
        proptest::option::of(messages()),
        device_calls(),
        proptest::option::of(cause),
    );
    let parts = (any::<u64>(), any::<bool>(), calls, options);
    parts.prop_map(
        |(last_sequence, is_in_flight, calls, (messages, device_calls, cause))| Leave {
            last_sequence,
            is_in_flight,
            calls,
            messages,
            device_calls,
            cause,
        },
    )
}

fn device_calls() -> impl Strategy<Value = DeviceCalls> {
    let calls = (any::<u64>(), messages(), any::<bool>());
    calls.prop_map(|(collectives, messages, has_uncounted)| DeviceCalls {
        collectives,
        messages,
        has_uncounted,
    })
}

fn frame() -> impl Strategy<Value = Frame> {
    let last = proptest::option::of((any::<u64>(), any::<[u64; 2]>()));
    let age = proptest::option::of(millis());
    let report = (any::<[u64; 2]>(), 0..SIZE, last, age);
    let report = report.prop_map(|([context, sequence], rank, last, age)| LateReport {
        context,
        sequence,
        rank,
        last,
        age,
    });
    let content = prop_oneof![
        progress().prop_map(Content::Progress),
        report.prop_map(Content::Late),
        any::<u64>().prop_map(|context| Content::Query { context }),
        answer().prop_map(Content::Answer),
        claim().prop_map(Content::Claim),
    ];
    let news = prop_oneof![
        (any::<u64>(), leave()).prop_map(|(context, leave)| News::Leave {
            context,
            leave: Box::new(leave)
        }),
        Just(News::Goodbye),
        (0..SIZE, failure()).prop_map(|(rank, failure)| News::Gone { rank, failure }),
        (any::<u64>(), fault()).prop_map(|(context, fault)| News::Fault { context, fault }),
        (any::<u64>(), proposal())
            .prop_map(|(context, proposal)| News::Proposal { context, proposal }),
    ];
    prop_oneof![
        any::<u32>().prop_map(|bytes| Frame::Ack { bytes }),
        (
            any::<u64>(),
            prop::collection::vec(0..SIZE, 0..=body::MAX_RANKS)
        )
            .prop_map(|(received, hears)| Frame::Heartbeat(Heartbeat { received, hears })),
        (0..SIZE, 0..SIZE, any::<u64>(), content).prop_map(|(to, origin, counter, content)| {
            Frame::Notice {
                to,
                notice: Notice {
                    origin,
                    counter,
                    content,
                },
            }
        }),
        (0..SIZE, any::<u64>(), news).prop_map(|(origin, counter, news)| Frame::Flood(Flood {
            origin,
            counter,
            news
        })),
    ]
}

proptest! {
    #[test]
    fn what_is_written_is_read(frame in frame(), trailing in any::<Vec<u8>>()) {
        let bytes = encode(&frame);
        for cut in 0..bytes.len() {
            prop_assert_eq!(parse(&bytes[..cut], SIZE), Ok(None));
        }
        let mut followed = bytes.clone();
        followed.extend(trailing);
        prop_assert_eq!(parse(&followed, SIZE), Ok(Some((frame, bytes.len()))));
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in any::<Vec<u8>>(), size in any::<u32>()) {
        if let Ok(Some((_, length))) = parse(&bytes, size) {
            prop_assert!(length <= bytes.len());
        }
    }

    /// Random bodies get a valid header, so that the bodies' parsers see them.
    #[test]
    fn arbitrary_bodies_never_panic(kind in 0..=PROPOSAL, body in any::<Vec<u8>>(), size in any::<u32>()) {
        let mut bytes = MAGIC.to_le_bytes().to_vec();
        bytes.extend([VERSION, kind]);
        bytes.extend((body.len() as u32).to_le_bytes());
        bytes.extend(&body);
        match parse(&bytes, size) {
            Ok(Some((frame, length))) => {
                prop_assert_eq!(length, bytes.len());
                prop_assert_eq!(encode(&frame), bytes);
            }
            Ok(None) => prop_assert!(false, "a complete frame was not recognised"),
            Err(_) => {}
        }
    }

    #[test]
    fn a_flipped_bit_never_panics(frame in frame(), at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let mut bytes = encode(&frame);
        let at = at.index(bytes.len());
        bytes[at] ^= 1u8 << bit;
        let _ = parse(&bytes, SIZE);
    }
}

#[test]
fn refusals_say_what_was_expected_and_seen() {
    let good = encode(&Frame::Ack { bytes: 1 });
    let changed = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        parse(&bytes, SIZE)
    };
    assert_eq!(changed(0, b'G'), Err(WireError::Magic([b'G', 0x5C])));
    assert_eq!(changed(2, 9), Err(WireError::Version(9)));
    assert_eq!(changed(3, 99), Err(WireError::Kind(99)));
    assert_eq!(changed(7, 0xFF), Err(WireError::Length(0xFF00_0004)));
    assert_eq!(changed(4, 3), Err(WireError::Body(ACK)));
    let text = WireError::Version(9).to_string();
    assert_eq!(text, "expected control protocol version 8, saw version 9");
}

#[test]
fn a_rank_beyond_the_world_is_refused() {
    let goodbye = Frame::Flood(Flood {
        origin: 5,
        counter: 1,
        news: News::Goodbye,
    });
    assert!(parse(&encode(&goodbye), 6).is_ok());
    assert_eq!(parse(&encode(&goodbye), 5), Err(WireError::Body(GOODBYE)));
}

#[test]
fn the_longest_proposal_fits_and_keeps_its_lists() {
    let members: Vec<u32> = (0..MAX_LISTED as u32).collect();
    let proposal = Proposal {
        generation: u64::MAX,
        context: Some(u64::MAX),
        bound: Some(Bound {
            generation: u64::MAX,
            context: u64::MAX,
            without: members.clone(),
        }),
        without: members.clone(),
        silent: members,
    };
    let frame = Frame::Flood(Flood {
        origin: 1,
        counter: 1,
        news: News::Proposal {
            context: 1,
            proposal,
        },
    });
    let bytes = encode(&frame);
    assert!(bytes.len() <= HEADER + MAX_BODY);
    assert_eq!(
        parse(&bytes, MAX_LISTED as u32),
        Ok(Some((frame, bytes.len())))
    );
}

#[test]
fn the_longest_fault_fits_and_texts_are_cut_between_characters() {
    let long = "\u{e9}".repeat(5000);
    let member = Member::new(1, 1, "".into());
    let late = Late {
        rank: member.clone(),
        last: Some((7, long.clone())),
        age: Some(Duration::MAX),
        needs_thread: true,
    };
    let faults = [
        Fault::Aborted {
            by: member.clone(),
            reason: long.clone(),
        },
        Fault::TimedOut {
            by: member,
            sequence: 1,
            words: long,
            waited: Duration::MAX,
            late: vec![late; 100],
        },
    ];
    for fault in faults {
        let news = News::Fault { context: 1, fault };
        let bytes = encode(&Frame::Flood(Flood {
            origin: 1,
            counter: 1,
            news,
        }));
        assert!(bytes.len() <= HEADER + MAX_BODY);
        let parsed = parse(&bytes, SIZE).unwrap();
        assert!(parsed.is_some_and(|(_, length)| length == bytes.len()));
    }
}

pub(crate) fn failure() -> impl Strategy<Value = Failure> {
    prop_oneof![
        Just(Failure::Died),
        "\\PC{0,40}".prop_map(Failure::Lost),
        Just(Failure::Refused),
    ]
}
