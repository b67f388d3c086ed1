//! The header of a message on the wire. Parsing is a pure function of the bytes and what is
//! expected.

use std::fmt::Display;
use std::ops::RangeInclusive;

use crate::LinkError;

/// Bytes of a header on the wire.
///
/// The kernel copies what is sent to pages of its own, mostly from the start of one on, and by `rep
/// movsb`. That is slow at some distances: see `copies_slowly` of the crate `compute`. Large blocks
/// of allocators begin 0, 16 or 64 bytes after the start of a page, which are fast distances from
/// here.
pub const HEADER_BYTES: usize = 64;

const MAGIC: u64 = u64::from_le_bytes(*b"SparkTCP");

/// The header of a message: magic, sequence number, length, tag, each a little-endian word of 64
/// bits; the rest is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The number of the message.
    pub sequence: u64,
    /// Bytes of the payload.
    pub len: u32,
    /// The sender's tag.
    pub tag: u64,
}

type Words = [u64; HEADER_BYTES / size_of::<u64>()];

impl Header {
    /// The header as bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let words: Words = [MAGIC, self.sequence, self.len.into(), self.tag, 0, 0, 0, 0];
        let mut bytes = [0; HEADER_BYTES];
        for (place, word) in bytes.chunks_exact_mut(size_of::<u64>()).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
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
        let (words, _) = bytes.as_chunks();
        let [magic, sequence, len, tag, rest @ ..]: Words =
            std::array::from_fn(|at| u64::from_le_bytes(words[at]));
        let expect = |what: &str, expected: &dyn Display, seen: &dyn Display| {
            Err(LinkError::Protocol(format!(
                "expected {what} {expected}, saw {seen}"
            )))
        };
        if magic != MAGIC {
            expect("a message's first word", &MAGIC, &magic)
        } else if !sequences.contains(&sequence) {
            expect("message number", sequences.end(), &sequence)
        } else if let Some(word) = rest.iter().find(|&&word| word != 0) {
            expect("the rest of a header to be", &0, word)
        } else {
            match u32::try_from(len) {
                Ok(len) if len as usize <= slot_bytes => Ok(Self { sequence, len, tag }),
                _ => expect("a length of at most", &slot_bytes, &len),
            }
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
                bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
                bytes[8..16].copy_from_slice(&sequence.to_le_bytes());
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
        let mut long = header.encode();
        long[HEADER_BYTES - 1] = 1;
        let error = Header::parse(&long, 7..=7, 64).unwrap_err();
        assert!(error.to_string().contains("rest of a header"), "{error}");
        let garbage = [b'G'; HEADER_BYTES];
        let error = Header::parse(&garbage, 0..=0, 64).unwrap_err();
        assert!(error.to_string().contains("first word"), "{error}");
    }
}
