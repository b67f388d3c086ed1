//! The thread that answers clients and writes files. A process has one for each choice of settings.

use std::io;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use spark_ccl_config::Observe;
use spark_ccl_fork::{Owned, PerProcess, within};
use spark_ccl_log::Mutex;

use super::board::Board;
use super::inspector::Writer;
use super::server::Server;

/// The longest wait for the end of the thread.
const PATIENCE: Duration = Duration::from_secs(2);

static SERVICES: PerProcess<Mutex<Vec<Weak<Service>>>> = PerProcess::new();

/// The thread and the communicators that it reports on. Dropping it ends the thread, after a last
/// round.
pub(crate) struct Service {
    board: Arc<Board>,
    thread: Option<Owned<JoinHandle<()>>>,
}

impl Service {
    /// This process's service with these settings.
    pub(super) fn of(settings: &Observe) -> io::Result<Arc<Self>> {
        let mut services = SERVICES.get().lock();
        services.retain(|service| service.strong_count() > 0);
        let mut running = services.iter().filter_map(Weak::upgrade);
        if let Some(service) = running.find(|service| service.board.settings == *settings) {
            return Ok(service);
        }
        let board = Arc::new(Board::new(settings.clone())?);
        let thread = {
            let board = Arc::clone(&board);
            spark_ccl_log::spawn("spark-observe", move || run(&board))?
        };
        let service = Arc::new(Self {
            board,
            thread: Some(Owned::new(thread)),
        });
        services.push(Arc::downgrade(&service));
        Ok(service)
    }

    pub(super) fn board(&self) -> &Arc<Board> {
        &self.board
    }
}

impl Drop for Service {
    /// In a forked child there is no thread to end.
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take().and_then(Owned::into_inner) {
            self.board.close();
            // A file system may hang. If the thread panicked, nobody is left to report that to.
            let _ = within(Instant::now() + PATIENCE, move || thread.join());
        }
    }
}

fn run(board: &Board) {
    let mut server = board.settings.ras.clone().map(Server::new);
    let inspector = board.settings.inspector.as_ref();
    let every = inspector.map(|inspector| inspector.every);
    let mut writer = inspector.map(Writer::new);
    let mut inspected = Instant::now();
    while !board.is_closed() {
        let now = Instant::now();
        if let (Some(writer), Some(every)) = (&mut writer, every) {
            let is_due = now.saturating_duration_since(inspected) >= every;
            inspect(board, writer, is_due);
            if is_due {
                inspected = now;
                writer.flush();
            }
        }
        for observed in board.observed() {
            observed.record_fault();
        }
        let inspection = every.map(|every| inspected + every);
        let service = server.as_mut().and_then(|server| server.serve(board, now));
        let due = [inspection, service].into_iter().flatten().min();
        let pause = due.map(|due| due.saturating_duration_since(Instant::now()));
        sleep(board, server.as_ref(), pause);
    }
    if let Some(writer) = &mut writer {
        inspect(board, writer, true);
        writer.end();
    }
}

/// Passes on the operations of ended communicators, or of all.
fn inspect(board: &Board, writer: &mut Writer, all: bool) {
    if all {
        for observed in board.observed() {
            if let Some((group, entries)) = observed.take_done() {
                writer.add(&group, &entries);
            }
        }
    }
    for (group, entries) in board.take_left() {
        writer.add(&group, &entries);
    }
}

/// Sleeps until a client says something, the bell rings, or this time has passed.
fn sleep(board: &Board, server: Option<&Server>, pause: Option<Duration>) {
    let mut waits = vec![PollFd::new(&board.bell, PollFlags::IN)];
    waits.extend(server.into_iter().flat_map(Server::waits));
    let pause = pause.and_then(|pause| Timespec::try_from(pause).ok());
    match poll(&mut waits, pause.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => {
            // Most likely out of memory. The pause keeps the thread from spinning.
            spark_ccl_log::warn!("the thread that tells what runs cannot wait: {error}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    if !waits[0].revents().is_empty() {
        // Fails if an earlier read has consumed this wake-up, too.
        let _ = rustix::io::read(&board.bell, &mut [0_u8; 8]);
    }
}
