//! Two connected queue pairs, for the tests.

use std::net::Ipv4Addr;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use spark_ccl_testing::{Need, has};
use spark_ccl_verbs::{
    Access, AddressVector, Completion, CompletionError, CompletionQueue, Context, Gid, GidClass,
    GidEntry, GidKind, Init, Library, MemoryRegion, PairOptions, Peer, Piece, PollRoom, Port,
    PortState, ProtectionDomain, QueuePair, ReceiveOptions, Remote, Request, Rts, SendOptions,
};

/// The size of an end's memory, in bytes.
pub(crate) const BYTES: usize = 1 << 16;

pub(crate) const EVERYTHING: [Access; 3] = [
    Access::REMOTE_WRITE,
    Access::REMOTE_READ,
    Access::REMOTE_ATOMIC,
];

/// A port with an IPv4 address.
#[derive(Clone)]
pub(crate) struct TestPort {
    pub(crate) context: Context,
    pub(crate) port: Port,
    pub(crate) gid: GidEntry,
}

/// Two ports that reach each other; `None` without a device.
pub(crate) fn test_ports() -> Option<(TestPort, TestPort)> {
    if !has(Need::Rdma) {
        return None;
    }
    let all = working(Library::open().unwrap());
    let first = all.first().unwrap();
    let network = |test_port: &TestPort| {
        test_port
            .gid
            .gid
            .ipv4()
            .map(|address| address.octets()[..3].to_vec())
    };
    let second = all[1..]
        .iter()
        .find(|test_port| network(test_port) == network(first));
    Some((first.clone(), second.unwrap_or(first).clone()))
}

fn working(library: Library) -> Vec<TestPort> {
    let mut test_ports = Vec::new();
    for device in library.devices().unwrap() {
        let context = device.open().unwrap();
        let port = context.port(1).unwrap();
        let gids = context.gids(1).unwrap();
        let routable = |entry: &&GidEntry| {
            entry.gid.class() == GidClass::Ipv4Mapped && entry.kind == GidKind::RoceV2
        };
        if let (PortState::Active, Some(gid)) = (port.state, gids.iter().find(routable)) {
            test_ports.push(TestPort {
                context,
                port,
                gid: gid.clone(),
            });
        }
    }
    test_ports
}

/// Memory that is never freed, because the device may keep it after a failure.
pub(crate) fn memory(bytes: usize) -> NonNull<u8> {
    let words = vec![0_u64; bytes.div_ceil(8)].leak();
    NonNull::from(words).cast()
}

/// One end and its memory, all of it registered with all access.
pub(crate) struct End<Q> {
    pub(crate) test_port: TestPort,
    pub(crate) queue: CompletionQueue,
    pub(crate) pair: Q,
    pub(crate) region: MemoryRegion,
    pub(crate) start: NonNull<u8>,
    arrived: Mutex<Vec<Result<Completion, CompletionError>>>,
}

impl End<QueuePair<Init>> {
    pub(crate) fn new(test_port: &TestPort) -> Self {
        let domain = test_port.context.protection_domain().unwrap();
        let queue = test_port.context.completion_queue(256).unwrap();
        Self::in_domain(test_port, &domain, queue)
    }

    pub(crate) fn in_domain(
        test_port: &TestPort,
        domain: &ProtectionDomain,
        queue: CompletionQueue,
    ) -> Self {
        let access = EVERYTHING
            .into_iter()
            .reduce(|one, other| one | other)
            .unwrap();
        let start = memory(BYTES);
        // SAFETY: the memory is never freed, and is only accessed through raw pointers, by volatile
        // accesses.
        let region = unsafe { domain.register(start, BYTES, access) }.unwrap();
        let options = PairOptions {
            send_pieces: 3,
            receive_pieces: 2,
            inline: 64,
            ..PairOptions::new(&queue)
        };
        let pair = domain.queue_pair(&options).unwrap();
        let pair = pair.init(test_port.port.number, access).unwrap();
        let (test_port, arrived) = (test_port.clone(), Mutex::default());
        End {
            test_port,
            queue,
            pair,
            region,
            start,
            arrived,
        }
    }

    /// Connects it to `peer`, with a short timeout.
    pub(crate) fn connect(self, peer: &Peer) -> End<QueuePair<Rts>> {
        let TestPort { port, gid, .. } = &self.test_port;
        let way = AddressVector::new(port, gid, peer, port.active_mtu).unwrap();
        self.by(&way)
    }

    pub(crate) fn by(self, way: &AddressVector) -> End<QueuePair<Rts>> {
        let receive = ReceiveOptions {
            psn: 100,
            reads_answered: 4,
            rnr_timer: 12,
        };
        let send = SendOptions {
            psn: 100,
            timeout: 10,
            retries: 3,
            rnr_retries: 2,
            reads_started: 4,
        };
        self.map(|pair| {
            pair.ready_to_receive(way, receive)
                .unwrap()
                .ready_to_send(send)
                .unwrap()
        })
    }
}

impl<S> End<QueuePair<S>> {
    pub(crate) fn peer(&self) -> Peer {
        let GidEntry { gid, kind, .. } = self.test_port.gid;
        Peer {
            gid,
            kind,
            qp_num: self.pair.number(),
        }
    }
}

impl<Q> End<Q> {
    pub(crate) fn map<R>(self, change: impl FnOnce(Q) -> R) -> End<R> {
        let End {
            test_port,
            queue,
            pair,
            region,
            start,
            arrived,
        } = self;
        End {
            test_port,
            queue,
            pair: change(pair),
            region,
            start,
            arrived,
        }
    }

    /// The next completion, which must come within seconds.
    pub(crate) fn next(&self) -> Result<Completion, CompletionError> {
        let start = Instant::now();
        let mut room = PollRoom::default();
        let mut arrived = self.arrived.lock().unwrap();
        while arrived.is_empty() {
            arrived.extend(self.queue.poll(&mut room).unwrap());
            assert!(start.elapsed() < Duration::from_secs(60), "no completion");
            std::thread::yield_now();
        }
        arrived.remove(0)
    }

    /// Writes bytes to the memory.
    pub(crate) fn put(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= BYTES);
        for (at, byte) in bytes.iter().enumerate() {
            // SAFETY: the place was checked to be within the `BYTES` bytes of the memory, which is
            // never freed and never borrowed.
            unsafe { self.start.add(offset + at).write_volatile(*byte) };
        }
    }

    /// Reads bytes of the memory.
    pub(crate) fn get(&self, offset: usize, bytes: usize) -> Vec<u8> {
        assert!(offset + bytes <= BYTES);
        // SAFETY: the place was checked to be within the `BYTES` bytes of the memory, which is
        // never freed and never borrowed.
        (offset..offset + bytes)
            .map(|at| unsafe { self.start.add(at).read_volatile() })
            .collect()
    }

    pub(crate) fn piece(&self, offset: usize, bytes: usize) -> Piece {
        self.region.piece(offset..offset + bytes).unwrap()
    }

    pub(crate) fn remote(&self, offset: usize) -> Remote {
        self.region.remote(offset..BYTES).unwrap()
    }
}

impl End<QueuePair<Rts>> {
    /// Posts a signalled write.
    pub(crate) fn write(&mut self, id: u64, piece: Piece, to: Remote) {
        let mut batch = self.pair.batch();
        // SAFETY: the memory is never freed, and is only accessed through raw pointers.
        unsafe { batch.write(Request::new(id).signalled(), &[piece], to) }.unwrap();
        batch.post().unwrap();
    }

    pub(crate) fn send(&mut self, id: u64, piece: Piece) {
        let mut batch = self.pair.batch();
        // SAFETY: the memory is never freed, and is only accessed through raw pointers.
        unsafe { batch.send(Request::new(id).signalled(), &[piece]) }.unwrap();
        batch.post().unwrap();
    }

    pub(crate) fn receive(&mut self, id: u64, piece: Piece) {
        let mut receives = self.pair.receives();
        // SAFETY: the memory is never freed, and is only accessed through raw pointers.
        unsafe { receives.receive(id, &[piece]) }.unwrap();
        receives.post().unwrap();
    }
}

pub(crate) type Connected = End<QueuePair<Rts>>;

/// Two ends that are connected to each other; `None` without a device.
pub(crate) fn connected() -> Option<(Connected, Connected)> {
    let (one, other) = test_ports()?;
    let (one, other) = (End::new(&one), End::new(&other));
    let (to_other, to_one) = (other.peer(), one.peer());
    Some((one.connect(&to_other), other.connect(&to_one)))
}

/// An unused address on the network of a port.
pub(crate) fn nobody(test_port: &TestPort) -> Gid {
    let [a, b, c, _] = test_port.gid.gid.ipv4().unwrap().octets();
    Gid::from(Ipv4Addr::new(a, b, c, 99))
}
