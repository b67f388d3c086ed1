//! Fuzz targets: netlink messages of the kernel, and descriptions of hosts by other machines.

use crate::Host;
use crate::read::{Listed, messages, read_any};

/// A name, a function that must accept any bytes, and valid inputs to start from.
pub type Target = (&'static str, fn(&[u8]), fn() -> Vec<Vec<u8>>);

/// All targets of this crate.
pub const TARGETS: &[Target] = &[
    ("netlink", netlink, some_messages),
    ("host-document", document, || {
        vec![br#"{"format":1,"name":"a"}"#.to_vec()]
    }),
];

/// Splits and reads a block of messages, or refuses it.
fn netlink(bytes: &[u8]) {
    let mut listed = Listed::default();
    let _ = messages(bytes, &mut listed);
    assert!(listed.messages.len() <= bytes.len() / 16);
    listed.messages.iter().for_each(read_any);
}

/// A description that can be read can also be written, and read again. Numbers with fractions may
/// differ in their last digit.
fn document(bytes: &[u8]) {
    if let Ok(host) = Host::from_json(&String::from_utf8_lossy(bytes)) {
        let again = Host::from_json(&host.to_json());
        assert!(again.is_ok_and(|again| again.network == host.network));
    }
}

/// An interface, an address, a route, a neighbour with an attribute each, and the end of a list.
fn some_messages() -> Vec<Vec<u8>> {
    let message = |kind: u8, body: usize, attribute: &[u8]| {
        let mut bytes = vec![0; 16 + body];
        bytes.extend(attribute);
        bytes[0] = bytes.len() as u8;
        bytes[4] = kind;
        bytes
    };
    let name = [8, 0, 3, 0, b'e', b'0', 0, 0];
    let ip = [8, 0, 1, 0, 10, 0, 0, 1];
    vec![
        message(16, 16, &name),
        message(20, 8, &ip),
        message(24, 12, &ip),
        message(28, 12, &ip),
        message(3, 4, &[]),
    ]
}

#[cfg(test)]
#[test]
fn any_bytes_are_read_or_refused() {
    spark_ccl_testing::fuzz(TARGETS);
}
