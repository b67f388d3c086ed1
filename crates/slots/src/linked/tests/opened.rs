//! Words and actions of a peer whose slots are put.

use super::*;

/// A link whose devices reach all memory, as it says.
struct Opening(Box<dyn LinkTx>);

impl LinkTx for Opening {
    fn reserve(&mut self, len: usize) -> Result<Option<&mut [u8]>, LinkError> {
        self.0.reserve(len)
    }
    fn commit(&mut self, len: usize, tag: u64) -> Result<(), LinkError> {
        self.0.commit(len, tag)
    }
    fn opening(&self, _: &[(u64, usize)]) -> Option<Vec<u8>> {
        Some(vec![1])
    }
    fn take_opening(&mut self, _: &[u8]) -> Result<(), LinkError> {
        Ok(())
    }
    fn holds_back(&self) -> bool {
        self.0.holds_back()
    }
    fn flush(&mut self) -> Result<bool, LinkError> {
        self.0.flush()
    }
}

/// A carrier with an open inbox of slots of depth 2, and its peer's half of the link.
fn opened() -> (Linked, PostBox, Halves) {
    opened_with(shape())
}

fn opened_with(shape: Shape) -> (Linked, PostBox, Halves) {
    let [peer, (tx, rx)] = memory();
    let inbox = plain(shape);
    let halves = (Box::new(Opening(tx)) as _, rx);
    let linked = carrier_of(halves, SMALL.slot_bytes, plain(shape), inbox.clone());
    (linked.unwrap(), inbox, peer)
}

fn say(tx: &mut dyn LinkTx, tag: Tag, payload: &[u8]) {
    let room = tx.reserve(payload.len()).unwrap().unwrap();
    room.copy_from_slice(payload);
    tx.commit(payload.len(), tag.word()).unwrap();
}

#[test]
fn a_slot_that_is_put_where_no_room_is_is_an_error() {
    let (mut to, inbox, _peer) = opened();
    for number in 1..=3 {
        assert_eq!((to.completed(), to.seen(1)), (Ok(None), number - 1));
        inbox.set_flag(Slot { lane: 1, number });
    }
    let said = to.completed().unwrap_err().to_string();
    assert!(
        said.contains("slot 3 of lane 1, where 0 were consumed"),
        "{said}"
    );
    assert!(to.come(1).is_err());
}

#[test]
fn a_slot_that_is_sent_where_it_is_to_be_put_is_an_error() {
    let (mut to, _, (mut tx, _rx)) = opened();
    let (slot, payload) = (Slot { lane: 1, number: 1 }, 0);
    say(&mut *tx, Tag::Slot { slot, payload }, &[0; 3]);
    let said = to.completed().unwrap_err().to_string();
    assert!(said.contains("is to put it"), "{said}");
}

/// A peer that opens nothing would send slots, which no processor stores on a GPU.
#[test]
fn a_slot_that_is_sent_to_a_gpu_is_an_error() {
    let (mut to, _, (mut tx, _rx)) = opened_with(shape().placed(crate::Placement::Device));
    say(&mut *tx, Tag::Opening { bytes: 0 }, &[]);
    let (slot, payload) = (Slot { lane: 1, number: 1 }, 0);
    say(&mut *tx, Tag::Slot { slot, payload }, &[0; 3]);
    to.completed().unwrap_err();
}

#[test]
fn a_peer_opens_its_inbox_once() {
    for is_open in [false, true] {
        for is_at_once in [false, true] {
            let (mut to, _, (mut tx, _rx)) = opened();
            let told = &[1][..usize::from(is_open)];
            let bytes = told.len() as u64;
            say(&mut *tx, Tag::Opening { bytes }, told);
            if !is_at_once {
                assert_eq!(to.completed(), Ok(None));
                assert_eq!(to.outgoing.puts(), is_open);
            }
            say(&mut *tx, Tag::Opening { bytes: 0 }, &[]);
            let said = to.completed().unwrap_err().to_string();
            assert!(said.contains("twice"), "{said}");
        }
    }
}

/// The error comes with the news, and is not forgotten over it.
#[test]
fn an_error_that_comes_with_slots_is_told_after_them() {
    let (mut to, inbox, (mut tx, _rx)) = opened();
    let (lane, number, payload) = (MOST_LANES, 1, 32);
    let slot = Slot { lane, number };
    let words = [0, 0, 0, 9_u64].map(u64::to_le_bytes).concat();
    say(&mut *tx, Tag::Slot { slot, payload }, &words);
    inbox.set_flag(Slot { lane: 1, number });
    assert_eq!((to.completed(), to.seen(1)), (Ok(None), 1));
    let said = to.completed().unwrap_err().to_string();
    assert!(said.contains("they have 9 bytes"), "{said}");
}
