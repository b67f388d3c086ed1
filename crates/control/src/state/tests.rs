//! Whatever well-formed frames a neighbour sends, a rank keeps working and sends nothing malformed.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use proptest::prelude::*;
use rustix::event::PollFlags;
use rustix::io::Errno;
use socket2::Socket;
use spark_ccl_fork::Unshared;

use super::*;
use crate::fault::POINT_TO_POINT_MARK;
use crate::wire::tests::{SIZE, failure, fault, proposal};
use crate::wire::{Content, Frame, LateReport, Notice, Progress, WaitingFor};

const ME: u32 = 1;
const NEIGHBOUR: u32 = 2;

/// An event at one rank: a received frame, or a call of its own.
#[derive(Debug, Clone)]
enum Event {
    Received(Box<Frame>),
    Watch(u64),
    Unwatch(u64),
    Enter(u64, u64, [u64; 2]),
    Announce(u64, u64, [u64; 2]),
    Leave(u64, u64),
}

fn context() -> impl Strategy<Value = u64> {
    0_u64..3
}

/// Sequence numbers: the first ones, the last one, and any.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0_u64..4,
        1 => Just(u64::MAX),
        1 => Just(POINT_TO_POINT_MARK | 1),
        1 => any::<u64>(),
    ]
}

fn signature() -> impl Strategy<Value = [u64; 2]> {
    [0_u64..2, 0_u64..2]
}

fn rank() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 0_u32..4, 1 => 0..SIZE]
}

fn waiting() -> impl Strategy<Value = Option<WaitingFor>> {
    prop_oneof![
        Just(None),
        Just(Some(WaitingFor::Anyone)),
        rank().prop_map(|rank| Some(WaitingFor::Rank(rank))),
    ]
}

fn notice() -> impl Strategy<Value = Frame> {
    let progress = (context(), number(), number(), signature(), waiting());
    let progress = progress.prop_map(|(context, finished, sequence, signature, waiting)| {
        Content::Progress(Progress {
            context,
            finished,
            sequence,
            signature,
            waiting,
        })
    });
    let last = proptest::option::of((number(), signature()));
    let report = (context(), number(), rank(), last, any::<u64>());
    let report = report.prop_map(|(context, sequence, rank, last, age)| {
        Content::Late(LateReport {
            context,
            sequence,
            rank,
            last,
            age: Some(std::time::Duration::from_millis(age)),
        })
    });
    let content = prop_oneof![4 => progress, 1 => report];
    (rank(), rank(), number(), content).prop_map(|(to, origin, counter, content)| Frame::Notice {
        to,
        notice: Notice {
            origin,
            counter,
            content,
        },
    })
}

fn leave() -> impl Strategy<Value = Leave> {
    let calls = prop::collection::vec((number(), signature()), 0..4);
    let parts = (number(), any::<bool>(), calls);
    parts.prop_map(|(last_sequence, is_in_flight, calls)| Leave {
        is_in_flight,
        calls,
        ..Leave::after(last_sequence)
    })
}

fn flood() -> impl Strategy<Value = Frame> {
    let news = prop_oneof![
        1 => (context(), leave().prop_map(Box::new))
            .prop_map(|(context, leave)| News::Leave { context, leave }),
        1 => Just(News::Goodbye),
        1 => (rank(), failure()).prop_map(|(rank, failure)| News::Gone { rank, failure }),
        1 => (context(), fault()).prop_map(|(context, fault)| News::Fault { context, fault }),
        1 => (context(), proposal()).prop_map(|(context, proposal)| News::Proposal { context, proposal }),
    ];
    (rank(), number(), news).prop_map(|(origin, counter, news)| {
        Frame::Flood(Flood {
            origin,
            counter,
            news,
        })
    })
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => flood().prop_map(|frame| Event::Received(Box::new(frame))),
        3 => notice().prop_map(|frame| Event::Received(Box::new(frame))),
        2 => context().prop_map(Event::Watch),
        1 => context().prop_map(Event::Unwatch),
        2 => (context(), 1_u64..4, signature()).prop_map(|(c, s, words)| Event::Enter(c, s, words)),
        2 => (context(), 1_u64..4, signature()).prop_map(|(c, s, words)| Event::Announce(c, s, words)),
        1 => (context(), 0_u64..4).prop_map(|(context, last)| Event::Leave(context, last)),
    ]
}

/// A rank with one neighbour.
struct Rank {
    state: ControlState,
    neighbour: UnixStream,
    views: HashMap<u64, Arc<View>>,
    /// The number of the neighbour's last flood.
    received: u64,
}

impl Rank {
    fn new() -> Self {
        let (ours, neighbour) = UnixStream::pair().unwrap();
        neighbour.set_nonblocking(true).unwrap();
        let ours = Unshared::new(Socket::from(ours));
        let known = Neighbour::new(NEIGHBOUR, ours, false, Instant::now()).unwrap();
        let names: Arc<[Arc<str>]> = (0..SIZE)
            .map(|rank| format!("rank {rank}").into())
            .collect();
        Self {
            state: ControlState::new(ME, names, vec![known], None),
            neighbour,
            views: HashMap::new(),
            received: 0,
        }
    }

    fn handle(&mut self, event: &Event) {
        let now = Instant::now();
        match event {
            Event::Received(frame) => {
                self.neighbour.write_all(&wire::encode(frame)).unwrap();
                self.state.serve(0, now);
            }
            Event::Watch(context) => {
                let (members, names) = (vec![0, ME, NEIGHBOUR], Arc::clone(&self.state.names));
                let view = View::new(*context, members, ME, names, |words| format!("{words:?}"));
                let view = Arc::new(view);
                self.state.watch(&view, now);
                self.views.insert(*context, view);
            }
            Event::Unwatch(context) => {
                if let Some(view) = self.views.remove(context) {
                    self.state.unwatch(&view);
                }
            }
            Event::Enter(context, sequence, signature) => {
                if let Some(view) = self.views.get(context) {
                    view.history.record(*sequence, *signature);
                    if view.needs_inspection(*sequence) {
                        self.state.inspect(*context, *sequence, *signature);
                    }
                }
            }
            Event::Announce(context, sequence, signature) => {
                let waiting = WaitingFor::Anyone;
                self.state
                    .announce(*context, *sequence, *signature, waiting, now);
            }
            Event::Leave(context, last) => {
                self.state.leave(*context, Leave::after(*last));
            }
        }
        for table in self.state.tables.values() {
            let _ = (
                table.last_seen(0, now),
                table.late(1, std::time::Duration::ZERO, now),
            );
        }
    }

    fn receive_from_neighbour(&mut self, news: News) {
        self.received += 1;
        let flood = Flood {
            origin: NEIGHBOUR,
            counter: self.received,
            news,
        };
        self.handle(&Event::Received(Box::new(Frame::Flood(flood))));
    }

    /// All frames that the rank has sent to the neighbour.
    fn sent_frames(&mut self) -> Vec<Frame> {
        let (mut bytes, mut frames) = (Vec::new(), Vec::new());
        // Ends with `WouldBlock` once everything is read.
        let _ = self.neighbour.read_to_end(&mut bytes);
        let mut rest = &bytes[..];
        while let Some((frame, length)) = wire::parse(rest, SIZE).unwrap() {
            rest = &rest[length..];
            frames.push(frame);
        }
        assert!(rest.is_empty());
        frames
    }
}

/// The socket is writable all the while, so waiting for that would not be a pause.
#[test]
fn what_the_system_had_no_memory_for_is_written_after_a_pause() {
    let (mut rank, now) = (Rank::new(), Instant::now());
    let flood = rank.state.seen.originate(ME, News::Goodbye);
    let frame: Arc<[u8]> = wire::encode(&Frame::Flood(flood.clone())).into();
    let neighbour = &mut rank.state.neighbours[0];
    neighbour.outbound.push(Class::Unbounded, &frame);
    neighbour.record_write(Err(Errno::NOBUFS));
    assert!(!neighbour.has_delivered_all());
    let polled = neighbour.poll_targets().unwrap();
    assert_eq!(polled.flags, PollFlags::IN);
    let due = rank.state.plan_sleep(now).unwrap();
    assert!(due > now);
    rank.state.tick(due);
    assert_eq!(rank.sent_frames(), [Frame::Flood(flood)]);
    assert_eq!(rank.state.plan_sleep(due), None);
}

/// Its end is no fault of a communicator that it has left.
#[test]
fn a_rank_that_has_left_may_die_or_get_lost() {
    for failure in failures() {
        for leaves in [true, false] {
            let mut rank = Rank::new();
            rank.handle(&Event::Watch(1));
            let leave = News::Leave {
                context: 1,
                leave: Box::default(),
            };
            let gone = gone(failure.clone());
            if leaves {
                rank.handle(&Event::Received(Box::new(flooded(NEIGHBOUR, leave))));
            }
            rank.handle(&Event::Received(Box::new(flooded(0, gone))));
            assert_eq!(rank.views[&1].latent().is_none(), leaves);
        }
    }
}

/// When a rank's process has died, its host still sends what was left to send; a lost host does
/// not.
#[test]
fn a_rank_that_has_left_may_not_get_lost_while_a_call_needs_it() {
    for failure in failures() {
        let mut rank = Rank::new();
        rank.handle(&Event::Watch(1));
        rank.views[&1].history.record(1, [1, 1]);
        let leave = News::Leave {
            context: 1,
            leave: Box::new(Leave::after(1)),
        };
        let is_lost = matches!(failure, Failure::Lost(_));
        let gone = gone(failure);
        rank.handle(&Event::Received(Box::new(flooded(NEIGHBOUR, leave))));
        rank.handle(&Event::Received(Box::new(flooded(0, gone))));
        assert_eq!(rank.views[&1].fault().is_some(), is_lost);
    }
}

/// Until then the others need it, although it begins nothing more.
#[test]
fn a_rank_that_leaves_may_not_end_before_what_it_has_in_flight() {
    for failure in failures() {
        for is_done in [false, true] {
            let mut rank = Rank::new();
            rank.handle(&Event::Watch(1));
            rank.receive_from_neighbour(leave_of(Leave {
                is_in_flight: true,
                ..Leave::after(1)
            }));
            if is_done {
                rank.receive_from_neighbour(leave_of(Leave::after(1)));
            }
            let gone = gone(failure.clone());
            rank.receive_from_neighbour(gone);
            rank.handle(&Event::Enter(1, 1, [0, 0]));
            assert_eq!(rank.views[&1].fault().is_none(), is_done);
        }
    }
}

#[test]
fn a_rank_that_lacks_one_that_has_left_says_so_and_why() {
    let mut rank = Rank::new();
    rank.handle(&Event::Watch(1));
    for sequence in [1, 2] {
        rank.handle(&Event::Enter(1, sequence, [0, 0]));
    }
    rank.views[&1].finish(1);
    rank.receive_from_neighbour(leave_of(Leave::after(1)));
    let fault = rank.views[&1].fault().cloned().unwrap();
    assert!(
        matches!(&*fault, Fault::Left { rank, sequence: 2, .. } if rank.world == NEIGHBOUR as usize)
    );
    // Its own end afterwards is no news.
    rank.state
        .leave_once(&rank.views[&1].clone(), Leave::after(2));
    let said = rank
        .sent_frames()
        .into_iter()
        .filter_map(|frame| match frame {
            Frame::Flood(Flood {
                origin: ME,
                news: News::Leave { leave, .. },
                ..
            }) => Some(*leave),
            _ => None,
        });
    let said: Vec<Leave> = said.collect();
    assert_eq!(said.len(), 1, "{said:?}");
    assert_eq!(said[0].last_sequence, 1);
    // A rank that needs it from now on names the rank that left first.
    let mut other = Rank::new();
    other.handle(&Event::Watch(1));
    other.receive_from_neighbour(leave_of(said[0].clone()));
    other.handle(&Event::Enter(1, 2, [0, 0]));
    assert_eq!(other.views[&1].fault(), Some(&fault));
}

/// Whether this rank has made the call before, or makes it afterwards.
#[test]
fn what_a_rank_has_called_last_is_compared_when_it_has_left() {
    for is_first in [true, false] {
        for signature in [[0, 0], [0, 1]] {
            let mut rank = Rank::new();
            rank.handle(&Event::Watch(1));
            let enters = Event::Enter(1, 1, [0, 0]);
            if is_first {
                rank.handle(&enters);
            }
            rank.receive_from_neighbour(leave_of(Leave {
                calls: vec![(1, signature)],
                ..Leave::after(1)
            }));
            if !is_first {
                rank.handle(&enters);
            }
            let fault = rank.views[&1].fault().map(|fault| (**fault).clone());
            let differs = signature != [0, 0];
            assert_eq!(
                matches!(fault, Some(Fault::Mismatch { sequence: 1, .. })),
                differs
            );
            assert_eq!(fault.is_some(), differs, "{fault:?}");
        }
    }
}

/// The neighbour's end.
fn gone(failure: Failure) -> News {
    let rank = NEIGHBOUR;
    News::Gone { rank, failure }
}

fn leave_of(leave: Leave) -> News {
    News::Leave {
        context: 1,
        leave: Box::new(leave),
    }
}

/// A firewall may refuse connections to a process that works.
#[test]
fn a_rank_whose_host_refuses_connections_has_died_and_may_still_work() {
    for failure in failures() {
        let mut rank = Rank::new();
        rank.handle(&Event::Watch(1));
        let news = News::Gone {
            rank: 0,
            failure: failure.clone(),
        };
        rank.handle(&Event::Enter(1, 1, [0, 0]));
        rank.receive_from_neighbour(news);
        let is_lost = matches!(failure, Failure::Lost(_));
        let fault = rank.views[&1].fault().unwrap();
        assert_eq!(matches!(**fault, Fault::Lost { .. }), is_lost, "{fault}");
        assert_eq!(rank.state.gone(), [0].into());
        let is_sure = failure == Failure::Died;
        assert_eq!(
            rank.state.ended_ranks().contains(&0),
            is_sure,
            "{failure:?}"
        );
    }
}

#[test]
fn a_rank_that_was_given_up_has_ended_once_that_is_sure() {
    let gone = |failure| News::Gone { rank: 0, failure };
    for unsure in &failures()[1..] {
        let mut rank = Rank::new();
        rank.handle(&Event::Watch(1));
        rank.handle(&Event::Enter(1, 1, [0, 0]));
        rank.receive_from_neighbour(gone(unsure.clone()));
        let fault = rank.views[&1].fault().cloned().unwrap();
        rank.receive_from_neighbour(gone(Failure::Died));
        assert_eq!(rank.state.ended_ranks(), [0].into());
        let now = rank.views[&1].fault().unwrap();
        assert!(Arc::ptr_eq(now, &fault), "the first fault stays");
        // A less certain death is no news. Neither is the same death once more.
        rank.receive_from_neighbour(gone(unsure.clone()));
        assert_eq!(rank.state.ended_ranks(), [0].into());
        // A communicator that is made later fails, too.
        rank.handle(&Event::Watch(2));
        rank.handle(&Event::Enter(2, 1, [0, 0]));
        let fault = rank.views[&2].fault().unwrap();
        assert!(matches!(**fault, Fault::Died { .. }), "{fault}");
    }
}

/// A death that a rank on the same host notices reaches all others, although they have given the
/// rank up.
#[test]
fn a_neighbour_that_was_given_up_and_ends_is_reported_once_more() {
    for unsure in &failures()[1..] {
        let mut rank = Rank::new();
        let flood = News::Gone {
            rank: NEIGHBOUR,
            failure: unsure.clone(),
        };
        rank.handle(&Event::Received(Box::new(flooded(0, flood))));
        assert_eq!(rank.state.ended_ranks(), [].into());
        rank.state.ended(0, StreamEnding::Closed, Instant::now());
        assert_eq!(rank.state.ended_ranks(), [NEIGHBOUR].into());
        let notices = rank.state.seen.originate(ME, News::Goodbye).counter;
        assert_eq!(notices, 2, "one flood went out before");
    }
}

fn failures() -> [Failure; 3] {
    let reason = "its host does not answer".to_owned();
    [Failure::Died, Failure::Lost(reason), Failure::Refused]
}

fn flooded(origin: u32, news: News) -> Frame {
    Frame::Flood(Flood {
        origin,
        counter: 1,
        news,
    })
}

proptest! {
    #[test]
    fn any_news_are_digested(events in prop::collection::vec(event(), 1..30)) {
        let mut rank = Rank::new();
        for event in &events {
            let faults: Vec<_> = rank.views.iter().map(|(&context, view)| (context, view.fault().cloned())).collect();
            rank.handle(event);
            // The first fault stays.
            for (context, fault) in faults {
                if let (Some(fault), Some(view)) = (fault, rank.views.get(&context))
                    && !matches!(event, Event::Watch(watched) if *watched == context)
                {
                    prop_assert!(view.fault().is_some_and(|now| Arc::ptr_eq(now, &fault)));
                }
            }
        }
        // It numbers its own frames consecutively, whatever others send in its name.
        let (mut notice, mut other) = (Vec::new(), Vec::new());
        for frame in rank.sent_frames() {
            match frame {
                Frame::Notice { notice: own, .. } if own.origin == ME => notice.push(own.counter),
                Frame::Flood(own) if own.origin == ME => other.push(own.counter),
                _ => {}
            }
        }
        prop_assert!(notice.windows(2).all(|pair| pair[0] <= pair[1]));
        prop_assert!(other.iter().copied().eq(1..=other.len() as u64));
    }
}
