//! Tests of the requests handed to the provider.

use super::*;

const PIECE: Piece = Piece::new(0x1000, 64, 7);
const REMOTE: Remote = Remote {
    addr: 0x9000,
    rkey: 9,
};

fn ids(posted: &[Posted]) -> Vec<u64> {
    posted.iter().map(|request| request.wr_id).collect()
}

fn places(posted: &Posted) -> Vec<(u64, u32, u32)> {
    let pieces = posted.pieces.iter().flatten();
    pieces
        .map(|piece| (piece.0.addr, piece.0.length, piece.0.lkey))
        .collect()
}

#[test]
fn every_request_arrives_as_it_was_made() {
    let mut pair = ready(pair(|options| options.send_pieces = 2));
    let mut batch = pair.batch();
    let two = [PIECE, Piece::new(0x2000, 1, 8)];
    let request = Request::new;
    // SAFETY: the fake device does not access the memory of requests.
    unsafe {
        batch.write(request(1).fenced(), &two, REMOTE).unwrap();
        batch
            .write_with_imm(request(2), &[], REMOTE, 0x0102_0304)
            .unwrap();
        batch.send(request(3).solicited(), &[PIECE]).unwrap();
        batch.send_with_imm(request(4), &[PIECE], 5).unwrap();
        batch
            .read(request(5).signalled(), &[PIECE], REMOTE.offset(16))
            .unwrap();
        batch.fetch_add(request(6), PIECE, REMOTE, 1).unwrap();
        batch.compare_swap(request(7), PIECE, REMOTE, 1, 2).unwrap();
    }
    batch.post().unwrap();
    let posted = testing::last_posted(&pair);
    assert_eq!(ids(&posted), [1, 2, 3, 4, 5, 6, 7]);
    let opcodes: Vec<_> = posted.iter().filter_map(|request| request.opcode).collect();
    let expected = [
        raw::IBV_WR_RDMA_WRITE,
        raw::IBV_WR_RDMA_WRITE_WITH_IMM,
        raw::IBV_WR_SEND,
        raw::IBV_WR_SEND_WITH_IMM,
        raw::IBV_WR_RDMA_READ,
        raw::IBV_WR_ATOMIC_FETCH_AND_ADD,
        raw::IBV_WR_ATOMIC_CMP_AND_SWP,
    ];
    assert_eq!(opcodes, expected);
    assert_eq!(places(&posted[0]), [(0x1000, 64, 7), (0x2000, 1, 8)]);
    assert_eq!(places(&posted[1]), []);
    assert_eq!((posted[1].imm, posted[3].imm), (0x0102_0304, 5));
    let flags: Vec<_> = posted.iter().map(|request| request.flags).collect();
    let [fence, signalled, solicited] = [
        raw::IBV_SEND_FENCE,
        raw::IBV_SEND_SIGNALED,
        raw::IBV_SEND_SOLICITED,
    ];
    assert_eq!(flags, [fence, 0, solicited, 0, signalled, 0, 0]);
    let moved = Remote {
        addr: 0x9010,
        rkey: 9,
    };
    let remotes: Vec<_> = posted.iter().map(|request| request.remote).collect();
    assert_eq!(remotes[..2], [REMOTE; 2]);
    assert_eq!(remotes[4..], [moved, REMOTE, REMOTE]);
}

#[test]
fn inline_data_are_named_where_they_are() {
    let mut pair = ready(pair(|_| ()));
    let data = [1_u8; 32];
    let mut batch = pair.batch();
    batch.write_inline(Request::new(1), &data, REMOTE).unwrap();
    batch
        .write_inline_with_imm(Request::new(2), &data[..1], REMOTE, 3)
        .unwrap();
    batch.send_inline(Request::new(3), &[]).unwrap();
    let error = batch.send_inline(Request::new(4), &[0; 33]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the number of inline bytes is 33, but must be at most 32"
    );
    batch.post().unwrap();
    let posted = testing::last_posted(&pair);
    assert_eq!(ids(&posted), [1, 2, 3]);
    assert!(
        posted
            .iter()
            .all(|request| request.flags == raw::IBV_SEND_INLINE)
    );
    assert_eq!(places(&posted[0]), [(data.as_ptr() as u64, 32, 0)]);
    assert_eq!(places(&posted[1]), [(data.as_ptr() as u64, 1, 0)]);
}

#[test]
fn a_dropped_batch_posts_nothing() {
    let mut pair = ready(pair(|_| ()));
    let mut batch = pair.batch();
    batch.send_inline(Request::new(1), b"a").unwrap();
    drop(batch);
    assert_eq!(testing::last_posted(&pair).len(), 0);
    let mut batch = pair.batch();
    assert!(batch.is_empty());
    batch.send_inline(Request::new(3), b"c").unwrap();
    assert_eq!(batch.len(), 1);
    batch.post().unwrap();
    assert_eq!(ids(&testing::last_posted(&pair)), [3]);
    pair.batch().post().unwrap();
    assert_eq!(ids(&testing::last_posted(&pair)), [3]);
}

#[test]
fn a_batch_ends_where_its_queue_does() {
    let mut pair = ready(pair(|options| options.send_depth = 2));
    let mut batch = pair.batch();
    batch.send_inline(Request::new(1), b"a").unwrap();
    assert!(!batch.is_full());
    batch.send_inline(Request::new(2), b"b").unwrap();
    assert!(batch.is_full());
    let error = batch.send_inline(Request::new(3), b"c").unwrap_err();
    let expected = "the number of requests in a batch is 3, but must be at most 2";
    assert_eq!(error.to_string(), expected);
    // SAFETY: the fake device does not access the memory of requests.
    let error = unsafe { pair.batch().send(Request::new(4), &[PIECE; 2]) }.unwrap_err();
    let expected = "the number of pieces of a request is 2, but must be at most 1";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn numbers_of_the_crate_are_refused() {
    let mut pair = ready(pair(|_| ()));
    let error = pair
        .batch()
        .send_inline(Request::new(u64::MAX), b"a")
        .unwrap_err();
    assert!(
        error.to_string().contains("number of a work request"),
        "{error}"
    );
    // SAFETY: the receive has no memory.
    let error = unsafe { pair.receives().receive(1 << 63, &[]) }.unwrap_err();
    assert!(
        error.to_string().contains("number of a work request"),
        "{error}"
    );
}

#[test]
fn receives_are_posted_before_there_is_a_peer() {
    let mut pair = pair(|options| options.receive_pieces = 2)
        .init(1, Access::LOCAL_READ)
        .unwrap();
    let mut receives = pair.receives();
    // SAFETY: the fake device does not access the memory of requests.
    unsafe {
        receives.receive(1, &[]).unwrap();
        receives.receive(2, &[PIECE, PIECE]).unwrap();
        assert!(receives.receive(3, &[PIECE; 3]).is_err());
    }
    receives.post().unwrap();
    let posted = testing::last_posted(&pair);
    assert_eq!(ids(&posted), [1, 2]);
    assert_eq!(places(&posted[1]).len(), 2);
}

#[test]
fn a_post_that_fails_says_where() {
    let mut pair = ready(pair(|_| ()));
    let mut batch = pair.batch();
    for id in 0..5 {
        batch.send_inline(Request::new(id), b"x").unwrap();
    }
    testing::fail_next(3, libc::ENOMEM);
    let error = batch.post().unwrap_err();
    assert_eq!(error.posted, 3);
    assert_eq!(error.error.errno(), Some(libc::ENOMEM));
    let text = error.to_string();
    assert!(
        text.contains("ibv_post_send") && text.contains("poll completions first"),
        "{text}"
    );
    assert!(text.ends_with("3 requests before it were posted"), "{text}");
}

#[test]
fn signalled_requests_complete_in_order() {
    let mut pair = ready(pair(|_| ()));
    let mut batch = pair.batch();
    // SAFETY: the fake device does not access the memory of requests.
    unsafe {
        batch.write(Request::new(1), &[PIECE], REMOTE).unwrap();
        batch
            .write(Request::new(2).signalled(), &[PIECE], REMOTE)
            .unwrap();
        batch
            .read(Request::new(3).signalled(), &[PIECE], REMOTE)
            .unwrap();
    }
    batch.post().unwrap();
    let mut room = PollRoom::default();
    let polled = pair.send_queue().poll(&mut room).unwrap();
    assert_eq!(polled.len(), 2);
    let done: Vec<_> = polled
        .map(|done| done.unwrap())
        .map(|c| (c.wr_id, c.opcode))
        .collect();
    assert_eq!(done, [(2, Opcode::Write), (3, Opcode::Read)]);
    assert_eq!(pair.send_queue().poll(&mut room).unwrap().len(), 0);
}

#[test]
fn failed_requests_are_told_in_words() {
    let mut pair = ready(pair(|_| ()));
    testing::end_as(Some(Status::RetryExceeded));
    let mut batch = pair.batch();
    batch
        .send_inline(Request::new(4).signalled(), b"x")
        .unwrap();
    batch.post().unwrap();
    let mut room = PollRoom::default();
    let error = pair
        .send_queue()
        .poll(&mut room)
        .unwrap()
        .next()
        .unwrap()
        .unwrap_err();
    assert_eq!((error.wr_id, error.status), (4, Status::RetryExceeded));
    assert_eq!(error.qp_num, pair.number());
    let text = error.to_string();
    assert!(
        text.starts_with(&format!("work request 4 of queue pair {}", pair.number())),
        "{text}"
    );
    assert!(
        text.contains("did not answer in spite of retries (status 12"),
        "{text}"
    );
    assert!(text.contains("check the peer"), "{text}");
    let failure = pair.failure(error).to_string();
    assert!(failure.starts_with("null0 to ::ffff:10.0.0.1, queue pair 5 there: work request 4"));
    testing::end_as(None);
}
