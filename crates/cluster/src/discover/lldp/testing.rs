//! Frames that are made by hand.

use super::frame::Mac;

pub(super) const HOST: Mac = [0x4c, 0xbb, 0x47, 0, 0, 1];

/// The beginning of each frame: to all on the link, from [`HOST`].
pub(super) fn header() -> Vec<u8> {
    let to = [0x01, 0x80, 0xc2, 0x00, 0x00, 0x0e];
    [&to[..], &HOST, &[0x88, 0xcc]].concat()
}

pub(super) fn value(kind: u8, value: &[u8]) -> Vec<u8> {
    let header = u16::from(kind) << 9 | value.len() as u16;
    [&header.to_be_bytes(), value].concat()
}

/// The values that each frame must have, but for its end.
pub(super) fn mandatory(ttl: u16) -> Vec<u8> {
    [
        value(1, &[&[4], &HOST[..]].concat()),
        value(2, b"\x05enp1s0f0np0"),
        value(3, &ttl.to_be_bytes()),
    ]
    .concat()
}

/// An address, with the number of an interface, and no object identifier.
pub(super) fn management(kind: u8, address: &[u8]) -> Vec<u8> {
    let len = address.len() as u8 + 1;
    let interface = [2, 0, 0, 0, 3, 0];
    value(8, &[&[len, kind], address, &interface].concat())
}

/// A frame with these values, besides the values that each frame must have.
pub(super) fn frame(values: &[Vec<u8>]) -> Vec<u8> {
    [header(), mandatory(120), values.concat(), value(0, &[])].concat()
}

/// A frame as `lldpd` sends it.
pub(super) fn whole() -> Vec<u8> {
    frame(&[
        value(4, b"enp1s0f0np0"),
        value(5, b"spark-1.lab"),
        value(6, b"Ubuntu 24.04.3 LTS Linux 6.14.0 aarch64"),
        value(7, &[0, 0x9c, 0, 0x80]),
        management(1, &[10, 0, 0, 2]),
        management(2, &[0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]),
        value(127, &[0, 0x12, 0x0f, 4, 0, 0]),
    ])
}

/// Frames to start from, for fuzzing.
pub(crate) fn some_frames() -> Vec<Vec<u8>> {
    let shut_down = [header(), mandatory(0), value(0, &[])].concat();
    vec![whole(), frame(&[]), shut_down]
}
