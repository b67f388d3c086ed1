//! The crate with NVIDIA's GPUs, all that are here, and the libnccl that `SPARK_CCL_NCCL_LIBRARY`
//! names, or the system's. Where there are none, or too few, tests are skipped.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod collectives;
mod creation;
mod cuda;
mod endings;
mod registration;

use std::env;
use std::io::Write;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use cuda::Gpu;
use spark_ccl_nccl::{Communicator, Config, DType, Error, Library, Progress, RedOp};
use spark_ccl_testing::{Need, found, has};

/// What a test has for itself while it runs.
struct Machine {
    library: Library,
    gpus: &'static [Gpu],
    _alone: MutexGuard<'static, ()>,
    _watched: Sender<()>,
}

/// The machine, unless there are fewer GPUs than the test needs ranks.
fn machine(ranks: usize) -> Option<Machine> {
    static FOUND: OnceLock<(Library, Vec<Gpu>)> = OnceLock::new();
    // Kernels of several communicators, and what frees memory, may wait for each other for ever.
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    if !has(Need::Gpus(ranks)) {
        return None;
    }
    let (library, gpus) = FOUND.get_or_init(find);
    Some(Machine {
        library: *library,
        gpus,
        _alone: alone,
        _watched: watch(),
    })
}

fn find() -> (Library, Vec<Gpu>) {
    let gpus = cuda::gpus().unwrap();
    let path = env::var_os("SPARK_CCL_NCCL_LIBRARY");
    let library = Library::open(path.as_deref().map(Path::new)).unwrap();
    println!("{library:?}");
    (library, gpus)
}

/// Ends the process if the test does not end: a thread that is stuck in NCCL or CUDA cannot be.
fn watch() -> Sender<()> {
    const PATIENCE: Duration = Duration::from_secs(60);
    let (watched, end) = mpsc::channel();
    let test = thread::current().name().unwrap_or_default().to_owned();
    thread::spawn(move || {
        if end.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            // Not captured, unlike what `eprintln!` writes.
            let _ = writeln!(std::io::stderr(), "{test} hangs after {PATIENCE:?}");
            std::process::abort();
        }
    });
    watched
}

impl Machine {
    /// Runs `body` for each GPU, on a thread of its own, with its rank of a communicator.
    fn each_rank<T: Send>(
        &self,
        config: &Config,
        body: impl Fn(&'static Gpu, Communicator) -> T + Sync,
    ) -> Vec<T> {
        let id = self.library.unique_id().unwrap();
        self.each_gpu(|rank, gpu| {
            let size = self.gpus.len();
            let comm = Communicator::init_rank(self.library, size, id, rank, config).unwrap();
            body(gpu, comm)
        })
    }

    /// Runs `body` for each GPU, on a thread of its own where it is the current device.
    fn each_gpu<T: Send>(&self, body: impl Fn(usize, &'static Gpu) -> T + Sync) -> Vec<T> {
        let body = &body;
        thread::scope(|scope| {
            let start = |(rank, gpu): (usize, &'static Gpu)| {
                scope.spawn(move || {
                    gpu.enter();
                    body(rank, gpu)
                })
            };
            let threads: Vec<_> = self.gpus.iter().enumerate().map(start).collect();
            let ended = threads.into_iter().map(|thread| thread.join().unwrap());
            ended.collect()
        })
    }
}

fn nonblocking(timeout: Duration) -> Config {
    Config {
        blocking: false,
        timeout,
        ..Config::default()
    }
}

/// Waits for what is in the stream, as a program should.
fn wait(gpu: &Gpu, comm: &Communicator) {
    while !gpu.is_idle() {
        comm.async_error().unwrap();
        thread::sleep(Duration::from_micros(50));
    }
    assert_eq!(comm.async_error().unwrap(), Progress::Done);
}

/// Sums each rank's number, and one: shows that the communicator works, and has these ranks.
fn sum_of_ranks(gpu: &Gpu, comm: &Communicator) -> u64 {
    let mine = gpu.buffer(&[comm.rank().unwrap() as u64 + 1]);
    comm.all_reduce(mine, mine, RedOp::Sum, gpu.stream())
        .unwrap();
    wait(gpu, comm);
    gpu.read(mine)[0]
}

/// What [`sum_of_ranks`] gives for so many.
fn sum_to(ranks: usize) -> u64 {
    (ranks * (ranks + 1) / 2) as u64
}

/// Starts a sum. The first one connects, which takes all ranks; later ones start without the peers.
fn start_sum(gpu: &Gpu, comm: &Communicator) -> Result<(), Error> {
    let buffer = gpu.allocate(1 << 20, DType::F32);
    comm.all_reduce(buffer, buffer, RedOp::Sum, gpu.stream())
}

/// What the library is new enough for. (Which version brought what is tried on NVIDIA's libraries by `real_nccl`.)
fn supported<T>(result: Result<T, Error>) -> Option<T> {
    let probed = match result {
        Err(Error::Unsupported { what, since, found }) => {
            assert!(found < since, "{what}: {found} is not older than {since}");
            Err(format!("{what} needs NCCL {since}"))
        }
        result => Ok(result.unwrap()),
    };
    found(Need::NewestNccl, probed)
}
