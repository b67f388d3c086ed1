//! Many connectors at once: slow ones, and strangers that take up places.

use super::*;

/// A connector on a busy machine: each of its answers comes later than [`GRACE`].
struct SlowConnector {
    socket: Socket,
    entry: Entry,
    answers_at: Option<Instant>,
}

impl SlowConnector {
    fn begin(target: SocketAddr) -> Self {
        let deadline = Instant::now() + Duration::from_secs(30);
        let socket = net::connect_tcp(None, target, deadline).unwrap();
        let open = Open::new(stream_to(1)).unwrap();
        let entry = Entry::begin(&socket, &open).ok().unwrap();
        Self {
            socket,
            entry,
            answers_at: None,
        }
    }

    /// Whether it is admitted. It dials again if it was evicted.
    fn step(
        &mut self,
        key: &Secret,
        target: SocketAddr,
        (now, delay): (Instant, Duration),
    ) -> bool {
        if self.answers_at.is_none() {
            let heard = net::wait(self.socket.as_fd(), PollFlags::IN, Instant::now());
            self.answers_at = heard.is_ok().then(|| now + delay);
        }
        if self.answers_at.take_if(|at| *at <= now).is_none() {
            return false;
        }
        match self.entry.step(&self.socket, key, "rank 1") {
            Ok(is_in) => return is_in,
            Err(EnterError::Broken(_)) => *self = Self::begin(target),
            Err(EnterError::Final(_) | EnterError::Crossed) => panic!("refused"),
        }
        false
    }
}

#[test]
fn slow_connectors_are_not_evicted_for_ever() {
    for delay in [GRACE * 3 / 2, GRACE * 5] {
        // Even with batches as close together as possible.
        for step in [PAUSE, 4 * PAUSE] {
            assert_all_get_in(delay, step);
        }
    }
}

/// A listener with few places, its address, and the key that it admits.
fn small_incoming() -> (Incoming, SocketAddr, Secret) {
    let listener = net::listen_tcp(Address::LOOPBACK.with_port(0)).unwrap();
    let target = listener.local_addr().unwrap().as_socket().unwrap();
    let role = ListenerRole::Streams { rank: 1, size: 2 };
    let key = Secret::from_text(KEY);
    let mut incoming = Incoming::new(role, Keys::one(key), vec![listener]);
    incoming.capacity = PLACES;
    (incoming, target, key)
}

/// Many connectors, each answering after `delay`; the listener is served every `step`.
fn assert_all_get_in(delay: Duration, step: Duration) {
    const CONNECTORS: usize = 4 * PLACES;
    let (mut incoming, target, key) = small_incoming();
    let (mut now, mut admitted) = (Instant::now(), 0);
    let mut connectors: Vec<_> = (0..CONNECTORS)
        .map(|_| SlowConnector::begin(target))
        .collect();
    let end = now + Duration::from_secs(60);
    while now < end {
        now += step;
        admitted += incoming.serve(now, &|_, _| true).len();
        connectors.retain_mut(|connector| !connector.step(&key, target, (now, delay)));
        if connectors.is_empty() {
            assert_eq!(admitted, CONNECTORS);
            return;
        }
    }
    panic!(
        "{} of {CONNECTORS} are not in yet: {delay:?}, {step:?}",
        connectors.len()
    );
}

/// A stranger that holds many times more connections than there are places, and reopens each one
/// that is closed.
struct Flood {
    target: SocketAddr,
    sockets: Vec<Socket>,
}

impl Flood {
    fn begin(target: SocketAddr) -> Self {
        let sockets = (0..6 * PLACES).map(|_| Self::dial(target)).collect();
        Flood { target, sockets }
    }

    fn dial(target: SocketAddr) -> Socket {
        net::connect_tcp(None, target, Instant::now() + Duration::from_secs(30)).unwrap()
    }

    fn go_on(&mut self) {
        for socket in &mut self.sockets {
            if !matches!(net::try_read(socket, &mut [0; 9]), Ok(None)) {
                *socket = Self::dial(self.target);
            }
        }
    }
}

/// Behind a backlog of silent strangers, near ranks, ranks of another host and slow ones are
/// admitted, in the listener's time.
#[test]
fn silent_strangers_delay_no_rank() {
    for (delay, limit) in [(0, 2), (20, 2), (1000, 3)] {
        let (mut incoming, target, key) = small_incoming();
        let mut flood = Flood::begin(target);
        let mut connector = SlowConnector::begin(target);
        let begin = Instant::now();
        let (mut now, delay) = (begin, Duration::from_millis(delay));
        while !connector.step(&key, target, (now, delay)) {
            assert!(now < begin + Duration::from_secs(limit), "{delay:?}");
            now += PAUSE;
            incoming.serve(now, &|_, _| true);
            flood.go_on();
        }
        let text = incoming.refused().unproved_text();
        assert!(incoming.refused.unproved.count > PLACES as u64, "{text}");
        assert!(text.ends_with(&format!(
            "connections never authenticated (last: {})",
            incoming.refused.unproved.last
        )));
    }
}

#[test]
fn strangers_at_one_listener_leave_the_others_their_places() {
    let listener = || net::listen_tcp(Address::LOOPBACK.with_port(0)).unwrap();
    let (flooded, quiet) = (listener(), listener());
    let [target, other] = [&flooded, &quiet].map(|l| l.local_addr().unwrap().as_socket().unwrap());
    let role = ListenerRole::Streams { rank: 1, size: 2 };
    let mut incoming = Incoming::new(
        role,
        Keys::one(Secret::from_text(KEY)),
        vec![flooded, quiet],
    );
    incoming.capacity = PLACES;
    let begin = Instant::now();
    // Says nothing for as long as a handshake may take.
    let late = Flood::dial(other);
    let mut flood = Flood::begin(target);
    for tick in 0..100 {
        incoming.serve(begin + tick * PAUSE, &|_, _| true);
        flood.go_on();
    }
    assert!(incoming.refused.unproved.count > 2 * PLACES as u64);
    assert!(matches!(net::try_read(&late, &mut [0; 9]), Ok(None)));
}

#[test]
fn strangers_leave_the_program_descriptors() {
    let listener = net::listen_tcp(Address::LOOPBACK.with_port(0)).unwrap();
    let target = listener.local_addr().unwrap().as_socket().unwrap();
    let role = ListenerRole::Streams { rank: 1, size: 2 };
    let mut incoming = Incoming::new(role, Keys::one(Secret::from_text(KEY)), vec![listener]);
    // As if the program had used its share of descriptors already.
    incoming.descriptors = 0;
    let mut flood = Flood::begin(target);
    let begin = Instant::now();
    for tick in 0..20 {
        incoming.serve(begin + tick * PAUSE, &|_, _| true);
        assert!(incoming.pending.len() <= LEAST_CAPACITY);
        flood.go_on();
    }
    assert!(incoming.refused.unproved.count > PLACES as u64);
}
