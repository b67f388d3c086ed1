//! Records of frames, for streams that leave the host. A record's length and its content are each
//! followed by a tag. So a length is verified before its bytes are waited for, and only bytes of
//! the neighbour are parsed.

use spark_ccl_seal::{Changed, Opener, Sealer, TAG};

/// A length and its tag.
const HEAD: usize = 4 + TAG;

/// More than a batch and the frames that may exceed it.
const MOST: usize = 64 * 1024;

/// The record of these frames.
pub(crate) fn seal(sealer: &mut Sealer, frames: &[u8]) -> Vec<u8> {
    let length = (frames.len() as u32).to_le_bytes();
    let tags = [sealer.tag(&[&length]), sealer.tag(&[frames])];
    [&length, &tags[0][..], frames, &tags[1]].concat()
}

/// Takes records apart as they arrive.
pub(crate) struct Records {
    opener: Opener,
    /// The bytes that have arrived of an incomplete record.
    arrived: Vec<u8>,
    /// The length of that record's content, once it is known.
    length: Option<usize>,
}

impl Records {
    pub(crate) fn new(opener: Opener) -> Self {
        Self {
            opener,
            arrived: Vec::new(),
            length: None,
        }
    }

    /// Adds `bytes`, and appends the frames of all records that are complete to `frames`.
    pub(crate) fn open(&mut self, bytes: &[u8], frames: &mut Vec<u8>) -> Result<(), Changed> {
        self.arrived.extend_from_slice(bytes);
        let mut taken = 0;
        while let Some(length) = self.next_length(&mut taken)? {
            let Some(record) = self.arrived.get(taken..taken + length + TAG) else {
                break;
            };
            let Some((content, tag)) = record.split_last_chunk() else {
                break;
            };
            self.opener.check(&[content], tag)?;
            frames.extend_from_slice(content);
            taken += length + TAG;
            self.length = None;
        }
        self.arrived.drain(..taken);
        Ok(())
    }

    /// The length of the next record's content, if it has arrived. Its bytes are taken once.
    fn next_length(&mut self, taken: &mut usize) -> Result<Option<usize>, Changed> {
        let head = self.arrived[*taken..].first_chunk::<HEAD>();
        let Some(head) = head.filter(|_| self.length.is_none()) else {
            return Ok(self.length);
        };
        if let (Some(length), Some(tag)) = (head.first_chunk::<4>(), head.last_chunk::<TAG>()) {
            self.opener.check(&[length], tag)?;
            let length = u32::from_le_bytes(*length) as usize;
            if length > MOST {
                return Err(Changed);
            }
            self.length = Some(length);
            *taken += HEAD;
        }
        Ok(self.length)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ends() -> (Sealer, Records) {
        (Sealer::new(&[7; 32]), Records::new(Opener::new(&[7; 32])))
    }

    proptest! {
        #[test]
        fn records_may_be_cut_anywhere(
            sent in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 0..6),
            cut in 1usize..80,
        ) {
            let (mut sealer, mut records) = ends();
            let bytes: Vec<u8> = sent.iter().flat_map(|one| seal(&mut sealer, one)).collect();
            let mut read = Vec::new();
            for part in bytes.chunks(cut) {
                prop_assert_eq!(records.open(part, &mut read), Ok(()));
            }
            prop_assert_eq!(read, sent.concat());
            prop_assert!(records.arrived.is_empty());
        }

        /// However the bytes are changed, only a prefix of what was sent is read. A change is found
        /// once the changed bytes, and those of their tag, have come.
        #[test]
        fn what_is_changed_is_found(
            at: prop::sample::Index, bit in 0u8..8, cut in 1usize..80,
        ) {
            let (mut sealer, mut records) = ends();
            let sent = [b"one".to_vec(), vec![2; 50], Vec::new(), b"four".to_vec()];
            let mut bytes: Vec<u8> = sent.iter().flat_map(|one| seal(&mut sealer, one)).collect();
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            let mut read = Vec::new();
            let mut parts = bytes.chunks(cut);
            prop_assert!(parts.any(|part| records.open(part, &mut read).is_err()));
            prop_assert!(sent.concat().starts_with(&read));
        }

        #[test]
        fn whole_records_that_are_left_out_repeated_or_moved_are_found(
            taken in prop::collection::vec(0usize..4, 1..7),
        ) {
            let (mut sealer, mut records) = ends();
            let sealed = [1, 2, 3, 4].map(|byte| seal(&mut sealer, &[byte]));
            let mut is_right = true;
            for (place, &which) in taken.iter().enumerate() {
                is_right &= place == which;
                prop_assert_eq!(records.open(&sealed[which], &mut Vec::new()).is_ok(), is_right);
            }
        }
    }

    #[test]
    fn a_record_that_is_sent_back_is_found() {
        let keys = [[1; 32], [2; 32]];
        let sealed = seal(&mut Sealer::new(&keys[0]), b"text");
        let mut records = Records::new(Opener::new(&keys[1]));
        assert_eq!(records.open(&sealed, &mut Vec::new()), Err(Changed));
    }
}
