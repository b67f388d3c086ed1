//! Tests of the frames of LLDP.

use super::testing::{HOST, frame, header, management, mandatory, value, whole};
use super::*;

/// The hosts that these frames announce.
fn heard(frames: &[Vec<u8>], own: &Own) -> Vec<Found> {
    let mut heard = Heard::new();
    for frame in frames {
        hear(frame, own, &mut heard);
    }
    heard.into_values().collect()
}

fn addresses(values: &[Vec<u8>]) -> Vec<IpAddr> {
    let frame = Frame::parse(&frame(values)).unwrap();
    frame.addresses.into_iter().collect()
}

#[test]
fn a_frame_is_a_sign_of_its_sender() {
    let found = heard(&[whole()], &Own::default());
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(
        found[0].about(),
        "spark-1.lab, 10.0.0.2, 2001:db8::2, \"Ubuntu 24.04.3 LTS Linux 6.14.0 aarch64\"; by LLDP"
    );
    // Without an address, there is nothing to reach it by.
    let nowhere = frame(&[value(5, b"spark-1")]);
    assert_eq!(heard(&[nowhere], &Own::default()), []);
}

#[test]
fn what_ends_early_is_no_frame() {
    let whole = whole();
    assert!(Frame::parse(&whole).is_some());
    for len in 0..whole.len() {
        assert_eq!(Frame::parse(&whole[..len]), None, "{len} bytes");
    }
    // Ethernet fills short frames up.
    let padded = [&whole[..], &[0; 30]].concat();
    assert_eq!(Frame::parse(&padded), Frame::parse(&whole));
}

#[test]
fn a_frame_begins_with_three_values_that_come_once() {
    let end = value(0, &[]);
    let with = |values: &[Vec<u8>]| [header(), values.concat(), end.clone()].concat();
    let [chassis, port, ttl] = [value(1, b"\x07c"), value(2, b"\x07p"), value(3, &[0, 120])];
    let right = [chassis, port, ttl];
    assert!(Frame::parse(&with(&right)).is_some());
    for (place, wrong) in [
        (0, value(1, &[4])),
        (0, value(1, &[7; 257])),
        (1, value(2, &[])),
        (1, value(4, b"\x07p")),
        (2, value(3, &[120])),
        (2, value(3, &[0, 120, 0])),
    ] {
        let mut values = right.clone();
        values[place] = wrong;
        assert_eq!(Frame::parse(&with(&values)), None, "{values:?}");
    }
    for again in right.clone() {
        let values = [&right[..], &[again]].concat();
        assert_eq!(Frame::parse(&with(&values)), None, "{values:?}");
    }
    let mut other = whole();
    other[12] = 0x08;
    assert_eq!(Frame::parse(&other), None);
}

#[test]
fn only_addresses_of_hosts_are_taken() {
    let good = management(1, &[10, 0, 0, 2]);
    let mut link_local = [0; 16];
    (link_local[0], link_local[1], link_local[15]) = (0xfe, 0x80, 2);
    let mut values = vec![
        value(8, &[]),
        value(8, &[0]),
        // Longer than the value.
        value(8, &[6, 1, 10, 0, 0, 3]),
        // A MAC address, and those whose length is that of another kind.
        management(6, &HOST),
        management(1, &link_local),
        management(2, &[10, 0, 0, 3]),
        management(2, &link_local),
        management(2, &[0; 16]),
    ];
    for nobody in [[0; 4], [127, 0, 0, 1], [224, 0, 0, 251], [255; 4]] {
        values.push(management(1, &nobody));
    }
    assert_eq!(addresses(&values), [] as [IpAddr; 0]);
    values.push(good);
    assert_eq!(addresses(&values), [IpAddr::from([10, 0, 0, 2])]);
}

#[test]
fn nothing_reaches_a_terminal_that_it_would_obey() {
    let found = heard(
        &[frame(&[
            value(5, b"\x1b[2Jspark\n"),
            value(6, "\u{1b}]0;x\u{7}a\u{202e}b\n# c".as_bytes()),
            management(1, &[10, 0, 0, 2]),
        ])],
        &Own::default(),
    );
    assert_eq!(found[0].about(), "10.0.0.2, \"]0;xab# c\"; by LLDP");
    let long = frame(&[value(6, &[b'x'; 400]), management(1, &[10, 0, 0, 2])]);
    let found = heard(&[long], &Own::default());
    assert_eq!(found[0].description.as_ref().unwrap().len(), 120);
}

#[test]
fn frames_of_this_host_are_left_out() {
    let own = |macs: &[Mac], addresses: &[[u8; 4]]| Own {
        macs: macs.iter().copied().collect(),
        addresses: addresses.iter().map(|&one| IpAddr::from(one)).collect(),
    };
    let mut by_another_port = whole();
    by_another_port[11] = 2;
    // The kind of the chassis' name.
    let mut by_another_name = whole();
    by_another_name[16] = 7;
    let frames = [whole(), by_another_port, by_another_name];
    let other = HOST.map(|byte| byte + 1);
    for frame in &frames {
        let frame = std::slice::from_ref(frame);
        assert_eq!(heard(frame, &own(&[other, HOST], &[])), []);
        assert_eq!(heard(frame, &own(&[other], &[])).len(), 1);
    }
    // It is another host, but not at the address that this one has.
    let found = heard(&frames, &own(&[], &[[10, 0, 0, 2]]));
    let left: Vec<_> = found[0].addresses.iter().collect();
    assert_eq!(left, ["2001:db8::2"]);
}

#[test]
fn a_port_that_is_shut_down_takes_back_what_it_has_said() {
    let shut_down = [header(), mandatory(0), value(0, &[])].concat();
    let own = Own::default();
    assert_eq!(heard(&[whole(), shut_down.clone()], &own), []);
    assert_eq!(heard(&[shut_down, whole()], &own).len(), 1);
    let with_values = [
        header(),
        mandatory(0),
        whole()[14 + mandatory(0).len()..].to_vec(),
    ];
    assert_eq!(heard(&[with_values.concat()], &own), []);
}

#[test]
fn a_crowd_is_cut_off() {
    let frame = |number: u32| {
        let port = [&[7], &number.to_be_bytes()[..]].concat();
        let values = [value(1, b"\x07c"), value(2, &port), value(3, &[0, 120])];
        let address = management(1, &[10, 0, 0, 2]);
        [header(), values.concat(), address, value(0, &[])].concat()
    };
    let crowd: Vec<_> = (0..3000).map(frame).collect();
    assert_eq!(heard(&crowd, &Own::default()).len(), MOST);
}

#[test]
fn hardware_addresses_are_read() {
    assert_eq!(mac("4c:bb:47:00:00:01"), Some(HOST));
    // InfiniBand's are longer.
    for text in [
        "",
        "4c:bb:47:00:00",
        "4c:bb:47:00:00:01:02",
        "4c:bb:47:00:00:0g",
    ] {
        assert_eq!(mac(text), None, "{text}");
    }
}
