//! Links over several cables, which are pulled and plugged in again: messages get over the others,
//! once each.

use std::sync::{Arc, Weak};

use rustix::io::Errno;

use super::super::part::Part;
use super::super::rails::Link;
use super::super::stream::{Connection, Stream};
use super::super::{SLOTLESS_BYTES, halves};
use super::cable::{Cable, cable};
use super::lending::try_lend;
use super::spares::add_spare;
use super::*;
use crate::upkeep::Upkeep;

pub(super) const GEOMETRY: Geometry = Geometry {
    slot_bytes: 20_032,
    slots: 4,
};
/// One end of a link, and its cables.
pub(super) struct Side {
    pub(super) tx: Tx,
    pub(super) rx: Rx,
    pub(super) link: Arc<Link>,
    pub(super) cables: Vec<Arc<Cable>>,
}

pub(super) fn sides(geometry: Geometry, count: u8) -> [Side; 2] {
    let pairs: Vec<_> = (0..count).map(|_| UnixStream::pair().unwrap()).collect();
    let (here, there): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
    [here, there].map(|sockets| {
        let cables = (0..)
            .zip(sockets)
            .map(|(number, socket)| cable(number, socket));
        let cables: Vec<_> = cables.collect();
        let streams: Vec<_> = cables.iter().map(|cable| Arc::clone(cable) as _).collect();
        let link = Arc::new(Link::new(&streams, geometry));
        let (tx, rx) = halves(Arc::clone(&link), &streams, geometry);
        Side {
            tx,
            rx,
            link,
            cables,
        }
    })
}

/// The thread that looks after links runs between polls here.
#[derive(Default)]
struct Cables {
    links: Vec<Weak<Link>>,
    /// The first cable is out after this number of bytes.
    pulled_after: Option<usize>,
}

impl Harness for Cables {
    fn connect(&mut self, geometry: Geometry) -> (LinkEnd, LinkEnd) {
        self.links.clear();
        let ends = sides(geometry, 2).map(|side| {
            if let Some(passes) = self.pulled_after {
                side.cables[0].pull(passes);
            }
            self.links.push(Arc::downgrade(&side.link));
            LinkEnd::from((side.tx, side.rx))
        });
        ends.into()
    }

    fn pass_time(&mut self) {
        let links = self.links.iter().filter_map(Weak::upgrade);
        links.for_each(|link| link.look());
        std::thread::yield_now();
    }

    fn exact_credits(&self) -> bool {
        false
    }
}

#[test]
fn conforms_over_two_cables() {
    conformance::run(&mut Cables::default());
}

#[test]
fn conforms_over_two_cables_of_which_one_is_out() {
    for pulled_after in [0, HEADER_BYTES + 5] {
        let mut cables = Cables {
            pulled_after: Some(pulled_after),
            ..Cables::default()
        };
        conformance::messages_keep_their_order(&mut cables);
        conformance::many_laps_wrap_around(&mut cables);
        conformance::traffic_flows_both_ways(&mut cables);
        conformance::payloads_of_all_sizes_arrive(&mut cables);
        conformance::a_full_link_delivers_what_it_took(&mut cables);
    }
}

/// What happens between two messages.
#[derive(Debug, Clone, Copy)]
enum Event {
    Pull { cable: usize, passes: usize },
    PlugIn { cable: usize },
    Look,
    Nothing,
}

fn events() -> impl Strategy<Value = Event> {
    prop_oneof![
        (0..3_usize, 0..30_000_usize).prop_map(|(cable, passes)| Event::Pull { cable, passes }),
        (0..3_usize).prop_map(|cable| Event::PlugIn { cable }),
        Just(Event::Look),
        Just(Event::Nothing),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn each_message_arrives_once_whatever_becomes_of_cables(
        messages in proptest::collection::vec(
            (0..=GEOMETRY.slot_bytes, events(), any::<bool>()),
            1..60,
        ),
        lent: u64,
        cables in 1_u8..=3,
        stays: usize,
    ) {
        let mut memory: Vec<_> =
            messages.iter().enumerate().map(|(number, &(len, ..))| payload(number, len)).collect();
        let [mut here, mut there] = sides(GEOMETRY, cables);
        // One cable is never pulled, or a spare one.
        let stays = stays % (cables as usize + 1);
        if stays == cables as usize {
            add_spare([&here, &there], cables);
        }
        let mut received = 0;
        let mut receive = |rx: &mut Rx, link: &Arc<Link>, (len, _, direct): (usize, Event, bool)| {
            link.look();
            let taken = if direct && len >= SLOTLESS_BYTES {
                receive_some(rx, received, len)
            } else {
                peek_some(rx, received, len)
            };
            received += usize::from(taken);
            received
        };
        let mut count = 0;
        for (number, &(len, event, _)) in messages.iter().enumerate() {
            match event {
                Event::Pull { cable, passes } if cable != stays && cable < cables.into() => {
                    here.cables[cable].pull(passes);
                }
                Event::PlugIn { cable } if cable < cables.into() => here.cables[cable].plug_in(),
                Event::Look => here.link.look(),
                _ => {}
            }
            let is_lent = lent >> (number % 64) & 1 == 1 && len >= SLOTLESS_BYTES;
            let loan = poll("room", || {
                here.tx.flush().unwrap();
                let loan = try_send(&mut here.tx, number, &memory[number], is_lent);
                if loan.is_none() {
                    count = receive(&mut there.rx, &here.link, messages[count]);
                }
                loan
            });
            if here.tx.has_returned(loan).unwrap() {
                memory[..=number].iter_mut().for_each(|bytes| bytes.fill(0));
            }
        }
        poll("all messages", || {
            if count < messages.len() {
                count = receive(&mut there.rx, &here.link, messages[count]);
            }
            (count == messages.len()).then_some(())
        });
        // Also what comes twice comes once.
        here.cables.iter().for_each(|cable| cable.plug_in());
        for _ in 0..20 {
            here.link.look();
            prop_assert!(there.rx.peek().unwrap().is_none());
        }
        for number in messages.len()..messages.len() + 5 {
            super::send(&mut here.tx, number, 100);
            super::receive(&mut there.rx, number, 100);
        }
    }
}

/// The kernel gives a connection up when a cable is out for minutes, or when it is plugged in again
/// and the peer's kernel has done so before.
#[test]
fn a_connection_that_ends_while_its_cable_is_out_does_not_end_the_link() {
    for error in [Errno::TIMEDOUT, Errno::PIPE, Errno::CONNRESET] {
        let [mut here, mut there] = sides(GEOMETRY, 2);
        // The kernel has taken three messages, and a part of the next one.
        here.cables[0].pull(0);
        for message in 0..8 {
            super::send(&mut here.tx, message, 20_000);
        }
        here.link.look();
        here.cables[0].break_off(error);
        for _ in 0..3 {
            here.link.look();
        }
        for message in 0..8 {
            super::receive(&mut there.rx, message, 20_000);
        }
        for message in 8..16 {
            super::send(&mut here.tx, message, 100);
            super::receive(&mut there.rx, message, 100);
        }
    }
}

/// The first cable is out, and back when the second one goes: the message that went over the second
/// stands behind a later one.
#[test]
fn a_message_behind_a_later_one_of_its_own_socket_is_found() {
    let [mut here, mut there] = sides(GEOMETRY, 2);
    here.cables[0].pull(0);
    here.link.look();
    here.cables[1].pull(0);
    super::send(&mut here.tx, 0, 100);
    super::send(&mut here.tx, 1, 100);
    here.cables[0].plug_in();
    // The second cable is not known to be out yet.
    here.link.outbox.lock().heed(&[Ok(false), Ok(false)]);
    super::send(&mut here.tx, 2, 100);
    here.link.look();
    for message in 0..3 {
        super::receive(&mut there.rx, message, 100);
    }
}

proptest! {
    #[test]
    fn any_headers_are_read_or_refused(
        frames in proptest::collection::vec((0..6_u64, 0..=20_100_u32, 0..200_usize), 1..10),
        cable in 0..2_usize,
        direct: bool,
    ) {
        let [here, mut there] = sides(GEOMETRY, 2);
        for (sequence, len, bytes) in frames {
            let header = Header { sequence, len, tag: 7 };
            let payload = vec![1; bytes.min(len as usize)];
            let frame = [&header.encode()[..], &payload].concat();
            here.cables[cable].send(&[Part::new(&frame)]).unwrap();
        }
        let mut room = vec![0; SLOTLESS_BYTES];
        for _ in 0..20 {
            if direct {
                let _ = there.rx.receive_into(&mut room, 7);
            }
            if let Ok(Some(arrival)) = there.rx.peek() {
                prop_assert!(arrival.payload.len() <= GEOMETRY.slot_bytes);
            }
            there.rx.release();
        }
    }
}

/// Sends a message, if there is room, from where it lies if `is_lent`. Returns its loan.
fn try_send(tx: &mut Tx, message: usize, bytes: &[u8], is_lent: bool) -> Option<u64> {
    if is_lent {
        return try_lend(tx, bytes, message);
    }
    tx.reserve(bytes.len()).unwrap()?.copy_from_slice(bytes);
    tx.commit(bytes.len(), message as u64).unwrap();
    Some(message as u64)
}

/// Receives a message, if it is there, without a slot.
fn receive_some(rx: &mut Rx, message: usize, len: usize) -> bool {
    let mut bytes = vec![0; len];
    // Once begun, it goes on in the same memory.
    poll("the rest of a message", || {
        match rx.receive_into(&mut bytes, message as u64).unwrap() {
            Direct::Done => {
                assert!(bytes == payload(message, len), "bytes of message {message}");
                Some(true)
            }
            Direct::NotYet if bytes.iter().all(|byte| *byte == 0) => Some(false),
            Direct::NotYet => None,
            Direct::Unable => Some(peek_some(rx, message, len)),
        }
    })
}

fn peek_some(rx: &mut Rx, message: usize, len: usize) -> bool {
    let Some(arrival) = rx.peek().unwrap() else {
        return false;
    };
    assert_eq!((arrival.tag, arrival.payload.len()), (message as u64, len));
    assert!(
        arrival.payload == payload(message, len),
        "bytes of message {message}"
    );
    rx.release();
    true
}

#[test]
fn what_is_on_its_way_arrives_although_its_sender_is_gone() {
    let [here, mut there] = sides(GEOMETRY, 2);
    let Side {
        mut tx,
        rx: _rx,
        cables,
        ..
    } = here;
    super::send(&mut tx, 0, 100);
    super::send(&mut tx, 1, 100);
    for message in 0..2 {
        super::receive(&mut there.rx, message, 100);
    }
    cables[0].pull(7);
    for message in 2..6 {
        super::send(&mut tx, message, 100);
    }
    drop(tx);
    for message in 2..6 {
        super::receive(&mut there.rx, message, 100);
    }
}

#[test]
fn silent_rails_are_named_with_their_addresses() {
    let [here, _there] = sides(GEOMETRY, 2);
    here.link.look();
    assert!(here.tx.silent_rails().is_empty());
    here.cables[1].pull(0);
    here.link.look();
    let [silent] = &here.tx.silent_rails()[..] else {
        panic!("one rail is silent");
    };
    assert!(
        silent.name.ends_with(" (192.0.3.1 -> 192.0.3.2)"),
        "{}",
        silent.name
    );
    assert!(silent.silence >= Duration::from_secs(10));
    here.cables[1].plug_in();
    here.link.look();
    assert!(here.tx.silent_rails().is_empty());
}

/// A sender has the outbox while the kernel takes what it sends.
#[test]
fn silent_rails_are_named_while_a_look_waits_for_a_sender() {
    let [here, _there] = sides(GEOMETRY, 2);
    here.cables[0].pull(0);
    here.link.look();
    let (link, asks) = (&here.link, here.cables[1].asks());
    let sender = link.outbox.lock();
    std::thread::scope(|scope| {
        scope.spawn(|| link.look());
        poll("the look", || (here.cables[1].asks() > asks).then_some(()));
        let (tell, told) = std::sync::mpsc::channel();
        scope.spawn(move || tell.send(link.silent()));
        let silent = told.recv_timeout(WATCHDOG);
        drop(sender);
        assert_eq!(silent.unwrap().len(), 1);
    });
}

/// Its kernel answers that there is no room.
#[test]
fn a_peer_that_reads_nothing_is_not_silent_and_lacks_what_was_sent() {
    let (here, mut there) = tcp_pair(v4());
    here.set_nonblocking(true).unwrap();
    let here = Connection::new(Unshared::new(here.into()));
    let mut sent = 0;
    while let Ok(count) = Stream::send(&here, &[Part::new(&[7; 4096])]) {
        sent += count;
    }
    assert!(here.unacknowledged().unwrap() > 0);
    assert_eq!(here.silence().unwrap(), None);
    there.read_exact(&mut vec![0; sent]).unwrap();
    poll("the last acknowledgement", || {
        (here.unacknowledged().unwrap() == 0).then_some(())
    });
}
