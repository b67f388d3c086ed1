//! Tests of the launches that messages are divided among.

use proptest::prelude::*;

use super::*;
use crate::Wire;

const LIMITS: Limits = Limits {
    ctas: 32,
    wire: Wire::Whole,
};

fn message(way: MessageDirection, peer: usize, bytes: u64) -> Message {
    Message {
        way,
        peer,
        address: 0,
        bytes,
        words: [0; 2],
    }
}

fn launches(messages: &[Message], ranks: usize, limits: Limits) -> Vec<Launch> {
    Launches::new(messages, 0, ranks, limits).unwrap().collect()
}

fn flows(launch: &Launch) -> &[FlowLayout] {
    &launch.flow[..launch.flows]
}

#[test]
fn short_messages_take_few_warps() {
    let messages = [
        message(MessageDirection::Send, 1, 8),
        message(MessageDirection::Receive, 0, 1900),
    ];
    let all = launches(&messages, 2, LIMITS);
    let [launch] = &all[..] else {
        panic!("{all:?}");
    };
    let flow = |peer, is_sent, begin, warps| FlowLayout {
        peer,
        is_sent,
        begin,
        end: begin + 1,
        warps,
    };
    assert_eq!(flows(launch), [flow(0, 0, 0, 2), flow(1, 1, 1, 1)]);
    assert_eq!((launch.ctas, launch.threads), (1, 3 * 32));
    assert_eq!(launch.message[1].bytes, 8);
}

#[test]
fn long_messages_share_the_grid() {
    let both_ways = |peer| {
        [MessageDirection::Send, MessageDirection::Receive].map(|way| message(way, peer, 1 << 30))
    };
    let two: Vec<_> = both_ways(1).into();
    let launch = launches(&two, 2, LIMITS).pop().unwrap();
    assert!(flows(&launch).iter().all(|flow| flow.warps == STRANDS));
    assert_eq!((launch.ctas, launch.threads), (32, 16 * 32));
    let eight: Vec<_> = (0..8).flat_map(both_ways).collect();
    let launch = launches(&eight, 8, LIMITS).pop().unwrap();
    assert!(flows(&launch).iter().all(|flow| flow.warps == 32));
    // Eight ranks on one GPU: each flow still has a warp.
    let least = Limits { ctas: 1, ..LIMITS };
    let launch = launches(&eight, 8, least).pop().unwrap();
    assert!(flows(&launch).iter().all(|flow| flow.warps == 1));
    assert_eq!((launch.ctas, launch.threads), (1, 16 * 32));
}

#[test]
fn peers_are_ranks() {
    let said = Launches::new(&[message(MessageDirection::Send, 3, 0)], 1, 3, LIMITS).unwrap_err();
    let expected = Error::Peer {
        rank: 1,
        peer: 3,
        ranks: 3,
    };
    assert_eq!(said, expected);
}

#[test]
fn nothing_is_no_launch() {
    assert!(launches(&[], 4, LIMITS).is_empty());
}

/// Messages between any two of some ranks: sender and receiver of each.
fn between(ranks: usize) -> impl Strategy<Value = Vec<(usize, usize)>> {
    proptest::collection::vec((0..ranks, 0..ranks), 0..500)
}

/// A rank's ends of messages. The address of each is its number.
fn ends(pairs: &[(usize, usize)], rank: usize) -> Vec<Message> {
    let mut ends = Vec::new();
    for (number, &(from, to)) in pairs.iter().enumerate() {
        let end = |way, peer| Message {
            address: number as u64,
            ..message(way, peer, 1000)
        };
        ends.extend((from == rank).then(|| end(MessageDirection::Send, to)));
        ends.extend((to == rank).then(|| end(MessageDirection::Receive, from)));
    }
    ends
}

/// A launch's messages by flow: from which rank to which, and their numbers.
fn numbers(launch: &Launch, rank: usize) -> Vec<((usize, usize), Vec<usize>)> {
    let of = |flow: &FlowLayout| {
        let peer = usize::from(flow.peer);
        let messages = &launch.message[usize::from(flow.begin)..usize::from(flow.end)];
        let pair = if flow.is_sent == 1 {
            (rank, peer)
        } else {
            (peer, rank)
        };
        (
            pair,
            messages
                .iter()
                .map(|message| message.start as usize)
                .collect(),
        )
    };
    flows(launch).iter().map(of).collect()
}

fn keeps_limits(launch: &Launch, ctas: u32) -> bool {
    let warps: u32 = flows(launch).iter().map(|flow| flow.warps).sum();
    let mut flows = flows(launch).iter();
    (1..=MANY).contains(&launch.messages)
        && (1..=ctas).contains(&launch.ctas)
        && launch.threads <= 32 * MAX_WARPS
        && warps <= launch.ctas * launch.threads / 32
        && flows.all(|flow| flow.warps.is_power_of_two() && flow.warps <= STRANDS)
}

proptest! {
    /// The two ends of a message are in launches of the same number, or the launch of one end has
    /// all messages of its rank. So no two launches need later ones of each other.
    #[test]
    fn both_ends_count_alike(
        (ranks, pairs) in (1..=8_usize).prop_flat_map(|ranks| (Just(ranks), between(ranks))),
        ctas in 1..=32_u32,
        wire in prop_oneof![Just(Wire::Any), Just(Wire::Whole), Just(Wire::Host)],
    ) {
        // By the number of the message: in which launches its ends are, and of how many.
        let mut places = vec![Vec::new(); pairs.len()];
        for rank in 0..ranks {
            let ends = ends(&pairs, rank);
            let all = launches(&ends, ranks, Limits { ctas, wire });
            let mut seen = 0;
            for (place, launch) in all.iter().enumerate() {
                prop_assert!(keeps_limits(launch, ctas), "{launch:?}");
                for (pair, numbers) in numbers(launch, rank) {
                    prop_assert!(numbers.is_sorted());
                    seen += numbers.len();
                    for number in numbers {
                        prop_assert_eq!(pairs[number], pair);
                        places[number].push((place, all.len()));
                    }
                }
            }
            prop_assert_eq!(seen, ends.len());
        }
        for places in places {
            let [first, second] = places[..] else {
                panic!("{places:?}");
            };
            prop_assert!(first.0 == second.0 || first.1 == 1 || second.1 == 1);
        }
    }
}
