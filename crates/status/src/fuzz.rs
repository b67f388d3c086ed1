//! Fuzz targets: what clients of the RAS protocol send.

use crate::ras::Session;

/// A target's name, the function that must accept any bytes, and valid inputs to start from.
pub type Target = (&'static str, fn(&[u8]), fn() -> Vec<Vec<u8>>);

/// All targets of this crate.
pub const TARGETS: &[Target] = &[("ras-client", client, some_conversations)];

/// How the bytes are divided among reads must not matter. Each line gets at most one answer, which
/// is one line.
fn client(bytes: &[u8]) {
    let whole = Session::default().feed(bytes);
    let mut session = Session::default();
    let mut replies = String::new();
    let mut request = None;
    for byte in bytes.chunks(1) {
        match session.feed(byte) {
            Ok(step) => {
                replies.push_str(&step.reply);
                request = step.request;
            }
            Err(error) => {
                assert_eq!(whole, Err(error));
                return;
            }
        }
        if request.is_some() {
            break;
        }
    }
    let whole = whole.unwrap_or_default();
    assert_eq!((&whole.reply, whole.request), (&replies, request));
    let lines = bytes.split(|&byte| byte == b'\n').count();
    assert!(replies.is_empty() || replies.ends_with('\n'));
    assert!(replies.lines().count() <= lines);
    // A line has less than 1,024 bytes, and escaping makes at most ten characters of each.
    assert!(replies.lines().all(|line| line.len() < 11 << 10));
}

fn some_conversations() -> Vec<Vec<u8>> {
    let texts = [
        "CLIENT PROTOCOL 2\nTIMEOUT 5\nSTATUS\n",
        "client protocol 2\r\nset format json\r\nverbose status\r\n",
        "TIMEOUT 0\nSET FORMAT text\nMONITOR all\n",
    ];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}

#[cfg(test)]
#[test]
fn any_bytes_are_read_or_refused() {
    spark_ccl_testing::fuzz(TARGETS);
}
