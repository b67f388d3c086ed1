//! Messages between two ranks, and how they are divided among launches, flows and warps.

use crate::channels::{FLOWS, FlowLayout, LaunchLayout, MANY, MessageLayout, Places, STRANDS};
use crate::layout::{MAX_CTAS, MAX_WARPS, MemberLayout};
use crate::plan::Protocol;
use crate::{Error, Limits};

/// One end of a message, by the address of its buffer on this rank's GPU, of any alignment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    /// Whether this rank sends it or receives it.
    pub way: MessageDirection,
    /// The other rank, which may be this one.
    pub peer: usize,
    /// Where the buffer starts.
    pub address: u64,
    /// The length of the buffer in bytes. A message of 0 bytes is passed, too.
    pub bytes: u64,
    /// The words that must be equal at both ends; otherwise the receiver fails with
    /// [`Error::OtherMessage`]. Messages with equal words must have equal lengths.
    pub words: [u64; 2],
}

/// Which end of a message it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MessageDirection {
    /// The peer sends it to this rank.
    Receive = 0,
    /// This rank sends it to the peer.
    Send = 1,
}

impl Message {
    /// The index of its flow among all possible flows.
    fn flow(&self) -> usize {
        2 * self.peer + self.way as usize
    }

    /// The number of batches that it is cut into.
    fn batches(&self, protocol: Protocol) -> u64 {
        let batch = protocol.batch();
        let rest = self.bytes.div_ceil(8).saturating_sub(batch - 16);
        1 + rest.div_ceil(batch)
    }
}

/// The launches that pass some messages together: one, if it has room for them. Otherwise each
/// launch has the next messages of each flow, and how many a flow has in a launch depends only on
/// the number of ranks. Both ends of a message count in the same way, so launch k of each rank only
/// needs launches up to k of the others.
#[derive(Debug)]
pub(crate) struct Launches<'a> {
    messages: &'a [Message],
    limits: Limits,
    /// The most messages of a flow in a launch.
    share: usize,
    /// How many launches there are.
    count: usize,
    next: usize,
}

impl<'a> Launches<'a> {
    pub(crate) fn new(
        messages: &'a [Message],
        rank: usize,
        ranks: usize,
        limits: Limits,
    ) -> Result<Self, Error> {
        let mut of_flow = [0_usize; FLOWS];
        for message in messages {
            let peer = message.peer;
            if peer >= ranks {
                return Err(Error::Peer { rank, peer, ranks });
            }
            of_flow[message.flow()] += 1;
        }
        let is_one = messages.len() <= MANY;
        let share = if is_one { MANY } else { MANY / (2 * ranks) };
        let most = of_flow.into_iter().max().unwrap_or(0);
        Ok(Self {
            messages,
            limits,
            share,
            count: most.div_ceil(share),
            next: 0,
        })
    }

    /// The messages of a launch, each with its flow.
    fn part(&self, launch: usize) -> impl Iterator<Item = (usize, &'a Message)> + use<'a> {
        let share = self.share;
        let mut of_flow = [0_usize; FLOWS];
        self.messages.iter().filter_map(move |message| {
            let flow = message.flow();
            let place = of_flow[flow];
            of_flow[flow] += 1;
            (place / share == launch).then_some((flow, message))
        })
    }
}

impl Iterator for Launches<'_> {
    type Item = Launch;

    fn next(&mut self) -> Option<Launch> {
        let launch = self.next;
        self.next += 1;
        (launch < self.count).then(|| Launch::new(|| self.part(launch), self.limits))
    }
}

/// Messages that are passed by one kernel, by flow.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(crate) flow: [FlowLayout; FLOWS],
    pub(crate) flows: usize,
    pub(crate) message: [MessageLayout; MANY],
    pub(crate) messages: usize,
    pub(crate) ctas: u32,
    pub(crate) threads: u32,
}

impl Launch {
    /// A launch of nothing, on a small grid.
    pub(crate) const NOTHING: Self = Self {
        flow: [FlowLayout {
            peer: 0,
            is_sent: 0,
            begin: 0,
            end: 0,
            warps: 0,
        }; FLOWS],
        flows: 0,
        message: [MessageLayout {
            start: 0,
            bytes: 0,
            words: [0; 2],
        }; MANY],
        messages: 0,
        ctas: 1,
        threads: 32,
    };

    /// A launch of at most `MANY` messages. `part` lists them in the same order each time.
    fn new<'a, I>(part: impl Fn() -> I, limits: Limits) -> Self
    where
        I: Iterator<Item = (usize, &'a Message)>,
    {
        let mut launch = Self::NOTHING;
        let mut batches = [0_u64; FLOWS];
        for (flow, message) in part() {
            batches[flow] = batches[flow].max(message.batches(limits.wire.of_messages()));
        }
        let most = MAX_WARPS * limits.ctas.clamp(1, MAX_CTAS);
        let flows = batches.iter().filter(|&&batches| batches > 0).count();
        let mut warps = 0;
        for flow in (0..FLOWS).filter(|&flow| batches[flow] > 0) {
            let begin = launch.messages;
            for (_, message) in part().filter(|&(of, _)| of == flow) {
                launch.message[launch.messages] = MessageLayout {
                    start: message.address,
                    bytes: message.bytes,
                    words: message.words,
                };
                launch.messages += 1;
            }
            let own = warps_for(batches[flow], most / flows as u32);
            warps += own;
            launch.flow[launch.flows] = FlowLayout {
                peer: (flow / 2) as u8,
                is_sent: (flow % 2) as u8,
                begin: begin as u8,
                end: launch.messages as u8,
                warps: own,
            };
            launch.flows += 1;
        }
        launch.ctas = warps
            .div_ceil(WARPS_OF_SMALL_CTA)
            .clamp(1, most / MAX_WARPS);
        launch.threads = 32 * warps.div_ceil(launch.ctas);
        launch
    }
}

impl Launch {
    /// The argument of the launch's kernel, with room for `MESSAGES` messages: no fewer than the
    /// launch has, and at most `MANY`.
    pub(crate) fn layout<const MESSAGES: usize>(
        &self,
        member: MemberLayout,
        places: Places,
    ) -> LaunchLayout<MESSAGES> {
        LaunchLayout {
            member,
            channels: places.channels,
            counts: places.counts,
            flows: self.flows as u64,
            flow: self.flow,
            message: std::array::from_fn(|place| self.message[place]),
        }
    }
}

/// Few warps in each CTA as long as there are CTAs left.
const WARPS_OF_SMALL_CTA: u32 = 4;

/// The warps of a flow, for messages of at most this many batches: a power of two.
fn warps_for(batches: u64, most: u32) -> u32 {
    let most = most.min(STRANDS);
    let all = batches.min(u64::from(STRANDS)) as u32;
    // The largest power of two that is allowed.
    all.next_power_of_two().min(1 << most.ilog2())
}

#[cfg(test)]
mod tests;
