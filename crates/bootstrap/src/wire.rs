//! The wire format of the bootstrap: little-endian fields, and frames of bounded length.
//!
//! Everything here is a pure function of its bytes. Each length is checked against its limit before
//! anything is allocated for it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// The bytes before a frame's body: its length, then its kind.
pub(crate) const FRAME_HEADER: usize = 5;

/// The contents of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FrameKind {
    /// The client's first message: version, intent, nonce.
    Open = 1,
    /// The server's answer: version and nonce.
    Challenge = 2,
    /// The client's proof that it holds the secret.
    Proof = 3,
    /// The server's proof.
    Accept = 4,
    /// The server rejects the client, and says why.
    Reject = 5,
    /// A rank describes itself to the rendezvous.
    Hello = 6,
    /// The rendezvous' table of all ranks.
    Table = 7,
    /// Whether a rank's links are up.
    Report = 8,
    /// All ranks' links are up.
    Sealed = 9,
    /// The world will not come up, and why.
    Failed = 10,
    /// The other ranks that a rank reached by itself.
    Survey = 11,
    /// Which ranks reach each other by themselves.
    Wiring = 12,
}

impl FrameKind {
    fn from_byte(byte: u8) -> Option<Self> {
        use FrameKind::{
            Accept, Challenge, Failed, Hello, Open, Proof, Reject, Report, Sealed, Survey, Table,
            Wiring,
        };
        [
            Open, Challenge, Proof, Accept, Reject, Hello, Table, Report, Sealed, Failed, Survey,
            Wiring,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == byte)
    }
}

/// Why bytes are not the expected message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WireError {
    #[error("a frame of {len} bytes where at most {limit} are allowed")]
    Oversized { len: usize, limit: usize },
    #[error("unknown frame kind {0}")]
    StreamKind(u8),
    #[error("a {seen:?} frame where {expected} was expected")]
    Unexpected {
        expected: &'static str,
        seen: FrameKind,
    },
    #[error("a message that ends early")]
    Short,
    #[error("a message with {0} bytes too many")]
    Long(usize),
    #[error("a message with an invalid {0}")]
    Field(&'static str),
}

/// Parses a frame's header: its kind, and the length of its body, which must not exceed `limit`.
pub(crate) fn parse_header(
    header: [u8; FRAME_HEADER],
    limit: usize,
) -> Result<(FrameKind, usize), WireError> {
    let [a, b, c, d, kind] = header;
    let len = u32::from_le_bytes([a, b, c, d]) as usize;
    if len > limit {
        return Err(WireError::Oversized { len, limit });
    }
    let kind = FrameKind::from_byte(kind).ok_or(WireError::StreamKind(kind))?;
    Ok((kind, len))
}

/// The header of a frame whose body has `len` bytes.
pub(crate) fn header(kind: FrameKind, len: usize) -> [u8; FRAME_HEADER] {
    let [a, b, c, d] = (len as u32).to_le_bytes();
    [a, b, c, d, kind as u8]
}

/// A whole frame around `body`.
pub(crate) fn frame(kind: FrameKind, body: &[u8]) -> Vec<u8> {
    [&header(kind, body.len()), body].concat()
}

/// Appends fields to a message.
#[derive(Default)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes(&[value])
    }

    pub(crate) fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(crate) fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(crate) fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(crate) fn bytes(&mut self, value: &[u8]) -> &mut Self {
        self.0.extend_from_slice(value);
        self
    }

    /// A text of at most `limit` bytes (at most 65,535); a longer one is truncated.
    pub(crate) fn text(&mut self, value: &str, limit: usize) -> &mut Self {
        let value = clip(value, limit.min(usize::from(u16::MAX)));
        self.u16(value.len() as u16).bytes(value.as_bytes())
    }

    pub(crate) fn address(&mut self, address: &SocketAddr) -> &mut Self {
        match address {
            SocketAddr::V4(v4) => self.u8(4).bytes(&v4.ip().octets()).u16(v4.port()),
            SocketAddr::V6(v6) => self
                .u8(6)
                .bytes(&v6.ip().octets())
                .u32(v6.scope_id())
                .u16(v6.port()),
        }
    }

    pub(crate) fn finish(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0)
    }
}

/// The longest prefix of `text` that has at most `limit` bytes and ends at a character boundary.
pub(crate) fn clip(text: &str, limit: usize) -> &str {
    let mut end = text.len().min(limit);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Takes fields off the front of a message.
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Reader(bytes)
    }

    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], WireError> {
        let (head, tail) = self.0.split_at_checked(len).ok_or(WireError::Short)?;
        self.0 = tail;
        Ok(head)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (head, tail) = self.0.split_first_chunk().ok_or(WireError::Short)?;
        self.0 = tail;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, WireError> {
        self.array().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, WireError> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, WireError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, WireError> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn text(&mut self, limit: usize) -> Result<String, WireError> {
        let len = usize::from(self.u16()?);
        if len > limit {
            return Err(WireError::Field("text length"));
        }
        let bytes = self.take(len)?;
        std::str::from_utf8(bytes)
            .map(str::to_owned)
            .map_err(|_| WireError::Field("text"))
    }

    pub(crate) fn address(&mut self) -> Result<SocketAddr, WireError> {
        match self.u8()? {
            4 => {
                let ip = Ipv4Addr::from(self.array::<4>()?);
                Ok(SocketAddr::new(IpAddr::V4(ip), self.u16()?))
            }
            6 => {
                let ip = Ipv6Addr::from(self.array::<16>()?);
                let scope = self.u32()?;
                Ok(SocketAddr::V6(SocketAddrV6::new(ip, self.u16()?, 0, scope)))
            }
            _ => Err(WireError::Field("address family")),
        }
    }

    /// Checks that nothing is left.
    pub(crate) fn end(&self) -> Result<(), WireError> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(WireError::Long(self.0.len()))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_http_request_is_an_oversized_frame() {
        assert!(matches!(
            parse_header(*b"GET /", 8192),
            Err(WireError::Oversized { .. })
        ));
    }

    #[test]
    fn a_text_is_cut_between_characters() {
        let bytes = Writer::default().text("aéé", 4).finish();
        assert_eq!(Reader::new(&bytes).text(4), Ok("aé".to_owned()));
    }

    proptest! {
        #[test]
        fn any_header_is_parsed_or_refused(header: [u8; FRAME_HEADER], limit in 0usize..10_000) {
            if let Ok((kind, len)) = parse_header(header, limit) {
                prop_assert!(len <= limit);
                let rebuilt = frame(kind, &vec![0; len]);
                prop_assert_eq!(&rebuilt[..FRAME_HEADER], &header[..]);
            }
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes: Vec<u8>, limit in 0usize..100) {
            let mut reader = Reader::new(&bytes);
            while reader.address().is_ok() || reader.text(limit).is_ok() || reader.u64().is_ok() {}
        }

        #[test]
        fn addresses_survive(ip: IpAddr, port: u16) {
            let address = SocketAddr::new(ip, port);
            let bytes = Writer::default().address(&address).finish();
            let mut reader = Reader::new(&bytes);
            prop_assert_eq!(reader.address(), Ok(address));
            prop_assert_eq!(reader.end(), Ok(()));
        }
    }
}
