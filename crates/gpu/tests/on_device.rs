//! Slots in memory of GPUs that is registered by dma-bufs, and written by RDMA devices: fake GPUs,
//! whose memory is exported as files, and fake devices, which map these. It shows which calls are
//! made, on which memory and for how long; not that a driver or a device takes them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::ptr::{NonNull, with_exposed_provenance_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, yield_now};

use spark_ccl_cuda::{DeviceBlock, OwnStream, context, counted_stream};
use spark_ccl_gpu::{Call, Slots, Stage};
use spark_ccl_slots::{Carrier, Copying, Error, Placement, PostBox, Proxy, Slot};
use spark_ccl_testing::{Need, has};
use spark_ccl_types::{DType, Extent, Operation, ReduceOp, Side};
use spark_ccl_verbs::{
    Access, AddressVector, CompletionQueue, MemoryRegion, Mtu, PairOptions, Peer, PollRoom,
    ProtectionDomain, QueuePair, ReceiveOptions, Remote, Request, Reset, Rts, SendOptions, testing,
};

const RANKS: usize = 2;
/// The most slots that are on their way: five requests each.
const MOST: usize = 8;

/// A rank's memory, as its device knows it: both boxes, and their slots on the GPU.
type Regions = [MemoryRegion; 3];

/// Has a device write slots into the peer's inbox.
struct Written<'a> {
    pair: QueuePair<Rts>,
    queue: CompletionQueue,
    own: &'a Regions,
    peers: &'a Regions,
    outbox: PostBox,
    inbox: PostBox,
    /// For packets and credits, which stay in memory of the host.
    copying: Copying,
    going: VecDeque<Slot>,
    completed: VecDeque<Slot>,
}

/// Ends the proxies when the calls have ended, also by a panic.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        // Relaxed: it publishes nothing.
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The region that an address is in, and where.
fn find(regions: &Regions, address: u64) -> (&MemoryRegion, usize) {
    let has = |region: &&MemoryRegion| {
        (region.start()..region.start() + region.bytes() as u64).contains(&address)
    };
    let region = regions.iter().find(has).expect("a registered address");
    (region, (address - region.start()) as usize)
}

impl Carrier for Written<'_> {
    unsafe fn post(&mut self, slot: Slot, payload: usize, consumed: u64) -> Result<bool, Error> {
        if self.going.len() == MOST {
            return Ok(false);
        }
        let parts = self.outbox.parts(slot, payload, consumed);
        let (parts, ranges): (Vec<_>, _) = (parts.collect(), self.inbox.ranges());
        let mut batch = self.pair.batch();
        for (number, part) in parts.iter().enumerate() {
            let bytes = part.bytes as usize;
            let (from, at) = find(self.own, part.from);
            let from = from.piece(at..at + bytes).unwrap();
            let (to, at) = find(self.peers, ranges[part.range].0 + part.at);
            let to: Remote = to.remote(at..at + bytes).unwrap();
            let request = Request::new(slot.number);
            let is_last = number + 1 == parts.len();
            let request = if is_last {
                request.signalled()
            } else {
                request
            };
            // SAFETY: the memory is of the slots, which outlive the pair; nothing changes the slot
            // before it has completed.
            unsafe { batch.write(request, &[from], to).unwrap() };
        }
        batch.post().unwrap();
        self.going.push_back(slot);
        self.give_credit(slot.lane, consumed)
    }

    fn completed(&mut self) -> Result<Option<Slot>, Error> {
        let mut room = PollRoom::default();
        for completion in self.queue.poll(&mut room).unwrap() {
            let slot = self.going.pop_front().expect("one for each signal");
            assert_eq!(completion.unwrap().wr_id, slot.number);
            self.completed.push_back(slot);
        }
        Ok(self.completed.pop_front())
    }

    fn give_credit(&mut self, lane: usize, total: u64) -> Result<bool, Error> {
        self.copying.give_credit(lane, total)
    }

    fn credit(&mut self, lane: usize) -> u64 {
        self.copying.credit(lane)
    }

    fn post_packets(&mut self, number: u64, words: &[u64]) -> Result<bool, Error> {
        self.copying.post_packets(number, words)
    }

    fn health(&mut self) -> Result<(), Error> {
        self.copying.health()
    }
}

/// Registers a rank's memory.
fn registered(domain: &ProtectionDomain, slots: &Slots, peer: usize) -> Regions {
    let access = Access::REMOTE_WRITE;
    let [outbox, inbox] = slots.boxes(peer).unwrap().map(|of| {
        let start = with_exposed_provenance_mut(of.start() as usize);
        // SAFETY: the box is mapped until the slots are dropped, after the regions. Everything
        // there is atomics.
        unsafe { domain.register(NonNull::new(start).unwrap(), of.shape().bytes(), access) }
    });
    let exported = slots.dma_buf(peer).unwrap().unwrap();
    // The slots of both boxes are one range.
    let [(start, own), (_, others)] = slots.boxes(peer).unwrap().map(|of| of.ranges()[1]);
    let bytes = own + others;
    let fd = exported.descriptor.as_fd();
    // SAFETY: the memory is a GPU's, which this process does not access but by its kernels.
    let on_device = unsafe { domain.register_dmabuf(fd, exported.offset, bytes, start, access) };
    [outbox.unwrap(), inbox.unwrap(), on_device.unwrap()]
}

/// Two queue pairs of a device that are connected, with their queues.
fn connected(domain: &ProtectionDomain) -> [(QueuePair<Rts>, CompletionQueue); RANKS] {
    let device = domain.context();
    let made = [(); RANKS].map(|()| {
        let queue = device.completion_queue(256).unwrap();
        let pair: QueuePair<Reset> = domain.queue_pair(&PairOptions::new(&queue)).unwrap();
        (pair, queue)
    });
    let numbers = made.each_ref().map(|(pair, _)| pair.number());
    let (port, gid) = (device.port(1).unwrap(), device.gids(1).unwrap().remove(0));
    let mut peers = numbers.into_iter().rev();
    made.map(|(pair, queue)| {
        let peer = Peer {
            gid: gid.gid,
            kind: gid.kind,
            qp_num: peers.next().unwrap(),
        };
        let way = AddressVector::new(&port, &gid, &peer, Mtu::B4096).unwrap();
        let pair = pair.init(1, Access::REMOTE_WRITE).unwrap();
        let pair = pair.ready_to_receive(&way, ReceiveOptions::default());
        let pair = pair.unwrap().ready_to_send(SendOptions::default()).unwrap();
        (pair, queue)
    })
}

fn input_of(rank: usize, at: usize) -> u32 {
    (at * 7 + rank * 1000) as u32
}

/// The expected output of a rank.
fn expected(operation: Operation, rank: usize, count: usize) -> Vec<u32> {
    let of = |from: usize, at: usize| input_of(from, at);
    let sum = |at| {
        (0..RANKS)
            .map(|from| of(from, at))
            .fold(0, u32::wrapping_add)
    };
    let blocks = (0..RANKS).flat_map(|from| (0..count).map(move |at| (from, at)));
    match operation {
        Operation::AllReduce => (0..count).map(sum).collect(),
        Operation::ReduceScatter => (0..count).map(|at| sum(rank * count + at)).collect(),
        Operation::AllGather => blocks.map(|(from, at)| of(from, at)).collect(),
        Operation::AllToAll => blocks
            .map(|(from, at)| of(from, rank * count + at))
            .collect(),
        other => panic!("{other:?}"),
    }
}

/// Makes a call of a rank, and returns its output.
fn call(slots: &Slots, operation: Operation, count: usize) -> Vec<u32> {
    let (rank, context) = (slots.rank(), context(0).unwrap());
    let own = OwnStream::new(&context).unwrap();
    let length = |side| match operation.extent(side) {
        Extent::Blocks => RANKS * count,
        _ => count,
    };
    let input: Vec<_> = (0..length(Side::Input))
        .map(|at| input_of(rank, at))
        .collect();
    let from = DeviceBlock::new(&context, size_of_val(&input[..])).unwrap();
    let mut output = vec![0_u32; length(Side::Output)];
    let to = DeviceBlock::zeroed(&context, size_of_val(&output[..])).unwrap();
    let stream = counted_stream(&context).unwrap();
    let call = Call {
        operation,
        dtype: DType::U32,
        op: ReduceOp::Sum,
        factor: 0,
        is_factor_in_memory: false,
        root: 0,
        count,
        input: from.address(),
        output: to.address(),
        in_place: false,
        words: [operation as u64, count as u64],
    };
    // SAFETY: the blocks are as long as the call says, and nothing else uses them until the stream
    // has been waited for.
    unsafe {
        own.write(from.address(), &input).unwrap();
        slots.enqueue(&call, &stream).unwrap();
        stream.synchronize().unwrap();
        own.read(to.address(), &mut output).unwrap();
    }
    slots.check().unwrap();
    output
}

#[test]
fn devices_write_slots_into_memory_of_gpus() {
    if !has(Need::FakeGpus) {
        return;
    }
    let context = context(0).unwrap();
    let ranks = [0, 1].map(|rank| {
        let stage = Arc::new(Stage::new(&context, rank, RANKS, 4).unwrap());
        Slots::new(&context, &stage, 4, 4, 16 << 10, Placement::Device).unwrap()
    });
    let device = testing::network(11).devices().unwrap()[0].open().unwrap();
    let domain = device.protection_domain().unwrap();
    assert!(domain.takes_dmabufs().unwrap());
    let regions = [0, 1].map(|rank| registered(&domain, &ranks[rank], 1 - rank));
    let is_over = AtomicBool::new(false);
    scope(|scope| {
        let _ends = Ends(&is_over);
        for (rank, (pair, queue)) in connected(&domain).into_iter().enumerate() {
            let [outbox, inbox] = ranks[rank].boxes(1 - rank).unwrap();
            let [credits, target] = ranks[1 - rank].boxes(rank).unwrap();
            let carrier = Written {
                pair,
                queue,
                own: &regions[rank],
                peers: &regions[1 - rank],
                copying: Copying::new(outbox.clone(), target.clone(), credits, Arc::default()),
                outbox: outbox.clone(),
                inbox: target,
                going: VecDeque::new(),
                completed: VecDeque::new(),
            };
            let lanes = 0..outbox.shape().lanes();
            let mut proxy = Proxy::new(outbox, inbox, carrier, lanes);
            let is_over = &is_over;
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    proxy.turn().unwrap();
                    yield_now();
                }
            });
        }
        for count in [0, 1, 77, 5000, 100_003] {
            for operation in [
                Operation::AllReduce,
                Operation::ReduceScatter,
                Operation::AllGather,
                Operation::AllToAll,
            ] {
                let calls = ranks
                    .each_ref()
                    .map(|slots| scope.spawn(move || call(slots, operation, count)));
                for (rank, call) in calls.into_iter().enumerate() {
                    let right = call.join().unwrap() == expected(operation, rank, count);
                    assert!(right, "rank {rank}, {operation:?} of {count}");
                }
            }
        }
    });
    assert!(ranks.iter().all(|slots| slots.calls().ended == 20));
}
