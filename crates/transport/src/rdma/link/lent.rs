//! The contents of a lent message: not its payload, but where the peer reads that.

/// The location of a payload in its sender's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Lent {
    pub(super) address: u64,
    pub(super) bytes: u32,
    /// The key of the memory, by rail.
    pub(super) keys: Vec<u32>,
}

/// The size of the address and the length.
const FIXED: usize = 12;

impl Lent {
    /// Its encoded size with this many rails.
    pub(super) fn len(rails: usize) -> usize {
        FIXED + 4 * rails
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = self.address.to_le_bytes().to_vec();
        bytes.extend(self.bytes.to_le_bytes());
        bytes.extend(self.keys.iter().flat_map(|key| key.to_le_bytes()));
        bytes
    }

    /// Decodes it; `None` if no peer sends it over this many rails, with messages of at most `most`
    /// bytes.
    pub(super) fn decode(bytes: &[u8], rails: usize, most: usize) -> Option<Self> {
        if bytes.len() != Self::len(rails) {
            return None;
        }
        let (address, bytes) = bytes.split_first_chunk()?;
        let (len, keys) = bytes.split_first_chunk()?;
        let lent = Self {
            address: u64::from_le_bytes(*address),
            bytes: u32::from_le_bytes(*len),
            keys: keys
                .chunks_exact(4)
                .map(|key| {
                    key.iter()
                        .rev()
                        .fold(0, |key, byte| key << 8 | u32::from(*byte))
                })
                .collect(),
        };
        (1..=most).contains(&(lent.bytes as usize)).then_some(lent)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_lent_is_understood(
            address: u64,
            bytes in 1..=65536_u32,
            keys in prop::collection::vec(any::<u32>(), 1..5),
        ) {
            let rails = keys.len();
            let lent = Lent { address, bytes, keys };
            let encoded = lent.encode();
            prop_assert_eq!(encoded.len(), Lent::len(rails));
            prop_assert_eq!(Lent::decode(&encoded, rails, 65536), Some(lent));
            prop_assert_eq!(Lent::decode(&encoded, rails, bytes as usize - 1), None);
            prop_assert_eq!(Lent::decode(&encoded, rails + 1, 65536), None);
        }

        #[test]
        fn any_bytes_are_understood_or_refused(
            bytes in prop::collection::vec(any::<u8>(), 0..40),
            rails in 0..6_usize,
        ) {
            if let Some(lent) = Lent::decode(&bytes, rails, 1 << 20) {
                prop_assert_eq!(lent.encode(), bytes);
            }
        }
    }
}
