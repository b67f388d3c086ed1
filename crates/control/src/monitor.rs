//! The thread that sleeps on the control streams.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use socket2::Socket;

use crate::link::Link;
use crate::state::State;
use crate::view::View;
use crate::watch::Watch;

/// How long a goodbye may take, where a neighbour does not read.
const FAREWELL: Duration = Duration::from_millis(300);

/// The control streams of one process, and the thread that sleeps on them.
///
/// Dropping it says goodbye to the others, so that they do not take this process for dead; that
/// takes 300 ms at most. Each [`Watch`] keeps it alive.
pub struct Monitor {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    wake: OwnedFd,
    stop: AtomicBool,
}

impl Monitor {
    /// Starts to watch the ranks at the other ends of `streams`, for rank `me` of the world.
    ///
    /// `names` has the name of each rank of the world ("rank 3 (hostB, pid 17)"). `streams` are
    /// connected, authenticated stream sockets, TCP or Unix, with the rank at their other end:
    /// those of [`neighbours`](crate::neighbours).
    ///
    /// # Errors
    ///
    /// `InvalidInput` when `me` or a stream's rank is not in the world or has two streams; else
    /// the system's error when it refuses a socket option, a descriptor or the thread.
    pub fn start(
        me: u32,
        names: Vec<String>,
        streams: Vec<(u32, Socket)>,
    ) -> io::Result<Arc<Self>> {
        check_ranks(me, names.len(), &streams)?;
        let names: Arc<[Arc<str>]> = names.into_iter().map(Arc::from).collect();
        let links: io::Result<Vec<Link>> = streams
            .into_iter()
            .map(|(peer, socket)| Link::new(peer, socket))
            .collect();
        let links = links?;
        let peers: Vec<u32> = links.iter().map(|link| link.peer).collect();
        tracing::info!(
            "{} watches ranks {peers:?} over its control streams",
            names[me as usize]
        );
        let shared = Arc::new(Shared {
            state: Mutex::new(State::new(me, names, links)),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            stop: AtomicBool::new(false),
        });
        let thread = {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new()
                .name("spark-monitor".into())
                .spawn(move || shared.run())?
        };
        Ok(Arc::new(Self {
            shared,
            thread: Some(thread),
        }))
    }

    /// Starts to follow a communicator.
    ///
    /// `context` is its name, the same on all its ranks and unlike that of any other. `members`
    /// are the world ranks of its ranks, in order, this one among them. `describe` puts the
    /// signature of an operation in words.
    ///
    /// What is already known to be wrong with one of the members is the new watch's fault.
    pub fn watch(
        self: &Arc<Self>,
        context: u64,
        members: Vec<u32>,
        describe: fn([u64; 2]) -> String,
    ) -> Arc<Watch> {
        let view = self.with(|state| {
            let names = Arc::clone(&state.names);
            let view = Arc::new(View::new(context, members, state.me, names, describe));
            state.watch(&view);
            view
        });
        Arc::new(Watch::new(Arc::clone(self), view))
    }

    /// Works on the state, and has the thread write what the sockets did not take at once.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.shared.state.lock();
        let result = work(&mut state);
        let full = state.links.iter().any(|link| link.full);
        drop(state);
        if full {
            self.shared.wake_up();
        }
        result
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        // Carries nothing but itself; the wake-up that follows brings the thread to look.
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.wake_up();
        if let Some(thread) = self.thread.take() {
            // It ends within FAREWELL; that it panicked concerns nobody any more.
            let _ = thread.join();
        }
    }
}

fn check_ranks(me: u32, size: usize, streams: &[(u32, Socket)]) -> io::Result<()> {
    let mut ranks: Vec<u32> = streams.iter().map(|&(rank, _)| rank).collect();
    ranks.push(me);
    ranks.sort_unstable();
    let twice = ranks
        .windows(2)
        .find(|pair| pair[0] == pair[1])
        .map(|pair| pair[0]);
    let beyond = ranks.last().copied().filter(|&rank| rank as usize >= size);
    let text = match (twice, beyond) {
        (Some(rank), _) => format!("rank {rank} has two control streams, or one to itself"),
        (_, Some(rank)) => format!("rank {rank} is not in the world of {size} ranks"),
        (None, None) => return Ok(()),
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, text))
}

impl Shared {
    fn wake_up(&self) {
        // Fails only when the counter is full, and then the thread is awake.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn run(&self) {
        // What the thread works on is behind the lock.
        while !self.stop.load(Ordering::Relaxed) {
            for link in self.sleep(None) {
                let mut state = self.state.lock();
                state.links[link].flush();
                state.serve(link);
            }
        }
        self.farewell();
    }

    /// Sleeps until a stream has something, or takes something, and gives those that do.
    fn sleep(&self, limit: Option<Duration>) -> Vec<usize> {
        let streams: Vec<(usize, Arc<Socket>, PollFlags)> = {
            let state = self.state.lock();
            let open = state.links.iter().enumerate().filter(|(_, link)| link.open);
            open.map(|(index, link)| {
                let write = if link.full {
                    PollFlags::OUT
                } else {
                    PollFlags::empty()
                };
                (index, Arc::clone(&link.socket), PollFlags::IN | write)
            })
            .collect()
        };
        let mut waits = vec![PollFd::new(&self.wake, PollFlags::IN)];
        waits.extend(
            streams
                .iter()
                .map(|(_, socket, flags)| PollFd::new(socket, *flags)),
        );
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        match poll(&mut waits, limit.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Vec::new(),
            Err(error) => {
                // Out of memory, if anything; it must not make the thread spin.
                tracing::warn!("the monitor cannot wait for its streams: {error}");
                std::thread::sleep(Duration::from_millis(100));
                return Vec::new();
            }
        }
        if !waits[0].revents().is_empty() {
            // Empty when another wake-up was read with an earlier one.
            let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
        }
        let ready = waits[1..]
            .iter()
            .zip(&streams)
            .filter(|(wait, _)| !wait.revents().is_empty());
        ready.map(|(_, (index, ..))| *index).collect()
    }

    /// Says goodbye, and reads on until the neighbours close: a socket that is closed with
    /// something unread resets the connection, and the goodbye may be lost with it.
    fn farewell(&self) {
        let deadline = Instant::now() + FAREWELL;
        self.state.lock().goodbye();
        loop {
            let waiting = {
                let mut state = self.state.lock();
                let said = state
                    .links
                    .iter_mut()
                    .filter(|link| !link.full && !link.closed());
                said.for_each(Link::close);
                state.links.iter().any(|link| link.open)
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if !waiting || left.is_zero() {
                return;
            }
            for index in self.sleep(Some(left)) {
                let link = &mut self.state.lock().links[index];
                link.flush();
                let (_, end) = link.read(u32::MAX);
                link.open = end.is_none();
            }
        }
    }
}
