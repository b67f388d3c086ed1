//! Divides messages by way of the host among launches, flows and CTAs.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::{Error, Message, MessageDirection};

/// The most flows and messages of a launch.
pub(crate) const FLOWS: usize = 32;
pub(crate) const MESSAGES: usize = 80;

/// Messages that are passed by one kernel. Each flow, those to a rank or those from one, has a CTA
/// of its own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Launch {
    pub(crate) flows: Vec<Flow>,
    pub(crate) messages: Vec<Message>,
}

/// The messages of a launch to a rank, or from one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Flow {
    pub(crate) peer: usize,
    pub(crate) way: MessageDirection,
    /// The places of its messages.
    pub(crate) places: Range<usize>,
}

/// The launches that pass some messages: one, if it has room for them. Otherwise both ends of a
/// message are in launches of one number k, or the other rank has a single launch for all its
/// messages. So launch k of each rank only needs launches up to k of the others.
pub(crate) fn launches(
    messages: &[Message],
    rank: usize,
    ranks: usize,
) -> Result<Vec<Launch>, Error> {
    let mut flows: BTreeMap<(usize, MessageDirection), Vec<Message>> = BTreeMap::new();
    for message in messages {
        let peer = message.peer;
        if peer >= ranks {
            return Err(Error::Peer { rank, peer, ranks });
        }
        flows.entry((peer, message.way)).or_default().push(*message);
    }
    let is_one = messages.len() <= MESSAGES && flows.len() <= FLOWS;
    let mut launches: BTreeMap<usize, Launch> = BTreeMap::new();
    for ((peer, way), flow) in flows {
        let (share, first, step) = if is_one {
            (MESSAGES, 0, 1)
        } else {
            turns((rank, peer), way, ranks)
        };
        for (turn, part) in flow.chunks(share).enumerate() {
            let launch = launches.entry(first + turn * step).or_default();
            let begin = launch.messages.len();
            launch.messages.extend(part);
            let places = begin..launch.messages.len();
            launch.flows.push(Flow { peer, way, places });
        }
    }
    Ok(launches.into_values().collect())
}

/// How a flow is cut: its messages in a launch, its first launch, and the step to its next one.
/// Both ends compute the same, from the distance between sender and receiver.
fn turns(
    (rank, peer): (usize, usize),
    way: MessageDirection,
    ranks: usize,
) -> (usize, usize, usize) {
    let (from, to) = match way {
        MessageDirection::Send => (rank, peer),
        MessageDirection::Receive => (peer, rank),
    };
    let distance = (to + ranks - from) % ranks;
    let distances = ranks.min(FLOWS / 2);
    (
        MESSAGES / (2 * distances),
        distance / distances,
        ranks.div_ceil(distances),
    )
}

impl Launch {
    pub(crate) fn ctas(&self) -> u32 {
        self.flows.len() as u32
    }

    /// The largest `bytes` of the launch's messages.
    pub(crate) fn most(&self, bytes: impl Fn(&Message) -> u64) -> u64 {
        self.messages.iter().map(bytes).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(way: MessageDirection, peer: usize, number: u64) -> Message {
        Message {
            way,
            peer,
            address: 0,
            bytes: 1000 * number,
            words: [number, 0],
        }
    }

    /// By flow and message: its launch.
    fn places(
        messages: &[Message],
        rank: usize,
        ranks: usize,
    ) -> BTreeMap<(usize, MessageDirection, u64), usize> {
        let launches = launches(messages, rank, ranks).unwrap();
        let mut places = BTreeMap::new();
        for (number, launch) in launches.iter().enumerate() {
            assert!(launch.flows.len() <= FLOWS && launch.messages.len() <= MESSAGES);
            for flow in &launch.flows {
                for message in &launch.messages[flow.places.clone()] {
                    places.insert((flow.peer, flow.way, message.words[0]), number);
                }
            }
        }
        assert_eq!(places.len(), messages.len());
        places
    }

    proptest! {
        /// All ranks send all others some messages: both ends of each are in launches of one
        /// number.
        #[test]
        fn both_ends_are_in_the_same_launch(ranks in 1_usize..80, each in 1_u64..50) {
            let all = |rank: usize| {
                let to = |peer| (0..each).flat_map(move |number| {
                    let ways = [MessageDirection::Send, MessageDirection::Receive];
                    ways.map(|way| message(way, peer, number))
                });
                places(&(0..ranks).flat_map(to).collect::<Vec<_>>(), rank, ranks)
            };
            let [first, last] = [0, ranks - 1].map(all);
            for number in 0..each {
                let (send, receive) = (MessageDirection::Send, MessageDirection::Receive);
                prop_assert_eq!(first[&(ranks - 1, send, number)], last[&(0, receive, number)]);
                prop_assert_eq!(first[&(ranks - 1, receive, number)], last[&(0, send, number)]);
            }
        }
    }

    #[test]
    fn few_messages_are_one_launch_in_the_order_of_each_pair() {
        let messages = [
            message(MessageDirection::Send, 1, 1),
            message(MessageDirection::Receive, 1, 0),
            message(MessageDirection::Send, 1, 900),
        ];
        let launches = launches(&messages, 0, 2).unwrap();
        let flows = launches[0].flows.iter();
        let places: Vec<_> = flows.map(|flow| flow.places.clone()).collect();
        assert_eq!((launches.len(), places), (1, vec![0..1, 1..3]));
        assert_eq!(launches[0].most(|message| message.bytes), 900_000);
        let words: Vec<_> = launches[0]
            .messages
            .iter()
            .map(|message| message.words[0])
            .collect();
        assert_eq!(words, [0, 1, 900]);
    }

    #[test]
    fn a_peer_is_a_rank() {
        let said = launches(&[message(MessageDirection::Send, 2, 0)], 0, 2).unwrap_err();
        assert_eq!(
            said,
            Error::Peer {
                rank: 0,
                peer: 2,
                ranks: 2
            }
        );
        assert_eq!(launches(&[], 0, 2).unwrap(), []);
    }
}
