//! A link whose cables are all out, and another network between its hosts.

use std::net::IpAddr;
use std::slice;
use std::sync::{Arc, Weak};

use rustix::io::Errno;
use socket2::{Domain, Type};
use spark_ccl_log::Mutex;

use super::super::rail::SAID;
use super::super::rails::Link;
use super::super::spares::{MOST, Spares};
use super::super::stream::{Connection, Stream};
use super::cable::{Cable, cable};
use super::cables::{GEOMETRY, Side, sides};
use super::*;
use crate::upkeep::Upkeep;

/// Adds a spare connection to a link, by a cable of its own. Returns it as the first side has it.
pub(super) fn add_spare([here, there]: [&Side; 2], number: u8) -> Arc<Cable> {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let [ours, theirs] = [ours, theirs].map(|socket| cable(number, socket));
    there.link.add(number.into(), theirs);
    here.link.add(number.into(), Arc::clone(&ours) as _);
    ours
}

/// Two ends may ask at once. What is known of a rail goes to the socket of the same index.
#[test]
fn spares_that_come_at_once_have_one_order_everywhere() {
    let [here, _there] = sides(GEOMETRY, 2);
    here.cables.iter().for_each(|cable| cable.pull(0));
    let add = |number| {
        let (socket, _) = UnixStream::pair().unwrap();
        let spare = cable(number, socket);
        spare.pull(0);
        here.link.add(number.into(), spare);
    };
    for round in 10..50 {
        std::thread::scope(|scope| {
            let add = &add;
            (0..3).for_each(|one| drop(scope.spawn(move || add(round * 3 + one))));
        });
    }
    let name = |stream: &Arc<dyn Stream>| {
        let [own, peer] = stream.addresses().unwrap();
        format!("({} -> {})", own.ip(), peer.ip())
    };
    let sockets = &here.link.outbox.lock().sockets[2..];
    let sending: Vec<_> = sockets.iter().map(|socket| name(&socket.stream)).collect();
    let receiving: Vec<_> = here.link.spares.take().iter().map(name).collect();
    assert_eq!(sending, receiving);
    let rails = here.tx.silent_rails();
    assert_eq!(rails.len(), 2 + sending.len());
    for (rail, name) in rails[2..].iter().zip(sending) {
        assert!(rail.name.ends_with(&name), "{}, not {name}", rail.name);
    }
}

/// Another network joins the hosts, of which the link makes no use before.
#[test]
fn a_link_whose_cables_are_all_out_asks_for_another_way() {
    let [mut here, mut there] = sides(GEOMETRY, 2);
    let asked = Arc::new(Mutex::new(Vec::new()));
    let asks = Arc::clone(&asked);
    let _entry = here
        .tx
        .ask_by(move |socket, peers| asks.lock().push((socket, peers.to_vec())));
    here.cables[0].pull(0);
    here.link.look();
    assert!(asked.lock().is_empty(), "one cable is left");
    here.cables[1].pull(HEADER_BYTES + 5);
    for message in 0..4 {
        super::send(&mut here.tx, message, 20_000);
    }
    here.link.look();
    here.link.look();
    let peer = |cable: u8| IpAddr::from([192, 0, 2 + cable, 2]);
    let first = (2, vec![peer(0), peer(1)]);
    assert_eq!(*asked.lock(), slice::from_ref(&first));
    let spare = add_spare([&here, &there], 2);
    for message in 0..4 {
        here.link.look();
        super::receive(&mut there.rx, message, 20_000);
    }
    // That one goes, too.
    spare.pull(0);
    super::send(&mut here.tx, 4, 100);
    poll("another request", || {
        here.link.look();
        (asked.lock().len() == 2).then_some(())
    });
    let second = (3, vec![peer(0), peer(1), peer(2)]);
    assert_eq!(*asked.lock(), [first, second]);
    add_spare([&here, &there], 3);
    super::receive(&mut there.rx, 4, 100);
    here.cables.iter().for_each(|cable| cable.plug_in());
    here.link.look();
    for message in 5..8 {
        super::send(&mut here.tx, message, 100);
        super::receive(&mut there.rx, message, 100);
    }
    // The cables carry again, and what becomes of spare connections does not matter.
    assert!(here.tx.silent_rails().is_empty());
}

/// A LAN joins the hosts, too.
#[test]
fn a_link_over_one_cable_goes_on_by_another_way_and_comes_back() {
    let [mut here, mut there] = sides(GEOMETRY, 1);
    let asked = Arc::new(Mutex::new(Vec::new()));
    let asks = Arc::clone(&asked);
    let _entry = here.tx.ask_by(move |socket, _| asks.lock().push(socket));
    here.cables[0].pull(HEADER_BYTES + 5);
    for message in 0..3 {
        super::send(&mut here.tx, message, 20_000);
    }
    here.link.look();
    assert_eq!(*asked.lock(), [1]);
    let spare = add_spare([&here, &there], 1);
    for message in 0..3 {
        super::receive(&mut there.rx, message, 20_000);
    }
    here.cables[0].plug_in();
    here.link.look();
    spare.pull(0);
    for message in 3..6 {
        super::send(&mut here.tx, message, 100);
        super::receive(&mut there.rx, message, 100);
    }
}

/// Plays a link that has two connections from the beginning, all of which are silent.
struct Asking {
    spares: Spares,
    asked: Arc<Mutex<Vec<usize>>>,
    now: Instant,
}

impl Asking {
    fn new() -> Self {
        let (spares, asked) = (Spares::default(), Arc::<Mutex<Vec<usize>>>::default());
        let asks = Arc::clone(&asked);
        spares.ask_by(Box::new(move |number, _| asks.lock().push(number)));
        let now = Instant::now();
        Self { spares, asked, now }
    }

    /// For how many seconds it looks until it asks; `None` if it does not within an hour.
    fn pause(&mut self) -> Option<u64> {
        let count = self.asked.lock().len();
        (0..3600).find(|_| {
            let has_asked = || self.asked.lock().len() > count;
            self.spares.ask(2, &[], self.now);
            self.now += Duration::from_secs(u64::from(!has_asked()));
            has_asked()
        })
    }

    /// The connection that was asked for comes, and falls silent after this number of seconds.
    fn get(&mut self, seconds: u64) {
        let number = self.asked.lock().last().copied().unwrap();
        self.get_one(number, seconds);
    }

    fn get_one(&mut self, number: usize, seconds: u64) {
        let (socket, _) = UnixStream::pair().unwrap();
        self.spares.add(number, cable(2, socket), self.now);
        self.now += Duration::from_secs(seconds);
    }
}

/// They may lead over the same cable.
#[test]
fn a_link_asks_ever_more_rarely_while_spares_fall_silent_soon() {
    let mut link = Asking::new();
    for pause in [0, 1, 2, 4, 8, 16, 30, 30, 30, 30] {
        assert_eq!(link.pause(), Some(pause));
        link.get(3);
    }
}

/// Each of them leads over the cable that is out, until a LAN comes up.
#[test]
fn spares_by_one_way_keep_no_other_way_out() {
    let [mut here, mut there] = sides(GEOMETRY, 2);
    here.cables.iter().for_each(|cable| cable.pull(0));
    for message in 0..4 {
        super::send(&mut here.tx, message, 100);
    }
    let pairs = (2..2 + MOST as u8 + 3).map(|number| {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let [ours, theirs] = [ours, theirs].map(|socket| cable(2, socket));
        ours.pull(0);
        let kept = Arc::downgrade(&ours);
        there.link.add(number.into(), theirs);
        here.link.add(number.into(), ours);
        kept
    });
    let kept: Vec<_> = pairs.collect();
    let is_kept = |one: &&Weak<Cable>| one.strong_count() > 0;
    poll("the peer to close those beyond", || {
        assert!(here.rx.peek().unwrap().is_none());
        (kept.iter().filter(is_kept).count() == MOST).then_some(())
    });
    add_spare([&here, &there], 3 + MOST as u8 + 2);
    for message in 0..4 {
        here.link.look();
        super::receive(&mut there.rx, message, 100);
    }
}

/// One end knows that they are lost, and the other does not.
#[test]
fn spares_that_are_lost_keep_no_other_out_and_one_that_is_kept_out_is_read() {
    let [mut here, mut there] = sides(GEOMETRY, 1);
    here.cables[0].pull(0);
    here.link.look();
    let add = |number: usize| {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let [ours, theirs] = [ours, theirs].map(|socket| cable(2, socket));
        there.link.add(number, theirs);
        here.link.add(number, Arc::clone(&ours) as _);
        ours
    };
    let spares: Vec<_> = (1..=MOST).map(add).collect();
    for (message, spare) in spares.iter().enumerate() {
        spare.reset_at_next();
        super::send(&mut here.tx, message, 100);
    }
    here.link.look();
    add(MOST + 1);
    for message in 0..MOST {
        super::receive(&mut there.rx, message, 100);
    }
    // This end reads nothing.
    assert!(
        spares.iter().all(|spare| Arc::strong_count(spare) == 1),
        "lost ones are closed"
    );
}

#[test]
fn a_link_that_has_ended_takes_no_spare() {
    let [here, _there] = sides(GEOMETRY, 1);
    let Side { tx, link, .. } = here;
    drop(tx);
    let (socket, _) = UnixStream::pair().unwrap();
    let spare = cable(1, socket);
    link.add(1, Arc::clone(&spare) as _);
    assert_eq!(Arc::strong_count(&spare), 1);
}

/// The peer has as many by that way as it takes.
#[test]
fn a_spare_that_the_peer_closes_does_not_end_the_link() {
    let [mut here, mut there] = sides(GEOMETRY, 1);
    for side in [&here, &there] {
        side.tx.ask_by(|_, _| ());
    }
    here.cables[0].pull(0);
    let (ours, theirs) = UnixStream::pair().unwrap();
    drop(theirs);
    here.link.add(1, cable(3, ours));
    add_spare([&here, &there], 2);
    for message in 0..4 {
        super::send(&mut here.tx, message, 100);
        here.link.look();
        super::receive(&mut there.rx, message, 100);
    }
}

/// The first connections may carry again, and another network may lead to the peer.
#[test]
fn a_link_asks_for_another_when_the_peer_closes_the_only_spare_that_carries() {
    for homes in [1, 2] {
        let [mut here, mut there] = sides(GEOMETRY, homes);
        let asked = Arc::new(Mutex::new(Vec::new()));
        let asks = Arc::clone(&asked);
        let _entry = here.tx.ask_by(move |socket, _| asks.lock().push(socket));
        here.cables.iter().for_each(|cable| cable.pull(0));
        super::send(&mut here.tx, 0, 20_000);
        here.link.look();
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        here.link.add(homes.into(), cable(homes, ours));
        super::send(&mut here.tx, 1, 100);
        let mut wait = crate::Wait::default();
        here.tx.watch(&mut wait);
        assert_eq!(
            wait.files(),
            0,
            "a connection that is closed is always ready"
        );
        poll("another request", || {
            here.link.look();
            (asked.lock().len() == 2).then_some(())
        });
        add_spare([&here, &there], homes + 1);
        for (message, len) in [20_000, 100].into_iter().enumerate() {
            here.link.look();
            super::receive(&mut there.rx, message, len);
        }
    }
}

/// Its kernel has taken a message by then, and nobody sends another one.
#[test]
fn what_a_spare_took_before_the_peer_reset_it_is_sent_again() {
    let [mut here, mut there] = sides(GEOMETRY, 1);
    let asked = Arc::new(Mutex::new(Vec::new()));
    let asks = Arc::clone(&asked);
    let _entry = here.tx.ask_by(move |socket, _| asks.lock().push(socket));
    here.cables[0].pull(0);
    here.link.look();
    let spare = add_spare([&here, &there], 1);
    spare.reset_at_next();
    super::send(&mut here.tx, 0, 100);
    assert!(!here.tx.holds_back(), "the kernel has taken it");
    poll("another request", || {
        here.link.look();
        (asked.lock().len() == 2).then_some(())
    });
    assert!(!here.link.outbox.lock().is_settled());
    add_spare([&here, &there], 2);
    super::receive(&mut there.rx, 0, 100);
}

#[test]
fn a_spare_that_was_of_use_is_replaced_at_once() {
    let mut link = Asking::new();
    for (pause, seconds) in [(0, 3), (1, 3), (2, 40), (0, 3), (1, 3)] {
        assert_eq!(link.pause(), Some(pause));
        link.get(seconds);
    }
}

#[test]
fn a_link_asks_for_the_next_one_if_none_comes() {
    let mut link = Asking::new();
    assert_eq!(link.pause(), Some(0));
    assert_eq!(link.pause(), Some(30));
    assert_eq!(*link.asked.lock(), [2, 3]);
}

/// The session drops the request for one that exists.
#[test]
fn a_link_asks_for_no_connection_that_it_has() {
    let mut link = Asking::new();
    // The other end has asked for two others before, in vain.
    link.get_one(4, 40);
    assert_eq!(link.pause(), Some(0));
    assert_eq!(*link.asked.lock(), [5]);
}

/// Two LANs join the hosts, too, and the first one resets connections.
#[test]
fn a_way_by_which_a_spare_was_lost_is_avoided() {
    let [here, there] = sides(GEOMETRY, 1);
    let asked = Arc::new(Mutex::new(Vec::new()));
    let asks = Arc::clone(&asked);
    let ask = move |number, peers: &[IpAddr]| asks.lock().push((number, peers.to_vec()));
    let _entry = here.tx.ask_by(ask);
    here.cables[0].pull(0);
    here.link.look();
    add_spare([&here, &there], 1).break_off(Errno::CONNRESET);
    poll("another request", || {
        here.link.look();
        (asked.lock().len() == 2).then_some(())
    });
    let peer = |cable: u8| IpAddr::from([192, 0, 2 + cable, 2]);
    let all = vec![peer(1), peer(0)];
    assert_eq!(asked.lock()[1], (2, all));
}

/// The one that was reset has led to a host that answers.
#[test]
fn a_first_way_that_was_lost_is_better_than_one_that_is_silent() {
    let [here, _there] = sides(GEOMETRY, 2);
    let asked = Arc::new(Mutex::new(Vec::new()));
    let asks = Arc::clone(&asked);
    let _entry = here
        .tx
        .ask_by(move |_, peers| asks.lock().push(peers.to_vec()));
    here.cables[0].pull(0);
    here.cables[1].break_off(Errno::CONNRESET);
    here.link.look();
    let peers = [3, 2].map(|network| IpAddr::from([192, 0, network, 2]));
    assert_eq!(*asked.lock(), [peers]);
}

/// An end of a connection between two addresses of this host that the other end has reset. Its
/// kernel still has a message.
fn reset_with_a_message() -> Connection {
    let listener = TcpListener::bind(v4()).unwrap();
    let ours = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let other: SocketAddr = ([127, 0, 0, 2], 0).into();
    ours.bind(&other.into()).unwrap();
    let target = listener.local_addr().unwrap();
    ours.connect(&target.into()).unwrap();
    let theirs = Connection::new(Unshared::new(listener.accept().unwrap().0.into()));
    let frame = frame(0, 100);
    (&ours).write_all(&frame).unwrap();
    poll("the message", || {
        (theirs.unread() as usize == frame.len()).then_some(())
    });
    ours.set_linger(Some(Duration::ZERO)).unwrap();
    drop(ours);
    poll("the reset", || theirs.silence().err());
    theirs
}

/// The peer has added it before, and its kernel knows that the message has arrived.
#[test]
fn a_spare_that_was_reset_before_it_is_added_is_read() {
    let [_here, mut there] = sides(GEOMETRY, 1);
    there.link.add(1, Arc::new(reset_with_a_message()));
    super::receive(&mut there.rx, 0, 100);
}

#[test]
fn a_link_with_a_connection_that_was_reset_before_keeps_what_it_sends() {
    let stream: Arc<dyn Stream> = Arc::new(reset_with_a_message());
    let link = Link::new(&[stream], GEOMETRY);
    assert!(link.outbox.lock().retains);
}

/// That tells people of the next outage, too.
#[test]
fn the_log_may_tell_again_of_a_spare_once_a_first_connection_answers() {
    let [here, there] = sides(GEOMETRY, 2);
    let is_said = || {
        SAID.get()
            .lock()
            .iter()
            .any(|said| said.ends_with("-> 192.0.202.2)"))
    };
    here.cables.iter().for_each(|cable| cable.pull(0));
    here.link.look();
    let spare = add_spare([&here, &there], 200);
    assert!(is_said());
    spare.pull(0);
    here.link.look();
    spare.plug_in();
    here.link.look();
    assert!(is_said(), "all the others are out still");
    // That one is closed.
    spare.break_off(Errno::CONNRESET);
    here.link.look();
    assert!(is_said(), "all the others are out still");
    here.cables[0].plug_in();
    here.link.look();
    assert!(!is_said());
}

#[test]
fn the_log_tells_of_the_loss_of_a_connection_made_after_another_loss() {
    for _ in 0..2 {
        let (ours, _theirs): (Vec<_>, Vec<_>) = (0..2).map(|_| UnixStream::pair().unwrap()).unzip();
        let cables: Vec<_> = (210..)
            .zip(ours)
            .map(|(number, one)| cable(number, one))
            .collect();
        let streams: Vec<_> = cables.iter().map(|cable| Arc::clone(cable) as _).collect();
        let link = Link::new(&streams, GEOMETRY);
        let is_said = || {
            let said = SAID.get().lock();
            said.iter()
                .any(|said| said.ends_with("-> 192.0.212.2) is lost"))
        };
        link.look();
        assert!(!is_said());
        cables[0].break_off(Errno::CONNRESET);
        link.look();
        assert!(is_said());
    }
}
