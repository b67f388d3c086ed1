//! The unique id: 128 bytes by which the ranks of a new world find and authenticate each other.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sha2::{Digest, Sha256};

use crate::wire::{Reader, WireError, Writer};
use crate::{Error, Secret};

const MAGIC: [u8; 4] = *b"SCid";
const VERSION: u8 = 2;
const SECRET_AT: usize = 8;
const LIFE_AT: usize = SECRET_AT + 32;
const ADDRESSES_AT: usize = LIFE_AT + 8;
const CHECKSUM_AT: usize = 120;

/// Identifies one world, in 128 bytes: the addresses of its rendezvous, a random secret, and how
/// long it is valid.
///
/// Any process that has it can join, so pass it to the other ranks through a private channel. Its
/// text form (`Display`, `FromStr`) is 256 hexadecimal digits and contains the secret; `Debug` does
/// not.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UniqueId([u8; UniqueId::LEN]);

impl UniqueId {
    /// The number of bytes of an id.
    pub const LEN: usize = 128;

    /// The id as bytes, to pass to the other ranks.
    pub fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }

    /// The id from bytes that another rank passed.
    ///
    /// # Errors
    /// [`Error::UniqueId`] if the bytes are not an id, are of another version, or are damaged.
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Result<Self, Error> {
        parse(bytes).map_err(|reason| Error::UniqueId(reason.to_string()))?;
        Ok(UniqueId(*bytes))
    }

    /// The id of a rendezvous at `addresses`, which may be public, with a secret that was passed
    /// separately. Without a secret, all addresses must be loopback addresses. The other ranks make
    /// it for a rendezvous that [`UniqueId::serve`] started; how long it is valid is not known.
    ///
    /// # Errors
    /// [`Error::NoSecret`] if a secret is needed; [`Error::UniqueId`] if there is no address, or
    /// one with port 0.
    pub fn of_rendezvous(secret: Option<&Secret>, addresses: &[SocketAddr]) -> Result<Self, Error> {
        let open = addresses.iter().find(|a| !a.ip().is_loopback());
        let secret = match (secret, open) {
            (Some(secret), _) => *secret,
            (None, None) => Secret::public(),
            (None, Some(address)) => {
                let address = address.to_string();
                return Err(Error::NoSecret { address });
            }
        };
        Self::from_bytes(Self::new(&secret, addresses, None).0.as_bytes())
    }

    /// An id for a rendezvous at `addresses` that starts now and waits for `good_for`; also, how
    /// many addresses fit into the id (at least three).
    pub(crate) fn new(
        secret: &Secret,
        addresses: &[SocketAddr],
        good_for: Option<Duration>,
    ) -> (Self, usize) {
        let millis = |time: Duration| u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
        let (made, good_for) =
            good_for.map_or((0, 0), |time| (unix_seconds(), millis(time).max(1)));
        let mut body = Writer::default();
        body.bytes(&MAGIC)
            .u8(VERSION)
            .u8(0)
            .u16(0)
            .bytes(secret.bytes())
            .u32(made)
            .u32(good_for);
        let mut bytes = body.finish();
        let mut count = 0;
        for address in addresses {
            let encoded = Writer::default().address(address).finish();
            if bytes.len() + encoded.len() <= CHECKSUM_AT {
                bytes.extend_from_slice(&encoded);
                count += 1;
            }
        }
        bytes[5] = count;
        bytes.resize(CHECKSUM_AT, 0);
        let mut id = [0; Self::LEN];
        id[..CHECKSUM_AT].copy_from_slice(&bytes);
        id[CHECKSUM_AT..].copy_from_slice(&checksum(&bytes));
        (UniqueId(id), usize::from(count))
    }

    /// Where the rendezvous listens.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        parse(&self.0).unwrap_or_default()
    }

    pub(crate) fn secret(&self) -> Secret {
        let mut secret = [0; 32];
        secret.copy_from_slice(&self.0[SECRET_AT..LIFE_AT]);
        Secret::from_bytes(secret)
    }

    /// The age of the id, by this host's clock, and how long it is valid; `None` if not known.
    pub(crate) fn life(&self) -> Option<(Duration, Duration)> {
        let mut reader = Reader::new(&self.0[LIFE_AT..ADDRESSES_AT]);
        let (made, good_for) = (reader.u32().ok()?, reader.u32().ok()?);
        let age = Duration::from_secs(unix_seconds().saturating_sub(made).into());
        (good_for != 0).then(|| (age, Duration::from_millis(good_for.into())))
    }
}

impl fmt::Display for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UniqueId")
            .field("addresses", &self.addresses())
            .finish_non_exhaustive()
    }
}

impl FromStr for UniqueId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let text = text.trim().as_bytes();
        if text.len() != 2 * Self::LEN {
            return Err(Error::UniqueId(format!(
                "expected {} hexadecimal digits, found {} characters",
                2 * Self::LEN,
                text.len()
            )));
        }
        let mut bytes = [0; Self::LEN];
        for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
            *byte = hex_pair(pair).ok_or_else(|| {
                Error::UniqueId("a character that is not a hexadecimal digit".to_owned())
            })?;
        }
        Self::from_bytes(&bytes)
    }
}

#[derive(Debug, thiserror::Error)]
enum BadId {
    #[error("it does not start with the mark of a unique id")]
    Magic,
    #[error("it is of version {0}, this library reads version {VERSION}")]
    Version(u8),
    #[error("its checksum is wrong, so it was cut or changed on the way")]
    Checksum,
    #[error("it names no usable rendezvous address")]
    Addresses,
    #[error("it holds {0}")]
    Wire(#[from] WireError),
}

fn parse(bytes: &[u8; UniqueId::LEN]) -> Result<Vec<SocketAddr>, BadId> {
    let mut reader = Reader::new(bytes);
    if reader.array()? != MAGIC {
        return Err(BadId::Magic);
    }
    let version = reader.u8()?;
    if version != VERSION {
        return Err(BadId::Version(version));
    }
    if bytes[CHECKSUM_AT..] != checksum(&bytes[..CHECKSUM_AT]) {
        return Err(BadId::Checksum);
    }
    let count = reader.u8()?;
    reader.take(ADDRESSES_AT - 6)?;
    let addresses = (0..count)
        .map(|_| reader.address())
        .collect::<Result<Vec<SocketAddr>, WireError>>()?;
    if addresses.is_empty() || addresses.iter().any(|address| address.port() == 0) {
        return Err(BadId::Addresses);
    }
    Ok(addresses)
}

fn unix_seconds() -> u32 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |time| time.as_secs() as u32)
}

fn checksum(bytes: &[u8]) -> [u8; 8] {
    let digest: [u8; 32] = Sha256::digest(bytes).into();
    let mut sum = [0; 8];
    sum.copy_from_slice(&digest[..8]);
    sum
}

fn hex_pair(pair: &[u8]) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    match pair {
        [high, low] => Some((digit(*high)? * 16 + digit(*low)?) as u8),
        _ => None,
    }
}

/// The error of a rank that finds no rendezvous. `life` explains it: the age of the id when the
/// rank joined, and how long it is valid.
pub(crate) fn expired(
    error: Error,
    life: Option<(Duration, Duration)>,
    addresses: &[SocketAddr],
) -> Error {
    let (&Error::Unreachable { refused, .. }, Some((age, good_for))) = (&error, life) else {
        return error;
    };
    let is_local = addresses.iter().all(|address| address.ip().is_loopback());
    let why = match (age > good_for, refused) {
        (true, _) => "its time is over",
        (false, true) if is_local => {
            "its process has ended, its ranks have met already, or it was made on another host, \
             where SPARK_CCL_SOCKET_IFNAME leaves only loopback"
        }
        (false, true) => "its process has ended, or its ranks have met already",
        (false, false) => return error,
    };
    let (age, good_for) = (age.as_secs(), good_for.as_secs_f64());
    Error::Expired(format!(
        "it was made {age} s ago and good for {good_for} s, and {why} ({error})"
    ))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> UniqueId {
        let addresses =
            ["10.0.0.1:4000", "[fe80::1]:4001", "127.0.0.1:9"].map(|a| a.parse().unwrap());
        UniqueId::new(&Secret::from_text(b"x"), &addresses, None).0
    }

    #[test]
    fn what_is_known_of_an_id_explains_that_nobody_answers() {
        let addresses = ["10.0.0.1:4000"].map(|address| address.parse().unwrap());
        let explained = |refused, life: Option<[u64; 2]>| {
            let error = Error::Unreachable {
                peer: "the rendezvous".to_owned(),
                attempts: Vec::new(),
                refused,
            };
            let [age, good_for] = life.unwrap_or_default().map(Duration::from_secs);
            expired(error, life.map(|_| (age, good_for)), &addresses)
        };
        for refused in [false, true] {
            let old = explained(refused, Some([121, 120])).to_string();
            assert!(
                old.contains("made 121 s ago and good for 120 s, and its time is over"),
                "{old}"
            );
            let unknown = explained(refused, None);
            assert!(matches!(unknown, Error::Unreachable { .. }), "{unknown}");
        }
        let gone = explained(true, Some([7, 120])).to_string();
        assert!(gone.contains("its process has ended"), "{gone}");
        // Perhaps a firewall: the id may be valid.
        let cut_off = explained(false, Some([7, 120]));
        assert!(matches!(cut_off, Error::Unreachable { .. }), "{cut_off}");
    }

    #[test]
    fn text_and_bytes_come_back_the_same() {
        let id = sample();
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(UniqueId::from_bytes(id.as_bytes()), Ok(id));
        assert_eq!(id.addresses().len(), 3);
        assert_eq!(id.secret(), Secret::from_text(b"x"));
    }

    #[test]
    fn debug_does_not_show_the_secret() {
        let id = sample();
        let secret: String = id.to_string()[16..80].to_owned();
        let debug = format!("{id:?}");
        assert!(
            debug.contains("10.0.0.1:4000") && !debug.contains(&secret[..8]),
            "{debug}"
        );
    }

    #[test]
    fn addresses_that_do_not_fit_are_left_out() {
        let many: Vec<SocketAddr> = (1..9u16)
            .map(|i| format!("[2001:db8::{i}]:{i}").parse().unwrap())
            .collect();
        let (id, count) = UniqueId::new(&Secret::from_text(b"x"), &many, None);
        assert_eq!(count, 3);
        assert_eq!(id.addresses(), many[..3]);
    }

    #[test]
    fn an_id_knows_its_age_and_how_long_it_is_good_for() {
        let address = ["10.0.0.1:4000".parse().unwrap()];
        let new = |time| UniqueId::new(&Secret::from_text(b"x"), &address, time).0;
        let (age, good_for) = new(Some(Duration::from_millis(1500))).life().unwrap();
        assert!(age < Duration::from_secs(60), "{age:?}");
        assert_eq!(good_for, Duration::from_millis(1500));
        let (_, good_for) = new(Some(Duration::MAX)).life().unwrap();
        assert_eq!(good_for, Duration::from_millis(u32::MAX.into()));
        assert_eq!(new(None).life(), None);
    }

    #[test]
    fn wrong_texts_say_what_is_wrong() {
        let error = |text: &str| text.parse::<UniqueId>().unwrap_err().to_string();
        assert!(error("abc").contains("256 hexadecimal digits, found 3"));
        assert!(error(&"z".repeat(256)).contains("not a hexadecimal digit"));
        assert!(error(&"0".repeat(256)).contains("mark"));
        let mut bytes = *sample().as_bytes();
        bytes[4] = 9;
        assert!(
            UniqueId::from_bytes(&bytes)
                .unwrap_err()
                .to_string()
                .contains("version 9")
        );
    }

    proptest! {
        #[test]
        fn arbitrary_text_is_refused(text in ".{0,300}") {
            prop_assert!(text.parse::<UniqueId>().is_err());
        }

        #[test]
        fn a_damaged_text_is_refused(at in 0usize..2 * UniqueId::LEN, with in any::<char>()) {
            let good = sample().to_string();
            let mut text: Vec<char> = good.chars().collect();
            text[at] = with;
            let text: String = text.into_iter().collect();
            prop_assert_eq!(text.parse::<UniqueId>().is_ok(), text.eq_ignore_ascii_case(&good));
        }

        #[test]
        fn one_changed_byte_is_found(at in 0usize..UniqueId::LEN, flip in 1u8..) {
            let mut bytes = *sample().as_bytes();
            bytes[at] ^= flip;
            prop_assert!(UniqueId::from_bytes(&bytes).is_err());
        }

        #[test]
        fn arbitrary_content_with_a_right_checksum_does_not_panic(content: [u8; 32], more: [u8; 32]) {
            let mut bytes = *sample().as_bytes();
            bytes[5..37].copy_from_slice(&content);
            bytes[40..72].copy_from_slice(&more);
            let sum = checksum(&bytes[..CHECKSUM_AT]);
            bytes[CHECKSUM_AT..].copy_from_slice(&sum);
            if let Ok(id) = UniqueId::from_bytes(&bytes) {
                prop_assert!(!id.addresses().is_empty());
            }
        }
    }
}
