//! Fuzz targets: what the kernel sends over netlink, and hosts that other machines describe.

use crate::Host;
use crate::read::messages;

/// A name, a function that must accept any bytes, and valid inputs to start from.
pub type Target = (&'static str, fn(&[u8]), fn() -> Vec<Vec<u8>>);

/// All targets of this crate.
pub const TARGETS: &[Target] = &[
    ("netlink", netlink, some_messages),
    ("host-document", document, || {
        vec![br#"{"format":1,"name":"a"}"#.to_vec()]
    }),
];

/// A block of messages is read, or refused.
fn netlink(bytes: &[u8]) {
    let mut found = Vec::new();
    let _ = messages(bytes, &mut found);
    assert!(found.len() <= bytes.len() / 16 + 1);
}

/// What is read as a host can be written, and read again. Numbers with fractions may differ in their last digit.
fn document(bytes: &[u8]) {
    if let Ok(host) = Host::from_json(&String::from_utf8_lossy(bytes)) {
        let again = Host::from_json(&host.to_json());
        assert!(again.is_ok_and(|again| again.network == host.network));
    }
}

/// Requests for interfaces and addresses.
fn some_messages() -> Vec<Vec<u8>> {
    let request = |kind: u8, body: usize| {
        let mut bytes = vec![0; 16 + body];
        bytes[0] = bytes.len() as u8;
        bytes[4] = kind;
        bytes
    };
    vec![
        request(16, 16),
        request(20, 8),
        request(24, 12),
        request(3, 4),
    ]
}

#[cfg(test)]
#[test]
fn any_bytes_are_read_or_refused() {
    spark_ccl_testing::fuzz(TARGETS);
}
