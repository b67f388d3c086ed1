//! A queue pair of the crate `ibverbs` talks to one of ours, on a real device, which must be there.

use std::ptr::NonNull;
use std::time::{Duration, Instant};

use ibverbs::{QueuePairEndpoint, ibv_qp_type, ibv_wc};
use spark_ccl_verbs::{
    Access, AddressVector, Completion, CompletionQueue, GidClass, Library, Opcode, PairOptions,
    Peer, PollRoom, QueuePair, ReceiveOptions, Remote, Request, Rts, SendOptions,
};

const TIMEOUT: Duration = Duration::from_secs(20);
const BYTES: usize = 4096;

#[test]
fn messages_and_memory_cross_both_ways() {
    let device = &Library::open().unwrap().devices().unwrap()[0];
    let context = device.open().unwrap();
    let port = context.port(1).unwrap();
    let gids = context.gids(1).unwrap();
    let gid = gids
        .iter()
        .find(|entry| entry.gid.class() == GidClass::Ipv4Mapped);
    let gid = gid.expect("the first device has no IPv4 address");

    // Theirs.
    let list = ibverbs::devices().unwrap();
    let device = list.iter().find(|other| {
        other
            .name()
            .is_some_and(|name| name.to_bytes() == device.name().as_bytes())
    });
    let their_context = device.unwrap().open().unwrap();
    let their_queue = their_context.create_cq(16, 0).unwrap();
    let their_domain = their_context.alloc_pd().unwrap();
    let mut builder = their_domain.create_qp(&their_queue, &their_queue, ibv_qp_type::IBV_QPT_RC);
    builder.set_gid_index(gid.index).allow_remote_rw();
    builder.set_max_rd_atomic(1).set_max_dest_rd_atomic(1);
    let prepared = builder.build().unwrap();
    let theirs = prepared.endpoint();
    let mut memory = their_domain.allocate::<u8>(BYTES).unwrap();

    // Ours.
    let queue = context.completion_queue(16).unwrap();
    let domain = context.protection_domain().unwrap();
    let pair = domain.queue_pair(&PairOptions::new(&queue)).unwrap();
    let pair = pair
        .init(1, Access::REMOTE_WRITE | Access::REMOTE_READ)
        .unwrap();
    let peer = Peer {
        gid: gid.gid,
        kind: gid.kind,
        qp_num: theirs.num,
    };
    let way = AddressVector::new(&port, gid, &peer, spark_ccl_verbs::Mtu::B1024).unwrap();
    let pair = pair
        .ready_to_receive(&way, ReceiveOptions::default())
        .unwrap();
    let mut pair = pair.ready_to_send(SendOptions::default()).unwrap();
    let mut their_pair = prepared
        .handshake(QueuePairEndpoint {
            num: pair.number(),
            lid: 0,
            gid: theirs.gid,
        })
        .unwrap();
    let own = NonNull::from(vec![0_u8; BYTES].leak()).cast::<u8>();
    // SAFETY: the memory stays, and is only touched through pointers.
    let region = unsafe { domain.register(own, BYTES, Access::LOCAL_WRITE) }.unwrap();
    let piece = |start: usize, bytes: usize| region.piece(start..start + bytes).unwrap();
    let theirs = Remote {
        addr: memory.as_ptr() as u64,
        rkey: memory.rkey().key,
    };

    // From us to them.
    put(own, b"from us");
    // SAFETY: the memory stays, and is not touched until the receive has ended.
    unsafe { their_pair.post_receive(&mut memory, ..100, 1) }.unwrap();
    // SAFETY: the memory stays.
    post(&mut pair, |batch| unsafe {
        batch.send(told(2), &[piece(0, 7)])
    });
    assert_eq!(next(&queue).opcode, Opcode::Send);
    assert_eq!(their_next(&their_queue), (1, 7));
    assert_eq!(&memory[..7], b"from us");

    // From them to us.
    let mut receives = pair.receives();
    // SAFETY: the memory stays, and is not touched until the receive has ended.
    unsafe { receives.receive(3, &[piece(100, 100)]) }.unwrap();
    receives.post().unwrap();
    memory[..9].copy_from_slice(b"from them");
    // SAFETY: the memory stays, and is not touched until the send has ended.
    unsafe { their_pair.post_send(&mut memory, ..9, 4) }.unwrap();
    assert_eq!(
        (next(&queue).opcode, their_next(&their_queue).0),
        (Opcode::Receive, 4)
    );
    assert_eq!(get(own, 100, 9), b"from them");

    // Into and out of their memory.
    put(own, b"written");
    // SAFETY: the memory stays.
    post(&mut pair, |batch| unsafe {
        batch.write(Request::new(5), &[piece(0, 7)], theirs.offset(1000))?;
        batch.read(told(6), &[piece(200, 9)], theirs.offset(999))
    });
    assert_eq!(next(&queue).opcode, Opcode::Read);
    assert_eq!(get(own, 200, 9), b"\0written\0");
    assert_eq!(&memory[1000..1007], b"written");
}

fn told(id: u64) -> Request {
    Request::new(id).signalled()
}

fn post(
    pair: &mut QueuePair<Rts>,
    fill: impl FnOnce(&mut spark_ccl_verbs::Batch<'_>) -> Result<(), spark_ccl_verbs::Error>,
) {
    let mut batch = pair.batch();
    fill(&mut batch).unwrap();
    batch.post().unwrap();
}

/// Our next completion.
fn next(queue: &CompletionQueue) -> Completion {
    let start = Instant::now();
    let mut room = PollRoom::default();
    loop {
        if let Some(done) = queue.poll(&mut room).unwrap().next() {
            return done.unwrap();
        }
        assert!(start.elapsed() < TIMEOUT, "no completion here");
        std::thread::yield_now();
    }
}

/// The number and length of their next completion.
fn their_next(queue: &ibverbs::CompletionQueue<'_>) -> (u64, usize) {
    let start = Instant::now();
    let mut room = [ibv_wc::default(); 1];
    loop {
        if let Some(done) = queue.poll(&mut room).unwrap().first() {
            assert!(done.is_valid(), "{:?}", done.error());
            return (done.wr_id(), done.len());
        }
        assert!(start.elapsed() < TIMEOUT, "no completion there");
        std::thread::yield_now();
    }
}

fn put(start: NonNull<u8>, bytes: &[u8]) {
    for (place, byte) in bytes.iter().enumerate() {
        // SAFETY: within the memory, which nothing borrows.
        unsafe { start.add(place).write_volatile(*byte) };
    }
}

fn get(start: NonNull<u8>, offset: usize, bytes: usize) -> Vec<u8> {
    // SAFETY: within the memory, which nothing borrows.
    (offset..offset + bytes)
        .map(|at| unsafe { start.add(at).read_volatile() })
        .collect()
}
