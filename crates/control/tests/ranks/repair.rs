//! Streams that break: some are reopened, some cannot be.

use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use socket2::Socket;
use spark_ccl_control::{
    Adopter, Dial, Fault, Leave, Monitor, Redial, Unreached, Watch, neighbours,
};
use spark_ccl_fork::Unshared;
use spark_ccl_log::Mutex;
use spark_ccl_seal::{Seals, Stream};

use crate::common::{self, Streams, everyone_fails, fault, in_a_call, name, names, until, words};

const UNHEARD: Duration = Duration::from_millis(1500);
const HEARD: Duration = Duration::from_secs(4);

/// The network between the ranks of a world.
#[derive(Default)]
struct Network {
    adopters: Mutex<Vec<Adopter>>,
    /// The ranks to and from which no stream can be opened, and why.
    unreached: Mutex<Vec<(u32, Unreached)>>,
    /// How many attempts to open a stream have failed.
    failed: AtomicUsize,
    /// How many streams there have been.
    opened: AtomicUsize,
    /// How many more attempts panic.
    to_panic: AtomicUsize,
    /// Duplicate handles of the streams, to break them.
    streams: Mutex<Vec<(u32, u32, Socket)>>,
}

impl Network {
    /// A new stream, with seals as streams between hosts have them.
    fn connect(&self, a: u32, b: u32) -> (Stream, Stream) {
        let (mine, theirs) = tcp_pair();
        let handle = mine.try_clone().unwrap();
        self.streams.lock().push((a, b, handle));
        let number = self.opened.fetch_add(1, Ordering::Relaxed) as u8;
        let keys = [[number; 32], [!number; 32]];
        let stream = |socket, seals| Stream {
            socket: Unshared::new(socket),
            seals: Some(seals),
        };
        (
            stream(mine, Seals::new(&keys[0], &keys[1])),
            stream(theirs, Seals::new(&keys[1], &keys[0])),
        )
    }

    /// Breaks all streams between two ranks.
    fn cut(&self, a: u32, b: u32) {
        let streams = std::mem::take(&mut *self.streams.lock());
        let (cut, rest) = streams
            .into_iter()
            .partition(|&(from, to, _)| (from, to) == (a, b) || (from, to) == (b, a));
        *self.streams.lock() = rest;
        for (.., stream) in cut {
            // Fails if the stream is closed already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// One rank's access to the network.
struct Dialler {
    me: u32,
    network: Arc<Network>,
}

impl Dial for Dialler {
    fn dial(&self, peer: u32, number: u32, _: Instant) -> Result<Stream, Unreached> {
        let to_panic = &self.network.to_panic;
        let one_less = |left: usize| left.checked_sub(1);
        let panics = to_panic.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
        assert!(panics.is_err(), "this attempt panics");
        // Locked until the stream is on the list, so that a `cut` after a reason was added breaks
        // all streams.
        let unreached = self.network.unreached.lock();
        let reason = unreached
            .iter()
            .find(|(rank, _)| *rank == peer || *rank == self.me);
        if let Some((_, reason)) = reason {
            self.network.failed.fetch_add(1, Ordering::Relaxed);
            return Err(reason.clone());
        }
        let (mine, theirs) = self.network.connect(self.me, peer);
        drop(unreached);
        let other = self.network.adopters.lock()[peer as usize].clone();
        let is_there = other.adopt(self.me, number, theirs);
        is_there
            .then_some(mine)
            .ok_or_else(|| Unreached::Refused("it has ended".into()))
    }
}

/// A world of ranks that are connected by TCP.
fn world(size: u32) -> (Arc<Network>, Vec<Arc<Monitor>>) {
    let network = Arc::new(Network::default());
    let mut streams: Vec<Streams> = (0..size).map(|_| Vec::new()).collect();
    for rank in 0..size {
        for peer in neighbours(rank, size)
            .into_iter()
            .filter(|&peer| peer > rank)
        {
            let (mine, theirs) = network.connect(rank, peer);
            streams[rank as usize].push((peer, mine));
            streams[peer as usize].push((rank, theirs));
        }
    }
    let start = |(me, streams)| {
        let network = Arc::clone(&network);
        let redial = Redial {
            dial: Arc::new(Dialler { me, network }),
            unheard: UNHEARD,
            heard: HEARD,
        };
        Monitor::start(me, names(size), streams, Some(redial)).unwrap()
    };
    let monitors: Vec<_> = (0..).zip(streams).map(start).collect();
    *network.adopters.lock() = monitors.iter().map(|monitor| monitor.adopter()).collect();
    (network, monitors)
}

fn watches(monitors: &[Arc<Monitor>], context: u64) -> Vec<Arc<Watch>> {
    common::watches(monitors, context)
}

fn abort(watch: &Watch, by: u32, reason: String) {
    let by = watch.member(by);
    watch.raise(Fault::Aborted { by, reason });
}

#[test]
fn news_pass_streams_that_break_again_and_again() {
    for size in [2, 3] {
        let (network, monitors) = world(size);
        for context in 0..60 {
            let watches = watches(&monitors, context);
            let by = context as u32 % size;
            network.cut(0, 1);
            abort(&watches[by as usize], by, format!("reason {context}"));
            for watch in &watches {
                let text = fault(watch).to_string();
                assert!(text.contains(&format!("reason {context}")), "{text}");
            }
        }
        let last = watches(&monitors, 1000);
        assert!(last.iter().all(|watch| !watch.failed()));
    }
}

/// Each departure carries its number, so that one that is lost or out of order is noticed.
#[test]
fn departures_arrive_in_their_order_although_streams_break() {
    let (network, monitors) = world(2);
    let contexts = 0..300_u64;
    let mut mine = Vec::new();
    let mut theirs = Vec::new();
    for context in contexts.clone() {
        mine.push(monitors[0].watch(context, vec![0, 1], words));
        theirs.push(monitors[1].watch(context, vec![0, 1], words));
    }
    for (context, watch) in contexts.zip(&mine) {
        watch.leave(Leave::after(context + 1));
        if context % 20 == 0 {
            network.cut(0, 1);
        }
    }
    until("the last departure", || theirs[299].left(0).is_some());
    for (last, watch) in (1..).zip(&theirs) {
        assert_eq!(watch.left(0), Some(Leave::after(last)));
        assert!(!watch.failed());
    }
}

#[test]
fn a_rank_whose_host_refuses_connections_has_died() {
    let (network, monitors) = world(3);
    let watches = watches(&monitors, 7);
    in_a_call(&watches);
    let refused = Unreached::Refused("connection refused".into());
    network.unreached.lock().push((1, refused));
    network.cut(0, 1);
    network.cut(1, 2);
    for rank in [0, 2] {
        let died = Fault::Died {
            rank: watches[rank].member(1),
        };
        assert_eq!(*fault(&watches[rank]), died);
    }
}

#[test]
fn a_rank_that_nobody_reaches_is_lost() {
    let (network, monitors) = world(3);
    let watches = watches(&monitors, 7);
    in_a_call(&watches);
    let silent = Unreached::NoAnswer("no answer in time".into());
    network.unreached.lock().push((1, silent));
    network.cut(0, 1);
    network.cut(1, 2);
    for rank in [0, 2] {
        let text = fault(&watches[rank]).to_string();
        for part in [
            "is lost",
            &name(1),
            "no answer in time",
            "no common neighbour hears it",
        ] {
            assert!(text.contains(part), "{part:?} is not in {text:?}");
        }
    }
}

#[test]
fn a_rank_that_others_hear_is_tried_for_longer() {
    let (network, monitors) = world(3);
    let all = watches(&monitors, 7);
    let silent = || Unreached::NoAnswer("no answer in time".into());
    in_a_call(&all);
    // Rank 2 hears both; the other two cannot reach each other.
    let block = || network.unreached.lock().push((1, silent()));
    block();
    network.cut(0, 1);
    std::thread::sleep(UNHEARD * 3 / 2);
    assert!(all.iter().all(|watch| !watch.failed()));
    network.unreached.lock().clear();
    let next = watches(&monitors, 8);
    abort(&next[0], 0, "enough".into());
    everyone_fails(&next);
    until("a new stream", || {
        let streams = network.streams.lock();
        streams
            .iter()
            .any(|&(a, b, _)| a.min(b) == 0 && a.max(b) == 1)
    });
    // But not for ever.
    block();
    network.cut(0, 1);
    let text = fault(&all[2]).to_string();
    assert!(
        text.contains("is lost") && text.contains("hears it"),
        "{text}"
    );
}

#[test]
fn an_attempt_that_panics_is_not_the_last_one() {
    let (network, monitors) = world(2);
    let watches = watches(&monitors, 7);
    // More than one for each rank.
    network.to_panic.store(3, Ordering::Relaxed);
    network.cut(0, 1);
    until("all attempts that panic", || {
        network.to_panic.load(Ordering::Relaxed) == 0
    });
    abort(&watches[0], 0, "enough".into());
    everyone_fails(&watches);
    let text = fault(&watches[1]).to_string();
    assert!(text.contains("enough"), "{text}");
}

/// Its host answers, so it is only stopped or busy; operations that wait for it have a deadline.
#[test]
fn a_rank_that_takes_connections_and_is_silent_is_neither_dead_nor_lost() {
    let (network, monitors) = world(2);
    let watches = watches(&monitors, 7);
    network
        .unreached
        .lock()
        .push((1, Unreached::Unresponsive("silent".into())));
    network.cut(0, 1);
    std::thread::sleep(HEARD * 3 / 2);
    assert!(watches.iter().all(|watch| !watch.failed()));
    network.unreached.lock().clear();
    abort(&watches[0], 0, "enough".into());
    everyone_fails(&watches);
}

#[test]
fn a_goodbye_is_no_reason_to_try_again() {
    let (network, mut monitors) = world(3);
    let watch = monitors[0].watch(7, vec![0, 1, 2], words);
    drop(monitors.pop());
    until("the goodbye", || watch.left(2).is_some());
    std::thread::sleep(UNHEARD);
    assert!(!watch.failed(), "{:?}", watch.fault());
    drop(network);
}

/// An orderly end must not look like a death because the network fails at that moment.
#[test]
fn a_goodbye_is_said_by_a_stream_that_is_made_anew() {
    let (network, mut monitors) = world(2);
    let watch = monitors[0].watch(7, vec![0, 1], words);
    let failed = || network.failed.load(Ordering::Relaxed);
    let silent = Unreached::NoAnswer("no answer in time".into());
    network.unreached.lock().push((1, silent));
    network.cut(0, 1);
    until("both ends try in vain", || failed() >= 2);
    let leaving = monitors.pop().unwrap();
    let left = Arc::downgrade(&leaving);
    std::thread::scope(|scope| {
        scope.spawn(|| drop(leaving));
        until("it leaves", || left.upgrade().is_none());
        network.unreached.lock().clear();
    });
    until("news of it", || watch.left(1).is_some() || watch.failed());
    assert!(!watch.failed(), "{:?}", watch.fault());
}

fn tcp_pair() -> (Socket, Socket) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mine = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (theirs, _) = listener.accept().unwrap();
    (mine.into(), theirs.into())
}
