use std::io::Write;

use proptest::prelude::*;
use socket2::{Domain, Type};

use super::*;

const RAILS: usize = 3;

fn geometries() -> impl Strategy<Value = Geometry> {
    (1_usize..20, 1_usize..4).prop_map(|(slots, channels)| Geometry {
        slot_bytes: 64,
        slots,
        channels,
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

fn reports() -> impl Strategy<Value = (Geometry, Report)> {
    geometries().prop_flat_map(|geometry| {
        let channels = prop::collection::vec(progress(geometry.slots), geometry.channels);
        let report = (0..RAILS, channels).prop_map(|(rail, channels)| Report { rail, channels });
        (Just(geometry), report)
    })
}

proptest! {
    #[test]
    fn what_is_said_is_heard((geometry, report) in reports(), cut in any::<prop::sample::Index>()) {
        let (here, there) = Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap();
        let mut control = Control::new(here, RAILS, geometry).unwrap();
        let bytes = report.encode();
        let (begin, end) = bytes.split_at(cut.index(bytes.len()));
        (&there).write_all(begin).unwrap();
        prop_assert_eq!(control.hear().unwrap(), None);
        (&there).write_all(end).unwrap();
        prop_assert_eq!(control.hear().unwrap(), Some(report.clone()));
        let mut control = (control, Control::new(there, RAILS, geometry).unwrap());
        control.0.say(&report);
        drop(control.0);
        prop_assert_eq!(control.1.hear().unwrap(), Some(report));
        prop_assert_eq!(control.1.hear().unwrap(), None);
        prop_assert!(control.1.is_closed);
    }

    #[test]
    fn what_is_amiss_is_refused((geometry, report) in reports(), byte: u8) {
        let bytes = report.encode();
        for len in 0..bytes.len() {
            prop_assert_eq!(Report::decode(&bytes[..len], RAILS, geometry), None);
        }
        let longer = [&bytes[..], &[byte]].concat();
        prop_assert_eq!(Report::decode(&longer, RAILS, geometry), None);
        prop_assert_eq!(Report::decode(&bytes, report.rail, geometry), None);
    }

    #[test]
    fn any_bytes_are_understood_or_refused(
        geometry in geometries(),
        rail in 0..=RAILS as u32,
        mut bytes in prop::collection::vec(any::<u8>(), 4 + 3 * (16 + 3)),
    ) {
        bytes.truncate(Report::len(geometry));
        bytes[..4].copy_from_slice(&rail.to_le_bytes());
        if let Some(report) = Report::decode(&bytes, RAILS, geometry) {
            prop_assert_eq!(report.encode(), bytes);
        }
    }
}
