//! Many callers at once: slow ones, and strangers that take up places.

use super::*;

/// A caller on a busy machine: each of its answers comes later than [`GRACE`].
struct SlowCaller {
    socket: Socket,
    entry: Entry,
    answers_at: Option<Instant>,
}

impl SlowCaller {
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

    /// Whether it is admitted. It calls again if it was evicted.
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
fn slow_callers_are_not_evicted_for_ever() {
    for delay in [GRACE * 3 / 2, GRACE * 5] {
        // Even with batches as close together as possible.
        for step in [PAUSE, 4 * PAUSE] {
            assert_all_get_in(delay, step);
        }
    }
}

/// A lobby with few places, its address, and the key that it admits.
fn small_lobby() -> (Lobby, SocketAddr, Secret) {
    let listener = net::listen_tcp(Address::LOOPBACK.with_port(0)).unwrap();
    let target = listener.local_addr().unwrap().as_socket().unwrap();
    let role = ListenerRole::Streams { rank: 1, size: 2 };
    let key = Secret::from_text(KEY);
    let mut lobby = Lobby::new(role, Keys::one(key), vec![listener]);
    lobby.capacity = PLACES;
    (lobby, target, key)
}

/// Many callers, each answering after `delay`; the lobby is served every `step`.
fn assert_all_get_in(delay: Duration, step: Duration) {
    const CALLERS: usize = 4 * PLACES;
    let (mut lobby, target, key) = small_lobby();
    let (mut now, mut admitted) = (Instant::now(), 0);
    let mut callers: Vec<_> = (0..CALLERS).map(|_| SlowCaller::begin(target)).collect();
    let end = now + Duration::from_secs(60);
    while now < end {
        now += step;
        admitted += lobby.serve(now, &|_, _| true).len();
        callers.retain_mut(|caller| !caller.step(&key, target, (now, delay)));
        if callers.is_empty() {
            assert_eq!(admitted, CALLERS);
            return;
        }
    }
    panic!(
        "{} of {CALLERS} are not in yet: {delay:?}, {step:?}",
        callers.len()
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
/// admitted, in the lobby's time.
#[test]
fn silent_strangers_delay_no_rank() {
    for (delay, limit) in [(0, 2), (20, 2), (1000, 3)] {
        let (mut lobby, target, key) = small_lobby();
        let mut flood = Flood::begin(target);
        let mut caller = SlowCaller::begin(target);
        let begin = Instant::now();
        let (mut now, delay) = (begin, Duration::from_millis(delay));
        while !caller.step(&key, target, (now, delay)) {
            assert!(now < begin + Duration::from_secs(limit), "{delay:?}");
            now += PAUSE;
            lobby.serve(now, &|_, _| true);
            flood.go_on();
        }
        let text = lobby.refused().unproved_text();
        assert!(lobby.refused.unproved.count > PLACES as u64, "{text}");
        assert!(text.ends_with(&format!(
            "connections never authenticated (last: {})",
            lobby.refused.unproved.last
        )));
    }
}

#[test]
fn strangers_at_one_listener_leave_the_others_their_places() {
    let listener = || net::listen_tcp(Address::LOOPBACK.with_port(0)).unwrap();
    let (flooded, quiet) = (listener(), listener());
    let [target, other] = [&flooded, &quiet].map(|l| l.local_addr().unwrap().as_socket().unwrap());
    let role = ListenerRole::Streams { rank: 1, size: 2 };
    let mut lobby = Lobby::new(
        role,
        Keys::one(Secret::from_text(KEY)),
        vec![flooded, quiet],
    );
    lobby.capacity = PLACES;
    let begin = Instant::now();
    // Says nothing for as long as a handshake may take.
    let late = Flood::dial(other);
    let mut flood = Flood::begin(target);
    for tick in 0..100 {
        lobby.serve(begin + tick * PAUSE, &|_, _| true);
        flood.go_on();
    }
    assert!(lobby.refused.unproved.count > 2 * PLACES as u64);
    assert!(matches!(net::try_read(&late, &mut [0; 9]), Ok(None)));
}

#[test]
fn strangers_leave_the_program_descriptors() {
    let listener = net::listen_tcp(Address::LOOPBACK.with_port(0)).unwrap();
    let target = listener.local_addr().unwrap().as_socket().unwrap();
    let role = ListenerRole::Streams { rank: 1, size: 2 };
    let mut lobby = Lobby::new(role, Keys::one(Secret::from_text(KEY)), vec![listener]);
    // As if the program had used its share of descriptors already.
    lobby.descriptors = 0;
    let mut flood = Flood::begin(target);
    let begin = Instant::now();
    for tick in 0..20 {
        lobby.serve(begin + tick * PAUSE, &|_, _| true);
        assert!(lobby.pending.len() <= LEAST_CAPACITY);
        flood.go_on();
    }
    assert!(lobby.refused.unproved.count > PLACES as u64);
}
