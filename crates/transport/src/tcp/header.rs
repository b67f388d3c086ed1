//! The header of a message on the wire. Parsing is a pure function of the bytes and what is
//! expected.

use std::fmt::Display;
use std::ops::RangeInclusive;

use crate::LinkError;

/// Bytes of a header on the wire.
pub const HEADER_BYTES: usize = 24;

const MAGIC: u32 = u32::from_le_bytes(*b"SpkL");

/// The header of a message: magic, sequence number, length, tag, all little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The number of the message.
    pub sequence: u64,
    /// Bytes of the payload.
    pub len: u32,
    /// The sender's tag.
    pub tag: u64,
}

impl Header {
    /// The header as bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..12].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.len.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.tag.to_le_bytes());
        bytes
    }

    /// Parses a header, of which the possible sequence numbers and the largest length are known.
    ///
    /// # Errors
    /// [`LinkError::Protocol`] for any other header, with what was expected and seen.
    pub fn parse(
        bytes: &[u8; HEADER_BYTES],
        sequences: RangeInclusive<u64>,
        slot_bytes: usize,
    ) -> Result<Self, LinkError> {
        let [
            m0,
            m1,
            m2,
            m3,
            s0,
            s1,
            s2,
            s3,
            s4,
            s5,
            s6,
            s7,
            l0,
            l1,
            l2,
            l3,
            tag @ ..,
        ] = *bytes;
        let magic = u32::from_le_bytes([m0, m1, m2, m3]);
        let header = Self {
            sequence: u64::from_le_bytes([s0, s1, s2, s3, s4, s5, s6, s7]),
            len: u32::from_le_bytes([l0, l1, l2, l3]),
            tag: u64::from_le_bytes(tag),
        };
        let expect = |what: &str, expected: &dyn Display, seen: &dyn Display| {
            Err(LinkError::Protocol(format!(
                "expected {what} {expected}, saw {seen}"
            )))
        };
        if magic != MAGIC {
            expect("a message's first word", &MAGIC, &magic)
        } else if !sequences.contains(&header.sequence) {
            expect("message number", sequences.end(), &header.sequence)
        } else if header.len as usize > slot_bytes {
            expect("a length of at most", &slot_bytes, &header.len)
        } else {
            Ok(header)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_encoded_is_read_back(sequence: u64, len in 0_u32..=4096, tag: u64) {
            let header = Header { sequence, len, tag };
            let parsed = Header::parse(&header.encode(), sequence..=sequence, 4096).unwrap();
            prop_assert_eq!(parsed, header);
        }

        #[test]
        fn arbitrary_bytes_never_pass_for_more_than_a_slot(
            bytes: [u8; HEADER_BYTES],
            magic: bool,
            sequence: u64,
            slot_bytes in 0_usize..1 << 20,
        ) {
            let mut bytes = bytes;
            if magic {
                bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
                bytes[4..12].copy_from_slice(&sequence.to_le_bytes());
            }
            match Header::parse(&bytes, sequence..=sequence, slot_bytes) {
                Ok(header) => {
                    prop_assert!(header.len as usize <= slot_bytes);
                    prop_assert_eq!(header.encode(), bytes);
                }
                Err(error) => prop_assert!(matches!(error, LinkError::Protocol(_))),
            }
        }
    }

    #[test]
    fn each_field_is_checked() {
        let header = Header {
            sequence: 7,
            len: 64,
            tag: 9,
        };
        let bytes = header.encode();
        for (sequence, slot_bytes, what) in [
            (8, 64, "expected message number 8, saw 7"),
            (7, 63, "expected a length of at most 63, saw 64"),
        ] {
            let error = Header::parse(&bytes, sequence..=sequence, slot_bytes).unwrap_err();
            assert!(error.to_string().contains(what), "{error}");
        }
        let garbage = *b"GET / HTTP/1.1\r\nHost: a\r";
        let error = Header::parse(&garbage, 0..=0, 64).unwrap_err();
        assert!(error.to_string().contains("first word"), "{error}");
    }
}
