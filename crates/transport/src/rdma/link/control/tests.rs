//! Tests of the messages on the control stream of a link.

use std::io::Write;

use proptest::prelude::*;
use socket2::{Domain, Type};

use super::*;
use crate::rdma::link::offer::End;
use crate::rdma::link::report::{ArrivalReport, Progress};

const RAILS: usize = 3;

fn geometries() -> impl Strategy<Value = Geometry> {
    (1_usize..20).prop_map(|slots| Geometry {
        slot_bytes: 64,
        slots,
    })
}

prop_compose! {
    fn progress(slots: usize)(
        sent: u64,
        read: u64,
        arrived in prop::collection::vec(any::<bool>(), slots),
    ) -> Progress {
        Progress { sent, read, arrived }
    }
}

prop_compose! {
    fn ends()(
        qp_num in 0_u32..1 << 24,
        psn in 0_u32..1 << 24,
        rkey: u32,
        reads: u8,
    ) -> End {
        End { qp_num, psn, rkey, reads }
    }
}

fn messages() -> impl Strategy<Value = (Geometry, ControlMessage)> {
    geometries().prop_flat_map(|geometry| {
        let progress = progress(geometry.slots);
        let report = (0..RAILS, progress).prop_map(|(rail, progress)| {
            ControlMessage::ArrivalReport(ArrivalReport { rail, progress })
        });
        let offer = (0..RAILS, ends()).prop_map(|(rail, end)| ControlMessage::Offer { rail, end });
        let trial_result = (0..RAILS, any::<bool>())
            .prop_map(|(rail, works)| ControlMessage::TrialResult { rail, works });
        (Just(geometry), prop_oneof![report, offer, trial_result])
    })
}

proptest! {
    #[test]
    fn what_is_said_is_heard((geometry, message) in messages(), cut in any::<prop::sample::Index>()) {
        let (here, there) = Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap();
        let mut control = Control::new(Unshared::new(here), RAILS, geometry).unwrap();
        let bytes = message.encode();
        let (begin, end) = bytes.split_at(cut.index(bytes.len()));
        (&there).write_all(begin).unwrap();
        prop_assert_eq!(control.hear().unwrap(), None);
        (&there).write_all(end).unwrap();
        prop_assert_eq!(control.hear().unwrap(), Some(message.clone()));
        let mut control = (control, Control::new(Unshared::new(there), RAILS, geometry).unwrap());
        control.0.say(&message);
        control.0.say(&message);
        drop(control.0);
        prop_assert_eq!(control.1.hear().unwrap(), Some(message.clone()));
        prop_assert_eq!(control.1.hear().unwrap(), Some(message));
        prop_assert_eq!(control.1.hear().unwrap(), None);
        prop_assert!(control.1.is_closed);
    }

    #[test]
    fn what_is_amiss_is_refused((geometry, message) in messages(), byte: u8) {
        let bytes = message.encode();
        for len in 0..bytes.len() {
            prop_assert_eq!(ControlMessage::decode(&bytes[..len], RAILS, geometry), None);
        }
        let longer = [&bytes[..], &[byte]].concat();
        prop_assert_eq!(ControlMessage::decode(&longer, RAILS, geometry), None);
        prop_assert_eq!(ControlMessage::decode(&bytes, rail(&message), geometry), None);
    }

    #[test]
    fn any_bytes_are_understood_or_refused(
        geometry in geometries(),
        kind in 0_u8..5,
        rail in 0..=RAILS as u32,
        mut bytes in prop::collection::vec(any::<u8>(), 5 + 3 * (16 + 3)),
    ) {
        bytes[0] = kind;
        bytes[1..5].copy_from_slice(&rail.to_le_bytes());
        bytes.truncate(ControlMessage::len(kind, geometry).unwrap_or(usize::MAX));
        if let Some(message) = ControlMessage::decode(&bytes, RAILS, geometry) {
            prop_assert_eq!(message.encode(), bytes);
        }
    }

    #[test]
    fn a_stranger_ends_the_talk(kind in 3_u8..) {
        let (here, there) = Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap();
        let geometry = Geometry { slot_bytes: 64, slots: 1 };
        let mut control = Control::new(Unshared::new(here), RAILS, geometry).unwrap();
        (&there).write_all(&[kind]).unwrap();
        prop_assert!(matches!(control.hear(), Err(LinkError::Protocol(_))));
    }
}

#[test]
fn nothing_is_held_back_for_a_peer_that_is_gone() {
    let (here, there) = Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap();
    let geometry = Geometry {
        slot_bytes: 64,
        slots: 1,
    };
    let mut control = Control::new(Unshared::new(here), RAILS, geometry).unwrap();
    let message = ControlMessage::TrialResult {
        rail: 0,
        works: true,
    };
    while !control.holds_back() {
        control.say(&message);
    }
    drop(there);
    assert_eq!(control.hear().unwrap(), None);
    assert!(control.is_closed);
    control.flush();
    assert!(!control.holds_back());
    control.say(&message);
    assert!(!control.holds_back());
}

#[test]
fn numbers_of_more_than_24_bits_are_refused() {
    let geometry = Geometry {
        slot_bytes: 64,
        slots: 1,
    };
    for (qp_num, psn, is_possible) in [
        (0xff_ffff, 0xff_ffff, true),
        (1 << 24, 0, false),
        (0, 1 << 24, false),
    ] {
        let end = End {
            qp_num,
            psn,
            rkey: u32::MAX,
            reads: u8::MAX,
        };
        let bytes = ControlMessage::Offer { rail: 0, end }.encode();
        assert_eq!(
            ControlMessage::decode(&bytes, RAILS, geometry).is_some(),
            is_possible
        );
    }
}

fn rail(message: &ControlMessage) -> usize {
    match message {
        ControlMessage::ArrivalReport(report) => report.rail,
        ControlMessage::Offer { rail, .. } | ControlMessage::TrialResult { rail, .. } => *rail,
    }
}
