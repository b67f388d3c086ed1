//! Notes as bytes, and how those of others are treated.

use proptest::prelude::*;

use super::*;

fn words(secret: &[u8]) -> Words {
    let target = SocketAddr::from(([10, 0, 0, 1], 4000));
    Words::new(&Secret::from_text(secret), &[target]).unwrap()
}

fn notes() -> [What; 2] {
    let nonce = [7; 8];
    let (port, hops) = (9, 2);
    [What::Question { nonce }, What::Answer { nonce, port, hops }]
}

#[test]
fn only_ranks_of_the_world_are_heard() {
    let (ours, theirs) = (words(b"ours"), words(b"theirs"));
    for what in notes() {
        let world = ours.world;
        let note = Note { world, what }.encode(&ours.key);
        assert_eq!(note.len(), note::LENGTH);
        assert_eq!(Note::decode(&note, &ours), Some(what));
        assert_eq!(Note::decode(&note, &theirs), None);
        // From a sender that knows the world's name, which is no secret.
        let forged = Note { world, what }.encode(&theirs.key);
        assert_eq!(Note::decode(&forged, &ours), None);
    }
}

#[test]
fn ranks_without_a_secret_ask_nobody() {
    let target = SocketAddr::from(([127, 0, 0, 1], 4000));
    assert!(Words::new(&Secret::public(), &[target]).is_none());
    assert!(Search::new(0, None, &[Address::LOOPBACK]).ask().is_empty());
}

proptest! {
    #[test]
    fn damaged_notes_are_refused(at: prop::sample::Index, with: u8, cut: prop::sample::Index) {
        let words = words(b"ours");
        for what in notes() {
            let whole = Note { world: words.world, what }.encode(&words.key);
            prop_assert_eq!(Note::decode(&whole[..cut.index(whole.len())], &words), None);
            let mut damaged = whole.clone();
            let at = at.index(whole.len());
            damaged[at] = with;
            prop_assert_eq!(Note::decode(&damaged, &words).is_some(), damaged == whole);
        }
    }

    #[test]
    fn any_datagram_is_read_without_panic(bytes: Vec<u8>) {
        prop_assert_eq!(Note::decode(&bytes, &words(b"ours")), None);
    }
}
