//! Memory that a rank opens to its peer, which writes there by itself.

use spark_ccl_verbs::Remote;

use crate::PutPart;

/// A range of memory, as the other rank needs it to write there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Opened {
    pub(super) start: u64,
    pub(super) bytes: u64,
    /// The key of the memory, by rail.
    pub(super) keys: Vec<u32>,
}

/// The size of address and length.
const FIXED: usize = 16;

impl Opened {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = [self.start, self.bytes].map(u64::to_le_bytes).concat();
        bytes.extend(self.keys.iter().flat_map(|key| key.to_le_bytes()));
        bytes
    }

    /// Decodes several ranges, one after the other; `None` if no peer opens them over this many
    /// rails.
    pub(super) fn decode_all(bytes: &[u8], rails: usize) -> Option<Vec<Self>> {
        let each = FIXED + 4 * rails;
        if bytes.is_empty() || !bytes.len().is_multiple_of(each) {
            return None;
        }
        let decode = |bytes: &[u8]| {
            let (start, bytes) = bytes.split_first_chunk()?;
            let (len, keys) = bytes.split_first_chunk()?;
            let (keys, _) = keys.as_chunks();
            let range = Self {
                start: u64::from_le_bytes(*start),
                bytes: u64::from_le_bytes(*len),
                keys: keys.iter().map(|key| u32::from_le_bytes(*key)).collect(),
            };
            range.start.checked_add(range.bytes).map(|_| range)
        };
        bytes.chunks_exact(each).map(decode).collect()
    }

    /// Whether the part lies within the range.
    pub(super) fn holds(&self, part: &PutPart) -> bool {
        let end = part.at.checked_add(u64::from(part.bytes));
        end.is_some_and(|end| end <= self.bytes)
    }

    /// Where a part goes that the range [holds](Self::holds), over a rail.
    pub(super) fn place(&self, part: &PutPart, rail: usize) -> Remote {
        Remote {
            addr: self.start + part.at,
            rkey: self.keys[rail],
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_opened_is_understood(
            start in 0..1_u64 << 60,
            bytes in 0..1_u64 << 40,
            keys in prop::collection::vec(any::<u32>(), 1..5),
        ) {
            let rails = keys.len();
            let one = Opened { start, bytes, keys };
            let other = Opened { start: bytes, ..one.clone() };
            let encoded = [one.encode(), other.encode()].concat();
            let cut = &encoded[1..];
            prop_assert_eq!(Opened::decode_all(cut, rails), None);
            prop_assert_eq!(Opened::decode_all(&encoded, rails), Some(vec![one, other]));
        }

        #[test]
        fn any_bytes_are_understood_or_refused(
            bytes in prop::collection::vec(any::<u8>(), 0..80),
            rails in 0..6_usize,
        ) {
            if let Some(all) = Opened::decode_all(&bytes, rails) {
                let encoded: Vec<_> = all.iter().flat_map(Opened::encode).collect();
                prop_assert_eq!(encoded, bytes);
            }
        }
    }

    #[test]
    fn nothing_beyond_a_range_is_written() {
        let range = Opened {
            start: 1 << 20,
            bytes: 64,
            keys: vec![7],
        };
        let part = |at, bytes| PutPart {
            from: 0,
            bytes,
            range: 0,
            at,
        };
        assert!(range.holds(&part(56, 8)));
        assert!(!range.holds(&part(57, 8)));
        assert!(!range.holds(&part(u64::MAX, 8)));
        let to = range.place(&part(8, 8), 0);
        assert_eq!((to.addr, to.rkey), ((1 << 20) + 8, 7));
    }
}
