//! Tags that prove to the receiver of a stream that each message is the next one sent, unchanged.
//!
//! Each direction of a stream has a key of its own, and counts its messages. A message that was
//! changed, repeated, left out, moved, or sent back to where it came from has a wrong tag. So has
//! one of another stream, which has other keys. Messages are not encrypted. Their format on the
//! stream is up to its user.
//!
//! ```
//! use spark_ccl_seal::{Opener, Sealer};
//!
//! let (mut sealer, mut opener) = (Sealer::new(&[7; 32]), Opener::new(&[7; 32]));
//! let tag = sealer.tag(&[b"a message"]);
//! assert!(opener.check(&[b"a ", b"message"], &tag).is_ok());
//! assert!(opener.check(&[b"a message"], &tag).is_err(), "it comes a second time");
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod stream;

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
pub use stream::{Seals, Stream};

/// The bytes of a tag: the first half of HMAC-SHA256. Nobody can guess 128 bits, and a stream
/// allows one guess.
pub const TAG: usize = 16;

/// What came over a stream is not the next message that the other end has sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "what it sent was changed on the way, or left out, repeated or moved, by something between the \
     hosts: look for what is in the path, and run the job where only its hosts are"
)]
pub struct Changed;

/// Makes the tags of one direction of a stream.
pub struct Sealer(Counted);

/// Checks the tags of one direction of a stream. After a wrong one, all are wrong.
pub struct Opener {
    counted: Counted,
    is_broken: bool,
}

/// A key, and how many messages it was used for.
struct Counted {
    /// Boxed: it takes 200 bytes, and streams are moved.
    key: Box<Hmac<Sha256>>,
    count: u64,
}

impl Sealer {
    /// For the direction with this key, which must have no other use.
    pub fn new(key: &[u8; 32]) -> Self {
        Self(Counted::new(key))
    }

    /// The tag of the next message, which consists of these parts.
    pub fn tag(&mut self, message: &[&[u8]]) -> [u8; TAG] {
        let whole: [u8; 32] = self.0.next(message).finalize().into_bytes().into();
        let mut tag = [0; TAG];
        tag.copy_from_slice(&whole[..TAG]);
        tag
    }
}

impl Opener {
    /// For the direction with this key.
    pub fn new(key: &[u8; 32]) -> Self {
        Self {
            counted: Counted::new(key),
            is_broken: false,
        }
    }

    /// Checks the tag of the next message, in constant time.
    ///
    /// # Errors
    /// [`Changed`] if it is wrong, or an earlier one was.
    pub fn check(&mut self, message: &[&[u8]], tag: &[u8; TAG]) -> Result<(), Changed> {
        let mac = self.counted.next(message);
        self.is_broken |= mac.verify_truncated_left(tag).is_err();
        if self.is_broken { Err(Changed) } else { Ok(()) }
    }
}

impl Counted {
    fn new(key: &[u8; 32]) -> Self {
        // HMAC pads a short key with zeros to the hash's block size. Padded here, the key has the
        // exact length, and the constructor cannot fail.
        let mut block = [0; 64];
        block[..32].copy_from_slice(key);
        Self {
            key: Box::new(Hmac::new(&block.into())),
            count: 0,
        }
    }

    /// Counts a message. Its parts are concatenated: the user's format says where each ends.
    fn next(&mut self, message: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = Hmac::clone(&self.key);
        mac.update(&self.count.to_le_bytes());
        self.count += 1;
        for part in message {
            mac.update(part);
        }
        mac
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sealer(redacted)")
    }
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Opener(redacted)")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ends() -> (Sealer, Opener) {
        (Sealer::new(&[7; 32]), Opener::new(&[7; 32]))
    }

    /// By another implementation: Python's `hmac.digest(bytes([7]) * 32, bytes(8) + b"text",
    /// "sha256")[:16]`.
    #[test]
    fn a_tag_is_the_first_half_of_an_hmac_over_the_count_and_the_message() {
        let tag = ends().0.tag(&[b"te", b"xt"]);
        assert_eq!(
            u128::from_be_bytes(tag),
            0x515e_51ff_5c1e_d4da_bab7_f008_6a3e_9404
        );
    }

    #[test]
    fn other_keys_have_other_tags() {
        let tag = Sealer::new(&[8; 32]).tag(&[b"text"]);
        assert_eq!(ends().1.check(&[b"text"], &tag), Err(Changed));
        assert_eq!(
            format!("{:?}", ends()),
            "(Sealer(redacted), Opener(redacted))"
        );
    }

    proptest! {
        #[test]
        fn only_the_messages_that_were_sent_are_taken_in_their_order(
            sent in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..6),
            taken in prop::collection::vec(0usize..6, 0..8),
            flip in prop::option::of((0usize..8, any::<prop::sample::Index>(), 0u8..8)),
        ) {
            let (mut sealer, mut opener) = ends();
            let sealed: Vec<_> = sent.iter().map(|one| (one.clone(), sealer.tag(&[one]))).collect();
            let mut is_right = true;
            let taken = taken.iter().filter_map(|&which| Some((which, sealed.get(which)?.clone())));
            for (place, (which, (mut message, mut tag))) in taken.enumerate() {
                is_right &= which == place;
                if let Some((at, index, bit)) = flip && at == place {
                    let index = index.index(message.len() + TAG);
                    let mut bytes = message.iter_mut().chain(&mut tag);
                    let byte = bytes.nth(index).unwrap();
                    *byte ^= 1 << bit;
                    is_right = false;
                }
                prop_assert_eq!(opener.check(&[&message], &tag).is_ok(), is_right);
            }
        }
    }
}
