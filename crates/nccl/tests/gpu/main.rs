//! Tests with all NVIDIA GPUs of the machine, and with the libnccl that `SPARK_CCL_NCCL_LIBRARY`
//! names, or else the system's. Without GPUs, or with too few, tests are skipped.

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

/// The machine, used exclusively by one test at a time.
struct Machine {
    library: Library,
    gpus: &'static [Gpu],
    _alone: MutexGuard<'static, ()>,
    _watched: Sender<()>,
}

/// The machine; `None` if it has fewer GPUs than the test needs.
fn machine(ranks: usize) -> Option<Machine> {
    static FOUND: OnceLock<(Library, Vec<Gpu>)> = OnceLock::new();
    // Kernels of several communicators, and calls that free memory, can deadlock with each other.
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
    let library = match path.as_deref().map(Path::new) {
        // SAFETY: the variable names NCCL, whose initialisers any process may run.
        Some(path) => unsafe { Library::open_at(path) },
        None => Library::open(),
    };
    let library = library.unwrap();
    println!("{library:?}");
    (library, gpus)
}

/// Aborts the process if the test hangs: a thread that is stuck in NCCL or CUDA cannot be stopped.
fn watch() -> Sender<()> {
    const PATIENCE: Duration = Duration::from_secs(60);
    let (watched, end) = mpsc::channel();
    let test = thread::current().name().unwrap_or_default().to_owned();
    thread::spawn(move || {
        if end.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            // The test harness captures what `eprintln!` writes, but not this.
            let _ = writeln!(std::io::stderr(), "{test} hangs after {PATIENCE:?}");
            std::process::abort();
        }
    });
    watched
}

impl Machine {
    /// Runs `body` for each GPU, on a thread of its own, with one rank of a communicator.
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

    /// Runs `body` for each GPU, on a thread of its own whose current device the GPU is.
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

/// Waits for the stream, and polls for errors as a program should.
fn wait(gpu: &Gpu, comm: &Communicator) {
    while !gpu.is_idle() {
        comm.async_error().unwrap();
        thread::sleep(Duration::from_micros(50));
    }
    assert_eq!(comm.async_error().unwrap(), Progress::Done);
}

/// Sums each rank's number plus one: shows that the communicator works and has these ranks.
fn sum_of_ranks(gpu: &Gpu, comm: &Communicator) -> u64 {
    let mine = gpu.buffer(&[comm.rank().unwrap() as u64 + 1]);
    comm.all_reduce(mine, mine, RedOp::Sum, gpu.stream())
        .unwrap();
    wait(gpu, comm);
    gpu.read(mine)[0]
}

/// The result of [`sum_of_ranks`] for this many ranks.
fn sum_to(ranks: usize) -> u64 {
    (ranks * (ranks + 1) / 2) as u64
}

/// Starts a sum. The first one connects, which needs all ranks; later ones start without the peers.
fn start_sum(gpu: &Gpu, comm: &Communicator) -> Result<(), Error> {
    let buffer = gpu.allocate(1 << 20, DType::F32);
    comm.all_reduce(buffer, buffer, RedOp::Sum, gpu.stream())
}

/// The result, if the library is new enough. (`real_nccl` tests which version added what.)
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
