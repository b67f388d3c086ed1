use proptest::prelude::*;

use super::*;

const GEOMETRY: Geometry = Geometry {
    slot_bytes: 64,
    slots: 3,
    channels: 2,
};

fn message(number: u32) -> Immediate {
    Immediate::Message { channel: 1, number }
}

fn released(number: u32) -> Immediate {
    Immediate::Released { channel: 1, number }
}

#[test]
fn messages_that_overtake_each_other_are_read_in_order() {
    let mut order = Order::new(GEOMETRY, 2);
    for number in [3, 1, 2] {
        order.note(message(number), 16 + number, |_| {}).unwrap();
    }
    for number in 1..=3 {
        assert_eq!(order.next_to_read(1), Some((number, number as usize)));
        assert_eq!(order.note_read(1), Some(number as u32));
    }
    assert_eq!(order.next_to_read(1), None);
    assert_eq!(order.note_read(1), None);
}

#[test]
fn what_has_no_place_is_a_protocol_violation() {
    let mut order = Order::new(GEOMETRY, 1);
    order.note(message(2), 16, |_| {}).unwrap();
    let twice = message(2);
    let beyond = message(4);
    let past = message(0);
    let elsewhere = Immediate::Message {
        channel: 2,
        number: 1,
    };
    for (said, bytes) in [
        (twice, 16),
        (beyond, 16),
        (past, 16),
        (elsewhere, 16),
        (message(1), 15),
    ] {
        let error = order.note(said, bytes, |_| {}).unwrap_err();
        assert!(matches!(error, LinkError::Protocol(_)), "{error}");
    }
    assert!(order.note(message(1), 16 + 65, |_| {}).is_err());
    assert!(order.note(message(1), 16 + 64, |_| {}).is_ok());
}

#[test]
fn slots_come_back_once_and_in_any_order() {
    let mut order = Order::new(GEOMETRY, 2);
    for number in 1..=3 {
        assert_eq!(order.next_to_send(1), Some(number));
        let load = Load {
            rail: number as usize % 2,
            bytes: number,
        };
        order.note_sent(1, load);
    }
    assert_eq!(order.next_to_send(1), None);
    assert!(order.note(released(4), 0, |_| {}).is_err());
    let mut back = Vec::new();
    order
        .note(released(2), 0, |load| back.push(load.bytes))
        .unwrap();
    order
        .note(released(1), 0, |load| back.push(load.bytes))
        .unwrap();
    assert_eq!(back, [1, 2]);
    assert_eq!(order.next_to_send(1), Some(4));
}

proptest! {
    #[test]
    fn any_number_harms_nothing(all in prop::collection::vec((any::<u32>(), 0_u32..200), 0..50)) {
        let mut order = Order::new(GEOMETRY, 1);
        for (bits, bytes) in all {
            if let Some(said) = Immediate::from_bits(bits) {
                let _ = order.note(said, bytes, |_| {});
            }
            for channel in 0..2 {
                if let Some((_, len)) = order.next_to_read(channel) {
                    prop_assert!(len <= 64);
                }
            }
        }
    }
}
