//! Tests of every kind of work request between two ends.

use spark_ccl_verbs::{Opcode, PairState, Request};

use crate::ends::connected;

#[test]
fn a_write_arrives() {
    let Some((mut one, other)) = connected() else {
        return;
    };
    one.put(0, b"written");
    one.write(7, one.piece(0, 7), other.remote(100));
    let done = one.next().unwrap();
    assert_eq!(
        (done.wr_id, done.opcode, done.qp_num),
        (7, Opcode::Write, one.pair.number())
    );
    assert_eq!(other.get(99, 9), b"\0written\0");
}

#[test]
fn a_write_gathers_pieces() {
    let Some((mut one, other)) = connected() else {
        return;
    };
    one.put(0, b"abcdef");
    let mut batch = one.pair.batch();
    let pieces = [
        one.region.piece(4..6).unwrap(),
        one.region.piece(0..1).unwrap(),
    ];
    // SAFETY: the memory is never freed, and is only accessed through raw pointers.
    unsafe { batch.write(Request::new(1).signalled(), &pieces, other.remote(0)) }.unwrap();
    batch.post().unwrap();
    one.next().unwrap();
    assert_eq!(other.get(0, 4), b"efa\0");
}

#[test]
fn a_write_with_a_number_ends_a_receive() {
    let Some((mut one, mut other)) = connected() else {
        return;
    };
    one.put(0, b"data");
    // SAFETY: the receive has no memory.
    let receive = |end: &mut crate::ends::Connected, id| unsafe {
        let mut receives = end.pair.receives();
        receives.receive(id, &[]).unwrap();
        receives.post().unwrap();
    };
    receive(&mut other, 40);
    receive(&mut other, 41);
    let mut batch = one.pair.batch();
    // SAFETY: the memory is never freed, and is only accessed through raw pointers.
    unsafe {
        let piece = one.region.piece(0..4).unwrap();
        batch
            .write_with_imm(Request::new(1), &[piece], other.remote(8), 0xabcd_0123)
            .unwrap();
    }
    batch
        .write_inline_with_imm(Request::new(2).signalled(), &[], other.remote(0), 5)
        .unwrap();
    batch.post().unwrap();
    assert_eq!(one.next().unwrap().wr_id, 2);
    let done = other.next().unwrap();
    assert_eq!((done.wr_id, done.opcode), (40, Opcode::ReceiveOfWrite));
    assert_eq!((done.imm, done.bytes), (Some(0xabcd_0123), 4));
    assert_eq!(other.next().unwrap().imm, Some(5));
    assert_eq!(other.get(8, 4), b"data");
}

#[test]
fn a_send_goes_into_a_receive() {
    let Some((mut one, mut other)) = connected() else {
        return;
    };
    one.put(0, b"message");
    let mut receives = other.pair.receives();
    let pieces = [
        other.region.piece(0..3).unwrap(),
        other.region.piece(50..90).unwrap(),
    ];
    // SAFETY: the memory is never freed, and is only accessed through raw pointers.
    unsafe {
        receives.receive(3, &pieces).unwrap();
        receives.receive(4, &pieces[..1]).unwrap();
    }
    receives.post().unwrap();
    let piece = one.piece(0, 7);
    let mut batch = one.pair.batch();
    // SAFETY: the memory is never freed, and is only accessed through raw pointers.
    unsafe { batch.send_with_imm(Request::new(1), &[piece], 9) }.unwrap();
    batch
        .send_inline(Request::new(2).signalled().solicited(), b"xy")
        .unwrap();
    batch.post().unwrap();
    let done = other.next().unwrap();
    assert_eq!((done.wr_id, done.opcode), (3, Opcode::Receive));
    assert_eq!((done.bytes, done.imm), (7, Some(9)));
    assert_eq!(other.get(50, 5), b"sage\0");
    let done = other.next().unwrap();
    assert_eq!((done.wr_id, done.bytes, done.imm), (4, 2, None));
    assert_eq!(other.get(0, 3), b"xys");
    // The first request was not signalled.
    assert_eq!(one.next().unwrap().wr_id, 2);
}

#[test]
fn a_read_fetches() {
    let Some((mut one, other)) = connected() else {
        return;
    };
    other.put(10, b"remote");
    let piece = one.piece(200, 6);
    let mut batch = one.pair.batch();
    // SAFETY: the memory is never freed, and is only accessed through raw pointers.
    unsafe { batch.read(Request::new(1).signalled(), &[piece], other.remote(10)) }.unwrap();
    batch.post().unwrap();
    let done = one.next().unwrap();
    assert_eq!((done.opcode, done.bytes), (Opcode::Read, 6));
    assert_eq!(one.get(200, 6), b"remote");
}

#[test]
fn atomics_give_what_was_there() {
    let Some((mut one, other)) = connected() else {
        return;
    };
    other.put(64, &40_u64.to_ne_bytes());
    let place = |offset| one.region.piece(offset..offset + 8).unwrap();
    let (first, second, third) = (place(0), place(8), place(16));
    let target = other.remote(64);
    let request = |id| Request::new(id).signalled();
    let mut batch = one.pair.batch();
    // SAFETY: the memory is never freed, and is only accessed through raw pointers.
    unsafe {
        batch.fetch_add(request(1), first, target, 2).unwrap();
        batch
            .compare_swap(request(2).fenced(), second, target, 42, 7)
            .unwrap();
        batch
            .compare_swap(request(3), third, target, 42, 8)
            .unwrap();
    }
    batch.post().unwrap();
    let opcodes: Vec<_> = (0..3).map(|_| one.next().unwrap().opcode).collect();
    assert_eq!(
        opcodes,
        [Opcode::FetchAdd, Opcode::CompareSwap, Opcode::CompareSwap]
    );
    let word = |bytes: Vec<u8>| u64::from_ne_bytes(bytes.try_into().unwrap());
    let seen: Vec<_> = [0, 8, 16].map(|offset| word(one.get(offset, 8))).into();
    assert_eq!(seen, [40, 42, 7]);
    assert_eq!(word(other.get(64, 8)), 7);
}

#[test]
fn inline_data_may_change_after_the_post() {
    let Some((mut one, other)) = connected() else {
        return;
    };
    assert!(one.pair.most_inline() >= 64);
    let mut data = *b"inline";
    let mut batch = one.pair.batch();
    batch
        .write_inline(Request::new(1).signalled(), &data, other.remote(0))
        .unwrap();
    batch.post().unwrap();
    data.fill(0xff);
    one.next().unwrap();
    assert_eq!(other.get(0, 6), b"inline");
    assert_eq!(data, [0xff; 6]);
}

#[test]
fn a_dropped_batch_posts_nothing() {
    let Some((mut one, other)) = connected() else {
        return;
    };
    let mut batch = one.pair.batch();
    batch
        .write_inline(Request::new(1).signalled(), b"no", other.remote(0))
        .unwrap();
    drop(batch);
    let mut batch = one.pair.batch();
    batch
        .write_inline(Request::new(2).signalled(), b"yes", other.remote(8))
        .unwrap();
    batch.post().unwrap();
    assert_eq!(one.next().unwrap().wr_id, 2);
    assert_eq!(other.get(0, 11), b"\0\0\0\0\0\0\0\0yes");
}

#[test]
fn a_full_batch_keeps_its_order() {
    let Some((mut one, other)) = connected() else {
        return;
    };
    let mut batch = one.pair.batch();
    let numbers: Vec<[u8; 1]> = (0..64).map(|number| [number]).collect();
    for number in &numbers {
        let id = u64::from(number[0]);
        let request = Request::new(id);
        let request = if id == 63 {
            request.signalled()
        } else {
            request
        };
        batch
            .write_inline(request, number, other.remote(0))
            .unwrap();
    }
    assert!(batch.is_full());
    let error = batch
        .write_inline(Request::new(64), b"x", other.remote(0))
        .unwrap_err();
    assert!(error.to_string().contains("requests in a batch"), "{error}");
    batch.post().unwrap();
    assert_eq!(one.next().unwrap().wr_id, 63);
    assert_eq!(other.get(0, 1), [63]);
}

#[test]
fn states_follow_the_types() {
    let Some((one, _other)) = connected() else {
        return;
    };
    let one = one.map(|pair| {
        assert_eq!(pair.query_state().unwrap(), PairState::Rts);
        let pair = pair.into_failed().unwrap();
        assert_eq!(pair.query_state().unwrap(), PairState::Error);
        let pair = pair.reset().unwrap();
        assert_eq!(pair.query_state().unwrap(), PairState::Reset);
        let pair = pair.init(1, spark_ccl_verbs::Access::LOCAL_READ).unwrap();
        assert_eq!(pair.query_state().unwrap(), PairState::Init);
        pair
    });
    one.pair.destroy().unwrap();
}

#[test]
fn a_pair_can_be_connected_again_after_a_failure() {
    let Some((one, other)) = connected() else {
        return;
    };
    let again = |end: crate::ends::Connected| {
        end.map(|pair| {
            let pair = pair.into_failed().unwrap().reset().unwrap();
            pair.init(1, spark_ccl_verbs::Access::REMOTE_WRITE).unwrap()
        })
    };
    let (one, other) = (again(one), again(other));
    let (to_other, to_one) = (other.peer(), one.peer());
    let (mut one, other) = (one.connect(&to_other), other.connect(&to_one));
    one.put(0, b"again");
    one.write(1, one.piece(0, 5), other.remote(0));
    one.next().unwrap();
    assert_eq!(other.get(0, 5), b"again");
}
