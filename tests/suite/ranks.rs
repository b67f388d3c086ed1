//! Ranks that are threads of the test, under a watchdog.

use std::io::Write;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use spark_ccl::{Builder, Communicator};

use super::processes::patience;

/// Every test ends within this time, even on a busy machine, or hangs. [`patience`] is a factor.
const PATIENCE: Duration = Duration::from_secs(120);

/// Ends the test program if the test that holds it does not end.
pub(crate) struct Watchdog(Option<Sender<()>>);

impl Watchdog {
    pub(crate) fn new() -> Self {
        raise_limit_of_files();
        let name = std::thread::current().name().unwrap_or("a test").to_owned();
        let (sender, receiver): (_, Receiver<()>) = channel();
        let most = PATIENCE * patience();
        std::thread::spawn(move || {
            if receiver.recv_timeout(most) == Err(RecvTimeoutError::Timeout) {
                // `eprintln!` would not do: the test harness would capture and lose it.
                let text = format!("{name} hangs: it did not end within {most:?}\n");
                let _ = std::io::stderr().write_all(text.as_bytes());
                std::process::abort();
            }
        });
        Self(Some(sender))
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.0.take());
    }
}

/// Tests run in parallel in this process, and each of a process's 64 ranks takes 15 files.
fn raise_limit_of_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, raised).unwrap();
}

/// Settings for ranks with small windows, so that even small data take many messages.
pub(crate) fn narrow() -> Builder {
    Communicator::builder()
        .set("SPARK_CCL_SLOT_BYTES", "128")
        .set("SPARK_CCL_SLOTS", "2")
}

/// Runs `work` on `n` ranks with the default settings. Returns their results by rank.
pub(crate) fn run<R: Send>(n: usize, work: impl Fn(&Communicator) -> R + Sync) -> Vec<R> {
    run_with(&Communicator::builder(), n, work)
}

/// Runs `work` on `n` ranks. Returns their results by rank. The ranks leave together at the end.
pub(crate) fn run_with<R: Send>(
    builder: &Builder,
    n: usize,
    work: impl Fn(&Communicator) -> R + Sync,
) -> Vec<R> {
    each(builder.local(n).unwrap(), |comm| {
        let result = work(&comm);
        comm.finalize().unwrap();
        result
    })
}

/// Runs `work` with each communicator on a thread of its own.
pub(crate) fn each<R: Send>(
    comms: Vec<Communicator>,
    work: impl Fn(Communicator) -> R + Sync,
) -> Vec<R> {
    let _watchdog = Watchdog::new();
    let work = &work;
    std::thread::scope(|scope| {
        let threads: Vec<_> = comms
            .into_iter()
            .map(|comm| scope.spawn(move || work(comm)))
            .collect();
        // All end before the first panic continues, so none of them is hidden.
        let results: Vec<_> = threads
            .into_iter()
            .map(std::thread::ScopedJoinHandle::join)
            .collect();
        results
            .into_iter()
            .map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

/// `n` ranks that met through a unique id and sockets, like processes of several hosts.
pub(crate) fn connected(builder: &Builder, n: usize) -> Vec<Communicator> {
    let _watchdog = Watchdog::new();
    let id = builder.unique_id().unwrap();
    std::thread::scope(|scope| {
        let connect = |rank| {
            scope.spawn({
                let id = &id;
                move || builder.connect(id, rank, n).unwrap()
            })
        };
        let threads: Vec<_> = (0..n).map(connect).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    })
}
