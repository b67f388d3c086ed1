//! The first message as bytes.

use proptest::prelude::*;

use super::*;

#[test]
fn another_version_is_told_apart_from_garbage() {
    let mut open = Open::new(Intent::Rendezvous { world: [1; 8] }).unwrap();
    assert_eq!(Open::decode(&open.encode()), Ok(open.clone()));
    open.version = 7;
    assert_eq!(Open::decode(&open.encode()), Err(OpenError::Version(7)));
    assert!(matches!(
        Open::decode(b"GET / HTTP/1.1"),
        Err(OpenError::Wire(_))
    ));
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_panic(bytes: Vec<u8>) {
        let _ = Open::decode(&bytes);
        let _ = Rejection::error(&bytes, "peer");
    }

    #[test]
    fn a_damaged_open_is_refused_or_another(
        at: prop::sample::Index,
        with: u8,
        cut: prop::sample::Index,
    ) {
        let stream_id = StreamId { context: 1, kind: StreamKind::Tcp, number: 2 };
        let intent = Intent::Stream { from: 0, to: 1, stream_id };
        let mut bytes = Open { version: PROTOCOL, intent, nonce: [7; 32] }.encode();
        prop_assert!(Open::decode(&bytes[..cut.index(bytes.len())]).is_err());
        let at = at.index(bytes.len());
        bytes[at] = with;
        if let Ok(open) = Open::decode(&bytes) {
            prop_assert_eq!(open.encode(), &bytes[..]);
        }
    }

    #[test]
    fn opens_survive(
        from: u32,
        to: u32,
        context: u64,
        number: u32,
        nonce: [u8; 32],
        kind in 0u8..3,
    ) {
        let kind = StreamKind::from_byte(kind).unwrap();
        let stream_id = StreamId { context, kind, number };
        let intent = Intent::Stream { from, to, stream_id };
        let open = Open { version: PROTOCOL, intent, nonce };
        prop_assert!(open.encode().len() <= MAX_HANDSHAKE);
        prop_assert_eq!(Open::decode(&open.encode()), Ok(open));
    }
}
