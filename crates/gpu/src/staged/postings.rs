//! Divides messages among launches, flows and CTAs.

use std::collections::BTreeMap;

use super::cut::Cut;
use super::host::Lane;
use super::layout::{FLOWS, MESSAGES, Posting, StageFlow, StageLayout, StageMessage};
use crate::{Error, Message, MessageDirection};

/// Messages that are passed by one kernel. Each flow, those to a rank or those from one, has a CTA
/// of its own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Launch {
    flows: Vec<StageFlow>,
    messages: Vec<StageMessage>,
}

/// The launches that pass some messages: one, if it has room for them. Otherwise, launch k has
/// messages whose ends, at both ranks, are in a launch k, or in the one that has all. So launch k
/// of each rank only needs launches up to k of the others.
pub(super) fn launches(
    messages: &[Message],
    rank: usize,
    ranks: usize,
) -> Result<Vec<Launch>, Error> {
    let mut flows: BTreeMap<(usize, MessageDirection), Vec<&Message>> = BTreeMap::new();
    for message in messages {
        let peer = message.peer;
        if peer >= ranks {
            return Err(Error::Peer { rank, peer, ranks });
        }
        flows.entry((peer, message.way)).or_default().push(message);
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
            launch.add(Lane::of_messages(way, peer), way, part, ranks);
        }
    }
    Ok(launches.into_values().collect())
}

/// A flow's messages in a launch, its first launch, and the distance to its next one: alike at both
/// ends, as the distance from the sender to the receiver is.
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
    fn add(&mut self, lane: Lane, way: MessageDirection, messages: &[&Message], ranks: usize) {
        let begin = self.messages.len();
        let mut pieces = 0;
        for message in messages {
            let cut = Cut::of_message(message.bytes, ranks);
            pieces += cut.pieces();
            self.messages.push(StageMessage {
                start: message.address,
                bytes: message.bytes,
                piece: cut.len(),
                words: message.words,
            });
        }
        self.flows.push(StageFlow {
            lane: lane.in_kernel(),
            is_sent: u16::from(way == MessageDirection::Send),
            begin: begin as u16,
            pieces,
        });
    }

    pub(super) fn ctas(&self) -> u32 {
        self.flows.len() as u32
    }

    /// The bytes of the longest piece.
    pub(super) fn longest_piece(&self) -> u64 {
        let pieces = self.messages.iter();
        pieces
            .map(|message| message.piece.min(message.bytes))
            .max()
            .unwrap_or(0)
    }

    /// The kernel's argument.
    pub(super) fn posting(&self, stage: StageLayout) -> Posting {
        let mut posting = Posting {
            stage,
            flow: [StageFlow::default(); FLOWS],
            message: [StageMessage::default(); MESSAGES],
        };
        posting.flow[..self.flows.len()].copy_from_slice(&self.flows);
        posting.message[..self.messages.len()].copy_from_slice(&self.messages);
        posting
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

    /// By message: its launch.
    fn places(messages: &[Message], rank: usize, ranks: usize) -> BTreeMap<(u32, u64), usize> {
        let launches = launches(messages, rank, ranks).unwrap();
        let mut places = BTreeMap::new();
        for (number, launch) in launches.iter().enumerate() {
            assert!(launch.flows.len() <= FLOWS && launch.messages.len() <= MESSAGES);
            let ends = launch.flows.iter().skip(1).map(|flow| flow.begin as usize);
            let ends = ends.chain([launch.messages.len()]);
            for (flow, end) in launch.flows.iter().zip(ends) {
                for message in &launch.messages[flow.begin as usize..end] {
                    places.insert((flow.lane, message.words[0]), number);
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
                let of = |way, peer| (Lane::of_messages(way, peer).in_kernel(), number);
                let (send, receive) = (MessageDirection::Send, MessageDirection::Receive);
                prop_assert_eq!(first[&of(send, ranks - 1)], last[&of(receive, 0)]);
                prop_assert_eq!(first[&of(receive, ranks - 1)], last[&of(send, 0)]);
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
        let pieces: Vec<_> = launches[0].flows.iter().map(|flow| flow.pieces).collect();
        assert_eq!((launches.len(), pieces), (1, vec![1, 7]));
        assert_eq!(launches[0].longest_piece(), 150_000);
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
