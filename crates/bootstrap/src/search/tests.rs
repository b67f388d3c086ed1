//! Datagrams as bytes; datagrams of other worlds are ignored.

use proptest::prelude::*;

use super::*;

fn datagram_key(secret: &[u8]) -> SearchKey {
    let target = SocketAddr::from(([10, 0, 0, 1], 4000));
    SearchKey::new(&Secret::from_text(secret), &[target]).unwrap()
}

fn datagrams() -> [What; 2] {
    let nonce = [7; 8];
    let (port, hops) = (9, 2);
    [What::Question { nonce }, What::Answer { nonce, port, hops }]
}

#[test]
fn only_ranks_of_the_world_are_heard() {
    let (ours, theirs) = (datagram_key(b"ours"), datagram_key(b"theirs"));
    for what in datagrams() {
        let world = ours.world;
        let datagram = Datagram { world, what }.encode(&ours.key);
        assert_eq!(datagram.len(), datagram::LENGTH);
        assert_eq!(Datagram::decode(&datagram, &ours), Some(what));
        assert_eq!(Datagram::decode(&datagram, &theirs), None);
        // From a sender that knows the world's name, which is no secret.
        let forged = Datagram { world, what }.encode(&theirs.key);
        assert_eq!(Datagram::decode(&forged, &ours), None);
    }
}

#[test]
fn ranks_without_a_secret_ask_nobody() {
    let target = SocketAddr::from(([127, 0, 0, 1], 4000));
    assert!(SearchKey::new(&Secret::public(), &[target]).is_none());
    assert!(Search::new(0, None, &[Address::LOOPBACK]).ask().is_empty());
}

proptest! {
    #[test]
    fn damaged_notes_are_refused(at: prop::sample::Index, with: u8, cut: prop::sample::Index) {
        let datagram_key = datagram_key(b"ours");
        for what in datagrams() {
            let whole = Datagram { world: datagram_key.world, what }.encode(&datagram_key.key);
            let shorter = &whole[..cut.index(whole.len())];
            prop_assert_eq!(Datagram::decode(shorter, &datagram_key), None);
            let mut damaged = whole.clone();
            let at = at.index(whole.len());
            damaged[at] = with;
            prop_assert_eq!(Datagram::decode(&damaged, &datagram_key).is_some(), damaged == whole);
        }
    }

    #[test]
    fn any_datagram_is_read_without_panic(bytes: Vec<u8>) {
        prop_assert_eq!(Datagram::decode(&bytes, &datagram_key(b"ours")), None);
    }
}
