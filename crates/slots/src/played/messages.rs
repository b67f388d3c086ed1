//! Messages, also among calls: they pass if any rank is late, in rings of any length, and a wrong
//! one is found before a byte is used.

use spark_ccl_testing::scramble;
use spark_ccl_types::{DType, Operation};

use super::buffers::{Buffers, Call};
use super::is_watched;
use super::results::any_call;
use super::world::{Failed, Launch, SLOT, World};
use crate::conformance::{Make, copying, delayed, placed, written};
use crate::linked::tests::devices::over_devices;
use crate::linked::tests::over_sockets;
use crate::route::OPERATIONS;
use crate::{FLOWS, Flow, Form, MESSAGES, Mailing, Message, Plan, Shape, SlotMember};

const DEPTH: usize = 2;
const LATE: u64 = 1;
const OTHER_MESSAGE: u64 = 4;
/// The bytes around buffers, which nothing may write.
const AROUND: u8 = 0xa5;
const MARGIN: usize = 32;

/// One end of a message. Both ends have the same seed.
#[derive(Debug, Clone, Copy)]
struct End {
    peer: usize,
    is_sent: bool,
    bytes: usize,
    seed: u64,
}

impl End {
    fn values(&self) -> Vec<u8> {
        let all = (0..self.bytes as u64).map(|at| scramble(self.seed, at) as u8);
        all.collect()
    }

    /// Where the buffer begins.
    fn start(&self) -> usize {
        MARGIN + self.seed as usize % 17
    }
}

/// A rank's messages in a launch, by flow, and their buffers.
pub(super) struct Mail {
    ends: Vec<End>,
    buffers: Vec<Vec<u8>>,
}

impl Mail {
    fn new(mut ends: Vec<End>) -> Self {
        ends.sort_by_key(|end| (end.peer, end.is_sent));
        let buffers = ends.iter().map(|end| {
            let mut buffer = vec![AROUND; end.start() + end.bytes + MARGIN];
            if end.is_sent {
                buffer[end.start()..][..end.bytes].copy_from_slice(&end.values());
            }
            buffer
        });
        let buffers = buffers.collect();
        Self { ends, buffers }
    }

    pub(super) fn flows(&self) -> u32 {
        let key = |end: &End| (end.peer, end.is_sent);
        self.ends
            .chunk_by(|one, other| key(one) == key(other))
            .count() as u32
    }

    pub(super) fn mailing(&mut self, member: SlotMember) -> Mailing {
        let mut mailing = Mailing {
            member,
            flow: [Flow::default(); FLOWS],
            message: [Message::default(); MESSAGES],
        };
        let shape = Shape::new(1, 1, SLOT).unwrap();
        for (to, (end, buffer)) in mailing
            .message
            .iter_mut()
            .zip(self.ends.iter().zip(&mut self.buffers))
        {
            *to = Message {
                start: buffer[end.start()..].as_mut_ptr().expose_provenance() as u64,
                bytes: end.bytes as u64,
                piece: Plan::piece_of_message(end.bytes as u64, shape, 64),
                words: [end.seed, end.bytes as u64],
            };
        }
        let key = |end: &End| (end.peer, end.is_sent);
        let mut begin = 0;
        let flows = self.ends.chunk_by(|one, other| key(one) == key(other));
        for (to, flow) in mailing.flow.iter_mut().zip(flows) {
            *to = Flow {
                peer: flow[0].peer as u32,
                is_sent: u32::from(flow[0].is_sent),
                begin,
                end: begin + flow.len() as u32,
            };
            begin = to.end;
        }
        mailing
    }

    /// Whether all has come, and nothing else was written.
    fn is_right(&self) -> bool {
        let mut both = self.ends.iter().zip(&self.buffers);
        both.all(|(end, buffer)| {
            let (before, rest) = buffer.split_at(end.start());
            let (values, after) = rest.split_at(end.bytes);
            values == end.values() && before.iter().chain(after).all(|&byte| byte == AROUND)
        })
    }

    /// Whether nothing was written to what is received.
    fn is_untouched(&self) -> bool {
        let mut both = self.ends.iter().zip(&self.buffers);
        both.all(|(end, buffer)| end.is_sent || buffer.iter().all(|&byte| byte == AROUND))
    }
}

fn send(peer: usize, bytes: usize, seed: u64) -> End {
    End {
        peer,
        is_sent: true,
        bytes,
        seed,
    }
}

fn receive(peer: usize, bytes: usize, seed: u64) -> End {
    End {
        is_sent: false,
        ..send(peer, bytes, seed)
    }
}

fn world(make: Make, ranks: usize) -> World {
    World::new(make, Form::Direct, (ranks, 1, DEPTH))
}

/// Has each rank make its launches of messages. Returns whether the kernels could run.
fn pass(world: &mut World, mail: &mut [Vec<Mail>], seed: u64) -> bool {
    let launches: Vec<Vec<Launch>> = (mail.iter_mut().enumerate())
        .map(|(rank, mail)| {
            let launches = mail.iter_mut().map(|mail| world.launch_of_mail(rank, mail));
            launches.collect()
        })
        .collect();
    world.launch(&launches, seed).is_some()
}

/// Each rank sends to the next one more than all slots hold, and receives as much.
#[test]
fn rings_of_long_messages_pass_over_each_carrier() {
    const LEN: usize = 7 * DEPTH * SLOT + 5;
    for make in [
        copying,
        delayed,
        written,
        placed,
        over_sockets,
        over_devices,
    ] {
        for (ranks, is_at_once) in [(2, false), (3, true)] {
            let mut world = world(make, ranks);
            world.is_at_once = is_at_once && !is_watched();
            let mail = (0..ranks).map(|rank| {
                let (next, previous) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
                let of = |rank: usize| 100 + rank as u64;
                let launch = |turn: u64| {
                    let lens = [LEN, 0, 1, SLOT];
                    let both = lens.map(|len| {
                        let seed = |from| turn << 32 | (len as u64) << 8 | of(from);
                        [
                            send(next, len, seed(rank)),
                            receive(previous, len, seed(previous)),
                        ]
                    });
                    Mail::new(both.concat())
                };
                (0..2).map(launch).collect()
            });
            let mut mail: Vec<Vec<_>> = mail.collect();
            if !pass(&mut world, &mut mail, 3) {
                return;
            }
            for (rank, mail) in mail.iter().enumerate() {
                assert_eq!(world.ranks[rank].failed(), None, "rank {rank}");
                assert!(mail.iter().all(Mail::is_right), "rank {rank}");
                let next = (rank + 1) % ranks;
                assert_eq!(world.ranks[rank].messages(next, true), [5, 8]);
            }
        }
    }
}

/// Rank 0 sends, and then calls; rank 1 calls, and receives what came before.
#[test]
fn short_messages_complete_without_their_receiver() {
    let mut world = world(delayed, 2);
    let call = Call {
        operation: Operation::AllReduce,
        ..any_call(7, 2)
    };
    let short = (DEPTH - 1) * 64;
    let mut sent = Mail::new(vec![send(1, short, 1), send(1, 0, 2)]);
    let mut got = Mail::new(vec![receive(0, short, 1), receive(0, 0, 2)]);
    let mut buffers = [0, 1].map(|rank| Buffers::new(call, rank, 2));
    let calls = [0, 1].map(|rank| world.launch_of(rank, &mut buffers[rank]));
    let [first, second] = calls;
    let launches = [
        vec![world.launch_of_mail(0, &mut sent), first],
        vec![second, world.launch_of_mail(1, &mut got)],
    ];
    if world.launch(&launches, 1).is_none() {
        return;
    }
    for (rank, buffers) in buffers.iter().enumerate() {
        assert_eq!(world.ranks[rank].failed(), None);
        assert_eq!(buffers.result(), Some(&call.expected(rank, 2)[..]));
    }
    assert!(got.is_right());
}

/// The calls and messages of all launches of a turn: a call, or messages between random pairs.
enum Turn {
    Call(Call),
    /// By rank.
    Mail(Vec<Vec<End>>),
}

fn turn(seed: u64, ranks: usize) -> Turn {
    let random = |what, limit: usize| scramble(seed, what) as usize % limit;
    if random(20, 2) == 0 {
        let call = any_call(seed << 4 | 3, ranks);
        return Turn::Call(Call {
            operation: OPERATIONS[random(21, 8)],
            dtype: DType::I32,
            count: call.count * call.dtype.size() % 300,
            is_scaled: false,
            ..call
        });
    }
    let mut ends = vec![Vec::new(); ranks];
    for number in 0..=random(22, 3) as u64 {
        let any = |what, limit: usize| scramble(seed << 8 | number, what) as usize % limit;
        let from = any(23, ranks);
        let to = (from + 1 + any(24, ranks - 1)) % ranks;
        let bytes = [any(25, 2), any(25, 300), any(25, 3000)][any(26, 3)];
        let seed = seed << 8 | number;
        ends[from].push(send(to, bytes, seed));
        ends[to].push(receive(from, bytes, seed));
    }
    Turn::Mail(ends)
}

/// One rank is late in all. Messages are between some ranks only, so that the others are ahead.
#[test]
fn ten_thousand_calls_and_messages_follow_each_other() {
    for ranks in [2, 3, 4] {
        let mut world = world(delayed, ranks);
        world.has_packets = ranks == 3;
        for part in 0..10 {
            let turns: Vec<_> = (0..1000 / ranks as u64)
                .map(|number| turn(part << 20 | number, ranks))
                .collect();
            let mut calls: Vec<Vec<Buffers>> = (0..ranks).map(|_| Vec::new()).collect();
            let mut mail: Vec<Vec<Mail>> = (0..ranks).map(|_| Vec::new()).collect();
            let mut launches: Vec<Vec<Launch>> = (0..ranks).map(|_| Vec::new()).collect();
            for (turn, rank) in turns
                .iter()
                .flat_map(|turn| (0..ranks).map(move |rank| (turn, rank)))
            {
                launches[rank].extend(match turn {
                    Turn::Call(call) => {
                        let mut buffers = Buffers::new(*call, rank, ranks);
                        let launch = world.launch_of(rank, &mut buffers);
                        calls[rank].push(buffers);
                        Some(launch)
                    }
                    Turn::Mail(ends) if ends[rank].is_empty() => None,
                    Turn::Mail(ends) => {
                        let mut of_rank = Mail::new(ends[rank].clone());
                        let launch = world.launch_of_mail(rank, &mut of_rank);
                        mail[rank].push(of_rank);
                        Some(launch)
                    }
                });
            }
            if world.launch(&launches, part).is_none() {
                return;
            }
            for rank in 0..ranks {
                assert_eq!(world.ranks[rank].failed(), None, "rank {rank} of {ranks}");
                assert!(
                    mail[rank].iter().all(Mail::is_right),
                    "rank {rank} of {ranks}"
                );
                for buffers in &calls[rank] {
                    let expected = buffers.call.expected(rank, ranks);
                    assert_eq!(buffers.result(), Some(&expected[..]), "{:?}", buffers.call);
                }
            }
        }
    }
}

/// The receiver finds it before it uses a byte.
#[test]
fn a_message_that_is_another_one_is_named() {
    for (own, other) in [
        (receive(0, 600, 1), send(1, 600, 2)),
        (receive(0, 600, 1), send(1, 599, 1)),
        (receive(0, 0, 1), send(1, 8, 1)),
        (receive(0, 8, 1), send(1, 0, 1)),
    ] {
        let mut world = world(delayed, 2);
        world.set_patience(150);
        let first = [send(1, 70, 9), receive(0, 70, 9)].map(|end| Mail::new(vec![end]));
        let [sent, got] = first;
        let mut mail = [
            vec![sent, Mail::new(vec![other])],
            vec![got, Mail::new(vec![own])],
        ];
        if !pass(&mut world, &mut mail, 1) {
            return;
        }
        assert_eq!(
            world.ranks[1].failed(),
            Some(Failed {
                reason: OTHER_MESSAGE,
                peer: 0,
                operation: 2,
                theirs: [other.seed, other.bytes as u64],
            })
        );
        assert!(mail[1][0].is_right() && mail[1][1].is_untouched());
    }
}

/// A sender waits for its receiver once no slot is left, and a receiver for its sender.
#[test]
fn an_end_without_the_other_is_late() {
    for own in [send(1, 50 * DEPTH * SLOT, 1), receive(1, 8, 1)] {
        let mut world = world(copying, 2);
        world.set_patience(100);
        let mut mail = [vec![Mail::new(vec![own])], Vec::new()];
        if !pass(&mut world, &mut mail, 1) {
            return;
        }
        let failed = world.ranks[0].failed().unwrap();
        assert_eq!((failed.reason, failed.peer, failed.operation), (LATE, 1, 1));
        assert!(mail[0][0].is_untouched());
        assert_eq!(world.ranks[0].messages(1, own.is_sent), [1, 0]);
    }
}
