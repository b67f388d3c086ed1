//! A queue pair of the crate `ibverbs` talks to one of ours, on a real device, which must be there.

use std::ptr::NonNull;
use std::time::{Duration, Instant};

use ibverbs::{QueuePairEndpoint, ibv_qp_type, ibv_wc};
use spark_ccl_verbs::{
    Access, AddressVector, Completion, CompletionQueue, Context, GidClass, GidEntry, Library,
    MemoryRegion, Mtu, Opcode, PairOptions, Peer, PollRoom, ProtectionDomain, QueuePair,
    ReceiveOptions, Remote, Request, Rts, SendOptions,
};

const TIMEOUT: Duration = Duration::from_secs(20);
const BYTES: usize = 4096;

/// A connected queue pair of either library, and the memory of each.
struct Ends<'a> {
    pair: QueuePair<Rts>,
    queue: CompletionQueue,
    region: MemoryRegion,
    own: NonNull<u8>,
    their_pair: ibverbs::QueuePair<'a>,
    their_queue: &'a ibverbs::CompletionQueue<'a>,
    memory: ibverbs::MemoryRegion<u8>,
}

#[test]
fn messages_and_memory_cross_both_ways() {
    let device = &Library::open().unwrap().devices().unwrap()[0];
    let context = device.open().unwrap();
    let gids = context.gids(1).unwrap();
    let gid = gids
        .iter()
        .find(|entry| entry.gid.class() == GidClass::Ipv4Mapped);
    let gid = gid.expect("the first device has no IPv4 address");

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

    let queue = context.completion_queue(16).unwrap();
    let domain = context.protection_domain().unwrap();
    let pair = connect(&context, &domain, &queue, gid, theirs.num);
    let handshake = prepared.handshake(QueuePairEndpoint {
        num: pair.number(),
        lid: 0,
        gid: theirs.gid,
    });
    let own = NonNull::from(vec![0_u8; BYTES].leak()).cast::<u8>();
    let mut ends = Ends {
        pair,
        queue,
        // SAFETY: `own` is leaked, so it stays until the process ends, and it is accessed only
        // through raw pointers.
        region: unsafe { domain.register(own, BYTES, Access::LOCAL_WRITE) }.unwrap(),
        own,
        their_pair: handshake.unwrap(),
        their_queue: &their_queue,
        memory: their_domain.allocate::<u8>(BYTES).unwrap(),
    };
    ends.send();
    ends.receive();
    ends.write_and_read();
}

/// Connects a queue pair of ours with their queue pair of this number, at the same port.
fn connect(
    context: &Context,
    domain: &ProtectionDomain,
    queue: &CompletionQueue,
    gid: &GidEntry,
    their_number: u32,
) -> QueuePair<Rts> {
    let peer = Peer {
        gid: gid.gid,
        kind: gid.kind,
        qp_num: their_number,
    };
    let port = context.port(1).unwrap();
    let path = AddressVector::new(&port, gid, &peer, Mtu::B1024).unwrap();
    let pair = domain.queue_pair(&PairOptions::new(queue)).unwrap();
    let pair = pair.init(1, Access::REMOTE_WRITE | Access::REMOTE_READ);
    let options = ReceiveOptions::default();
    let pair = pair.unwrap().ready_to_receive(&path, options).unwrap();
    pair.ready_to_send(SendOptions::default()).unwrap()
}

impl Ends<'_> {
    /// A message from us to them.
    fn send(&mut self) {
        put(self.own, b"from us");
        // SAFETY: `self.memory` outlives their queue pair's use of it, and nothing touches its
        // first 100 bytes until the receive has ended, which is awaited.
        unsafe { self.their_pair.post_receive(&mut self.memory, ..100, 1) }.unwrap();
        let piece = self.region.piece(0..7).unwrap();
        // SAFETY: `own` is leaked, so it stays, and nothing touches it until the send has ended,
        // which is awaited.
        post(&mut self.pair, |batch| unsafe {
            batch.send(told(2), &[piece])
        });
        assert_eq!(next(&self.queue).opcode, Opcode::Send);
        assert_eq!(their_next(self.their_queue), (1, 7));
        assert_eq!(&self.memory[..7], b"from us");
    }

    /// A message from them to us.
    fn receive(&mut self) {
        let piece = self.region.piece(100..200).unwrap();
        let mut receives = self.pair.receives();
        // SAFETY: `own` is leaked, so it stays, and nothing touches these bytes until the receive
        // has ended, which is awaited.
        unsafe { receives.receive(3, &[piece]) }.unwrap();
        receives.post().unwrap();
        self.memory[..9].copy_from_slice(b"from them");
        // SAFETY: `self.memory` outlives their queue pair's use of it, and nothing touches its
        // first 9 bytes until the send has ended, which is awaited.
        unsafe { self.their_pair.post_send(&mut self.memory, ..9, 4) }.unwrap();
        assert_eq!(
            (next(&self.queue).opcode, their_next(self.their_queue).0),
            (Opcode::Receive, 4)
        );
        assert_eq!(get(self.own, 100, 9), b"from them");
    }

    /// Into their memory, and out of it.
    fn write_and_read(&mut self) {
        let theirs = Remote {
            addr: self.memory.as_ptr() as u64,
            rkey: self.memory.rkey().key,
        };
        let written = self.region.piece(0..7).unwrap();
        let read = self.region.piece(200..209).unwrap();
        put(self.own, b"written");
        // SAFETY: `own` is leaked, so it stays, and nothing touches these bytes until the read has
        // ended, which is awaited, and with it the write before it.
        post(&mut self.pair, |batch| unsafe {
            batch.write(Request::new(5), &[written], theirs.offset(1000))?;
            batch.read(told(6), &[read], theirs.offset(999))
        });
        assert_eq!(next(&self.queue).opcode, Opcode::Read);
        assert_eq!(get(self.own, 200, 9), b"\0written\0");
        assert_eq!(&self.memory[1000..1007], b"written");
    }
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
        // SAFETY: `start` is `own`, of `BYTES` bytes, and each text that a test puts there is
        // shorter. No reference to them exists.
        unsafe { start.add(place).write_volatile(*byte) };
    }
}

fn get(start: NonNull<u8>, offset: usize, bytes: usize) -> Vec<u8> {
    // SAFETY: `start` is `own`, of `BYTES` bytes, and each range that a test gets lies within them.
    // No reference to them exists.
    (offset..offset + bytes)
        .map(|at| unsafe { start.add(at).read_volatile() })
        .collect()
}
