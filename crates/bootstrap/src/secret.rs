//! The shared secret, and the keys and proofs derived from it. The secret is never sent over a
//! connection.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use rustix::rand::{GetRandomFlags, getrandom};
use sha2::Sha256;

use crate::Error;

/// A 32-byte key that all ranks of a world share. `Debug` does not show it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret {
    bytes: [u8; 32],
    /// Whether everybody knows it: it is [`Secret::public`], or derived from that.
    is_public: bool,
}

impl Secret {
    /// A secret of 32 random bytes.
    ///
    /// # Errors
    /// The kernel gives no random bytes.
    pub fn generate() -> Result<Self, Error> {
        random().map(Self::from_bytes)
    }

    /// The secret that all ranks derive from the same text, such as the value of
    /// `SPARK_CCL_SECRET`. It is as hard to guess as the text.
    pub fn from_text(text: &[u8]) -> Self {
        let nothing = Secret {
            bytes: [0; 32],
            is_public: false,
        };
        Self::from_bytes(nothing.sign(b"spark-ccl secret text", text))
    }

    pub(crate) fn from_bytes(bytes: [u8; 32]) -> Self {
        let is_public = bytes == Self::public().bytes;
        Secret { bytes, is_public }
    }

    pub(crate) fn bytes(&self) -> &[u8; 32] {
        &self.bytes
    }

    /// The well-known key of a loopback rendezvous without a secret. It only prevents accidental
    /// connections: who may join depends on the other end's user ([`owner`](crate::owner)).
    pub(crate) fn public() -> Self {
        Secret {
            bytes: *b"spark-ccl: loopback, no secret..",
            is_public: true,
        }
    }

    /// Whether everybody knows it, so that holding it proves nothing.
    pub(crate) fn is_public(&self) -> bool {
        self.is_public
    }

    /// Derives a key for one use, which does not reveal the secret.
    pub(crate) fn derive(&self, label: &[u8], data: &[u8]) -> Self {
        Secret {
            bytes: self.sign(label, data),
            is_public: self.is_public,
        }
    }

    /// The proof of holding this key, for one role and one transcript.
    pub(crate) fn sign(&self, role: &[u8], transcript: &[u8]) -> [u8; 32] {
        self.mac(role, transcript).finalize().into_bytes().into()
    }

    /// Checks a proof in constant time.
    pub(crate) fn verify(&self, role: &[u8], transcript: &[u8], proof: &[u8; 32]) -> bool {
        self.mac(role, transcript).verify(proof.into()).is_ok()
    }

    fn mac(&self, role: &[u8], transcript: &[u8]) -> Hmac<Sha256> {
        // HMAC pads a short key with zeros to the hash's block size. Padded here, the key has the
        // exact length, and the constructor cannot fail.
        let mut block = [0; 64];
        block[..32].copy_from_slice(&self.bytes);
        let mut mac = Hmac::<Sha256>::new(&block.into());
        // The length keeps role and transcript apart.
        mac.update(&(role.len() as u64).to_le_bytes());
        mac.update(role);
        mac.update(transcript);
        mac
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(redacted)")
    }
}

/// Random bytes from the kernel.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(Error::os("get random bytes from the kernel", &errno.into())),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proofs_are_bound_to_key_role_and_transcript() {
        let key = Secret::from_text(b"a");
        let proof = key.sign(b"client", b"transcript");
        assert!(key.verify(b"client", b"transcript", &proof));
        assert!(!key.verify(b"server", b"transcript", &proof));
        assert!(!key.verify(b"client", b"transcripu", &proof));
        assert!(!key.verify(b"clientt", b"ranscript", &proof));
        assert!(!Secret::from_text(b"b").verify(b"client", b"transcript", &proof));
    }

    #[test]
    fn hmac_matches_rfc_4231_case_2() {
        let mut block = [0; 64];
        block[..4].copy_from_slice(b"Jefe");
        let mut mac = Hmac::<Sha256>::new(&block.into());
        mac.update(b"what do ya want for nothing?");
        let bytes: [u8; 32] = mac.finalize().into_bytes().into();
        assert_eq!(bytes[..4], [0x5b, 0xdc, 0xc1, 0x46]);
        assert_eq!(bytes[28..], [0x64, 0xec, 0x38, 0x43]);
    }

    #[test]
    fn what_comes_from_the_public_key_is_public() {
        let public = Secret::public();
        assert!(public.derive(b"label", b"data").is_public());
        assert_eq!(Secret::from_bytes(*public.bytes()), public);
        assert!(!Secret::from_text(public.bytes()).is_public());
        assert!(
            !Secret::generate()
                .unwrap()
                .derive(b"label", b"")
                .is_public()
        );
    }

    #[test]
    fn debug_is_redacted_and_generated_secrets_differ() {
        let a = Secret::generate().unwrap();
        assert_ne!(a, Secret::generate().unwrap());
        assert_eq!(format!("{a:?}"), "Secret(redacted)");
    }
}
