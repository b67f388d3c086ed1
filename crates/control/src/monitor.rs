//! A rank's handle to the monitor thread, which is in `service.rs`.

use std::io;
use std::sync::{Arc, Weak};
use std::time::Instant;

use spark_ccl_log::Mutex;
use spark_ccl_seal::Stream;

use crate::board::Board;
use crate::neighbour::Neighbour;
use crate::repair::Redial;
use crate::service::{Service, Thread};
use crate::state::ControlState;
use crate::view::View;

/// A rank's place in the control plane: its control streams, and the thread that polls them. The
/// ranks of a world within one process need no streams, and share a thread.
///
/// [`leave_world`](Self::leave_world) says goodbye to the other ranks, and so does dropping it.
/// Each [`Watch`](crate::Watch) keeps it alive.
pub struct Monitor {
    me: u32,
    names: Arc<[Arc<str>]>,
    service: Arc<Service>,
    /// `None` once this rank has said goodbye. The last holder ends the thread.
    thread: Mutex<Option<Arc<Thread>>>,
}

/// Hands streams that other ranks have reopened to a monitor. It does not keep the monitor alive.
#[derive(Clone)]
pub struct Adopter {
    me: u32,
    service: Weak<Service>,
}

impl Adopter {
    /// Replaces the broken stream to `peer` by `stream`. `number` is the one that the peer's
    /// [`Dial`](crate::Dial) was called with. The caller must have authenticated `stream` as
    /// strictly as the first one.
    ///
    /// Returns whether the monitor still exists.
    pub fn adopt(&self, peer: u32, number: u32, stream: Stream) -> bool {
        let Some(service) = self.service.upgrade() else {
            return false;
        };
        let by_higher = peer > self.me;
        service.with(self.me, |state| {
            state.adopt(peer, number, by_higher, stream, Instant::now());
        });
        service.wake_up();
        true
    }
}

impl Monitor {
    /// Starts to watch the ranks at the other ends of `streams`, for rank `me` of the world.
    ///
    /// `names` has the name of each rank of the world ("rank 3 (hostB, pid 17)"). `streams` are
    /// connected, authenticated streams, TCP or Unix, each with the rank at its other end: the
    /// [`neighbours`](crate::neighbours). On a stream with seals, a rank whose messages are changed
    /// on the way counts as lost. With `redial`, broken TCP streams are reopened. Without it, a
    /// rank whose stream ends counts as gone.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if `me` or a stream's rank is not in the world, or has two streams. Otherwise
    /// the system's error when it refuses a socket option, a descriptor or the thread.
    pub fn start(
        me: u32,
        names: Vec<String>,
        streams: Vec<(u32, Stream)>,
        redial: Option<Redial>,
    ) -> io::Result<Arc<Self>> {
        check_ranks(me, names.len(), &streams)?;
        let names: Arc<[Arc<str>]> = names.into_iter().map(Arc::from).collect();
        let now = Instant::now();
        let neighbours: io::Result<Vec<Neighbour>> = streams
            .into_iter()
            .map(|(peer, socket)| Neighbour::new(peer, socket, redial.is_some(), now))
            .collect();
        let neighbours = neighbours?;
        let peers: Vec<u32> = neighbours.iter().map(|neighbour| neighbour.peer).collect();
        spark_ccl_log::info!(
            "{} watches ranks {peers:?} over its control streams",
            names[me as usize]
        );
        let state = ControlState::new(me, Arc::clone(&names), neighbours, redial.clone());
        let service = Service::new([state], redial, None)?;
        let thread = Arc::new(Thread::start(&service)?);
        Ok(Arc::new(Self::of(me, names, service, thread)))
    }

    /// The monitors of a world whose ranks are all in this process, by rank. They need no streams:
    /// one thread hands what a rank says to the others.
    ///
    /// # Errors
    ///
    /// The system's, when it refuses a descriptor or the thread.
    ///
    /// # Example
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// use spark_ccl_control::Monitor;
    ///
    /// let monitors = Monitor::local(vec!["rank 0".to_owned(), "rank 1".to_owned()])?;
    /// let watch = monitors[0].watch(7, vec![0, 1], |words| format!("{words:?}"));
    /// assert!(!watch.failed());
    /// # Ok(())
    /// # }
    /// ```
    pub fn local(names: Vec<String>) -> io::Result<Vec<Arc<Self>>> {
        let names: Arc<[Arc<str>]> = names.into_iter().map(Arc::from).collect();
        let board = Arc::new(Board::default());
        let ranks = 0..names.len() as u32;
        let state = |me| ControlState::on_board(me, Arc::clone(&names), Arc::clone(&board));
        let service = Service::new(ranks.clone().map(state), None, Some(Arc::clone(&board)))?;
        let thread = Arc::new(Thread::start(&service)?);
        let monitor = |me| {
            let (service, thread) = (Arc::clone(&service), Arc::clone(&thread));
            Arc::new(Self::of(me, Arc::clone(&names), service, thread))
        };
        Ok(ranks.map(monitor).collect())
    }

    fn of(me: u32, names: Arc<[Arc<str>]>, service: Arc<Service>, thread: Arc<Thread>) -> Self {
        Self {
            me,
            names,
            service,
            thread: Mutex::new(Some(thread)),
        }
    }

    /// Says goodbye to the other ranks, so that they do not take this process for dead, and ends
    /// the monitor's thread. That takes 300 ms at most, or 2 s when streams are broken and no
    /// neighbour can be told. Call this before the process ends: other threads may keep the monitor
    /// alive.
    ///
    /// In a forked child this does nothing: the child is no rank, and has no monitor thread to
    /// join.
    pub fn leave_world(&self) {
        if !self.service.is_here() {
            return;
        }
        let Some(thread) = self.thread.lock().take() else {
            return;
        };
        if self.service.has_board() {
            // Other ranks of this process may stay, and the thread with them.
            self.with(|state| state.say_goodbye(Instant::now()));
        }
        drop(thread);
    }

    /// The handle that takes the streams that other ranks reopen. It works even while the monitor
    /// is being dropped.
    pub fn adopter(&self) -> Adopter {
        Adopter {
            me: self.me,
            service: Arc::downgrade(&self.service),
        }
    }

    /// Starts to follow a communicator, as [`watch`](Self::watch) (`watch.rs`) documents.
    pub(crate) fn follow(
        &self,
        context: u64,
        members: Vec<u32>,
        describe: fn([u64; 2]) -> String,
    ) -> Arc<View> {
        let names = Arc::clone(&self.names);
        let view = Arc::new(View::new(context, members, self.me, names, describe));
        self.with(|state| state.watch(&view, Instant::now()));
        view
    }

    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut ControlState) -> T) -> Option<T> {
        self.service.with(self.me, work)
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.leave_world();
    }
}

fn check_ranks(me: u32, size: usize, streams: &[(u32, Stream)]) -> io::Result<()> {
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
