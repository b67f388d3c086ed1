//! Tests of the order of messages, and of slots that come back.

use proptest::prelude::*;

use super::*;

const GEOMETRY: Geometry = Geometry {
    slot_bytes: 64,
    slots: 3,
};

fn message(number: u32) -> Immediate {
    Immediate::Message { number }
}

fn released(number: u32) -> Immediate {
    Immediate::Released { number }
}

#[test]
fn messages_that_overtake_each_other_are_read_in_order() {
    let mut order = Order::new(GEOMETRY, 2);
    for number in [3, 1, 2] {
        order.note(0, message(number), 16 + number, |_| {}).unwrap();
    }
    for number in 1..=3 {
        assert_eq!(order.next_to_read(), Some((number, number as usize)));
        assert_eq!(order.note_read(), Some(number));
    }
    assert_eq!(order.next_to_read(), None);
    assert_eq!(order.note_read(), None);
}

#[test]
fn what_has_no_place_is_a_protocol_violation() {
    let mut order = Order::new(GEOMETRY, 1);
    order.note(0, message(2), 16, |_| {}).unwrap();
    let twice = message(2);
    let beyond = message(4);
    let past = message(0);
    for (said, bytes) in [(twice, 16), (beyond, 16), (past, 16), (message(1), 15)] {
        let error = order.note(0, said, bytes, |_| {}).unwrap_err();
        assert!(matches!(error, LinkError::Protocol(_)), "{error}");
    }
    assert!(order.note(0, message(1), 16 + 65, |_| {}).is_err());
    assert!(order.note(0, message(1), 16 + 64, |_| {}).is_ok());
}

#[test]
fn slots_come_back_once_and_in_any_order() {
    let mut order = Order::new(GEOMETRY, 2);
    for number in 1..=3 {
        assert_eq!(order.next_to_send(), Some(number));
        let load = Load {
            rail: number as usize % 2,
            bytes: number,
        };
        order.note_sent(load, false);
    }
    assert_eq!(order.next_to_send(), None);
    assert!(order.note(0, released(4), 0, |_| {}).is_err());
    let mut back = Vec::new();
    order
        .note(0, released(2), 0, |load| back.push(load.bytes))
        .unwrap();
    order
        .note(0, released(1), 0, |load| back.push(load.bytes))
        .unwrap();
    assert_eq!(back, [1, 2]);
    assert_eq!(order.next_to_send(), Some(4));
}

/// An end that has sent three messages, of which the first and the third are lent.
fn lender() -> Order {
    let mut order = Order::new(GEOMETRY, 2);
    for number in 1..=3 {
        let load = Load {
            rail: 0,
            bytes: number,
        };
        order.note_sent(load, number != 2);
    }
    order
}

fn returned(number: u32) -> Immediate {
    Immediate::Returned { number }
}

#[test]
fn what_is_lent_returns_only_when_its_own_reader_says_so() {
    let mut order = lender();
    let mut back = Vec::new();
    for said in [released(2), returned(3), released(3), released(1)] {
        order.note(0, said, 0, |_| panic!("{said:?}")).unwrap();
    }
    let mut all = |load: Load| back.push(load.bytes);
    order.note(1, returned(1), 0, &mut all).unwrap();
    order.note(0, returned(1), 0, &mut all).unwrap();
    assert!(order.note(0, returned(4), 0, &mut all).is_err());
    assert_eq!(back, [1, 2, 3]);
    // The next message in the same slot is a different one.
    order.note_sent(Load::default(), true);
    order.note(1, released(4), 0, |_| panic!()).unwrap();
    assert!(order.is_on_its_way(4));
}

#[test]
fn a_report_returns_nothing_that_is_lent() {
    let mut order = lender();
    let mut peer = Order::new(GEOMETRY, 2);
    for number in 1..=3 {
        peer.note(0, message(number), 20, |_| {}).unwrap();
        peer.note_read();
    }
    let missed = order.note_report(&report(&peer), |_| panic!());
    assert_eq!(missed.unwrap(), []);
    assert!(order.is_on_its_way(1));
    order.note(1, returned(1), 0, |_| {}).unwrap();
    assert!(!order.is_on_its_way(2) && order.is_on_its_way(3));
}

#[test]
fn a_peer_that_uses_a_slot_again_knows_that_it_was_read() {
    let mut order = Order::new(GEOMETRY, 1);
    for number in 1..=4 {
        order.note(0, message(number), 20, |_| {}).unwrap();
        assert!(!order.knows_read(1));
        order.note_read();
    }
    assert!(order.knows_read(1) && !order.knows_read(2));
}

proptest! {
    #[test]
    fn any_number_harms_nothing(all in prop::collection::vec((any::<u32>(), 0_u32..200), 0..50)) {
        let mut order = Order::new(GEOMETRY, 1);
        for (bits, bytes) in all {
            if let Some(said) = Immediate::from_bits(bits) {
                let _ = order.note(0, said, bytes, |_| {});
            }
            if let Some((_, len)) = order.next_to_read() {
                prop_assert!(len <= 64);
            }
        }
    }
}

/// Two ends. The first has sent three messages: by rails 0, 1 and 0.
fn sent_by_two() -> (Order, Order) {
    let mut here = Order::new(GEOMETRY, 2);
    for number in 1..=3 {
        let load = Load {
            rail: usize::from(number == 2),
            bytes: 16 + number,
        };
        here.note_sent(load, false);
    }
    (here, Order::new(GEOMETRY, 2))
}

fn report(order: &Order) -> ArrivalReport {
    ArrivalReport {
        rail: 0,
        progress: order.progress(),
    }
}

#[test]
fn only_what_the_failed_rail_has_not_carried_is_missed() {
    let (mut here, mut there) = sent_by_two();
    let missed = |number| Missed {
        number,
        bytes: 16 + number,
    };
    let all = here.note_report(&report(&there), |_| {}).unwrap();
    assert_eq!(all, [missed(1), missed(3)]);

    let (mut here, _) = sent_by_two();
    there.note(0, message(3), 19, |_| {}).unwrap();
    let all = here.note_report(&report(&there), |_| {}).unwrap();
    assert_eq!(all, [missed(1)]);
}

#[test]
fn a_report_says_what_was_read() {
    let (mut here, mut there) = sent_by_two();
    for number in 1..=2 {
        let bytes = 16 + number;
        there.note(0, message(number), bytes, |_| {}).unwrap();
        there.note_read();
    }
    let mut back = Vec::new();
    let missed = here.note_report(&report(&there), |load| back.push(load.bytes));
    assert_eq!(missed.unwrap().len(), 1);
    assert_eq!(back, [17, 18]);
    assert!(!here.is_on_its_way(2) && here.is_on_its_way(3));
}

#[test]
fn a_report_from_before_the_last_news_takes_nothing_back() {
    let (mut here, there) = sent_by_two();
    let early = report(&there);
    here.note(1, released(1), 0, |_| {}).unwrap();
    let missed = here.note_report(&early, |_| panic!()).unwrap();
    assert_eq!(missed.len(), 1);
    assert_eq!(missed[0].number, 3);
}

#[test]
fn a_sender_is_not_gone_while_something_is_to_be_sent_again() {
    let (here, mut there) = sent_by_two();
    there.note(1, Immediate::SenderGone, 0, |_| {}).unwrap();
    assert!(!there.sender_gone());
    there.note_report(&report(&here), |_| {}).unwrap();
    for number in 1..=3 {
        assert!(!there.sender_gone());
        there.note(1, message(number), 20, |_| {}).unwrap();
    }
    assert!(there.sender_gone());
}

#[test]
fn a_failed_rail_does_not_announce_a_closed_peer() {
    let mut here = Order::new(GEOMETRY, 1);
    let there = report(&Order::new(GEOMETRY, 1));
    here.note_report(&there, |_| {}).unwrap();
    assert!(!here.sender_gone());
}

#[test]
fn a_report_that_cannot_be_is_a_protocol_violation() {
    let change = |change: fn(&mut Progress)| {
        let (mut here, there) = sent_by_two();
        let mut report = report(&there);
        change(&mut report.progress);
        here.note_report(&report, |_| {})
    };
    assert!(change(|_| {}).is_ok());
    assert!(change(|peer| peer.read = 4).is_err());
    assert!(change(|peer| peer.read = u64::MAX).is_err());
    assert!(change(|peer| (peer.read, peer.arrived[2]) = (1, true)).is_err());
    assert!(change(|peer| peer.sent = 3).is_ok());
    assert!(change(|peer| peer.sent = 4).is_err());
}

#[test]
fn a_rail_that_returns_is_asked_only_for_what_it_has_carried_since() {
    let mut order = Order::new(GEOMETRY, 2);
    let by_first = |bytes| Load { rail: 0, bytes };
    order.note_sent(by_first(1), false);
    order.note_sent(by_first(2), false);
    let progress = |arrived: [bool; 3]| Progress {
        sent: 0,
        read: 0,
        arrived: arrived.to_vec(),
    };
    let report = |arrived| ArrivalReport {
        rail: 0,
        progress: progress(arrived),
    };
    let missed = |number, bytes| Missed { number, bytes };
    let first = order.note_report(&report([true, false, false]), |_| {});
    assert_eq!(first.unwrap(), [missed(2, 2)]);
    // The rail has returned; the second message has yet to be sent again.
    order.note_sent(by_first(3), false);
    let second = order.note_report(&report([true, false, false]), |_| {});
    assert_eq!(second.unwrap(), [missed(3, 3)]);
    let mut back = Vec::new();
    order
        .note(1, released(3), 0, |load| back.push(load))
        .unwrap();
    assert_eq!(back, []);
}

#[test]
fn a_sender_is_not_gone_while_a_rail_may_still_bring_something() {
    let mut order = Order::new(GEOMETRY, 2);
    order.set_silent(0, true);
    order.note(1, Immediate::SenderGone, 0, |_| {}).unwrap();
    assert!(order.sender_gone());
    order.set_silent(0, false);
    assert!(!order.sender_gone());
    order.note(0, Immediate::SenderGone, 0, |_| {}).unwrap();
    assert!(order.sender_gone());
}
