//! Communicators with NCCL on NVIDIA's GPUs, all that are here. Where there are too few, tests are skipped.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod buffers;
mod collectives;
mod failures;
mod missing;
mod one_stream;
mod order;
mod streams;
mod types;
mod upkeep;

use spark_ccl::cuda::{devices, nccl_version};
use spark_ccl::{Backend, Builder, Communicator, Error};
use spark_ccl_testing::{Need, has};
use std::io::Write;
use std::process::Command;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What a test has for itself while it runs.
struct Gpus {
    count: usize,
    _alone: MutexGuard<'static, ()>,
    _watched: Sender<()>,
}

/// The GPUs, unless there are fewer than the test needs.
fn gpus(least: usize) -> Option<Gpus> {
    // Kernels of several communicators may wait for each other for ever.
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    has(Need::Gpus(least)).then(|| {
        nccl_version().unwrap();
        Gpus {
            count: devices().unwrap().len(),
            _alone: alone,
            _watched: watch(),
        }
    })
}

/// Ends the process if the test does not end: a thread that is stuck in NCCL or CUDA cannot be.
fn watch() -> Sender<()> {
    const PATIENCE: Duration = Duration::from_secs(60);
    let (watched, end) = channel();
    let test = std::thread::current().name().unwrap_or_default().to_owned();
    std::thread::spawn(move || {
        if end.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            // Not captured, unlike what `eprintln!` writes.
            let _ = writeln!(std::io::stderr(), "{test} hangs after {PATIENCE:?}");
            std::process::abort();
        }
    });
    watched
}

/// Runs an ignored test of this program in a process of its own.
fn in_another_process(test: &str) {
    let run = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", test])
        .status();
    assert!(run.unwrap().success(), "{test}");
}

/// Where the GPUs are none: one of their functions for tests, which takes a number.
fn of_fakes(function: &std::ffi::CStr) -> Option<extern "C" fn(i32) -> i32> {
    if !has(Need::FakeGpus) {
        return None;
    }
    // SAFETY: the library is there, and its functions for tests are of this type.
    unsafe {
        let library = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW);
        let function = libc::dlsym(library, function.as_ptr());
        assert!(!function.is_null());
        Some(std::mem::transmute::<
            *mut libc::c_void,
            extern "C" fn(i32) -> i32,
        >(function))
    }
}

/// What such GPUs count; in their order.
#[derive(Clone, Copy)]
enum Count {
    /// Looks at streams and events.
    Looks,
    /// Uses of a stream by another thread than made it.
    Strangers,
    /// Uses of a stream that was destroyed.
    Misuses,
    /// Allocations of NCCL's that were not freed.
    Blocks,
    /// Registrations that were not ended.
    Registrations,
}

/// A count, to be asked for.
fn count(what: Count) -> Option<impl Fn() -> i32> {
    let ask = of_fakes(c"fake_count")?;
    Some(move || ask(what as i32))
}

fn builder() -> Builder {
    Communicator::builder().backend(Backend::Nccl)
}

impl Gpus {
    /// Runs `body` for each GPU, on a thread of its own, with its rank of a communicator.
    fn each<R: Send>(&self, builder: &Builder, body: impl Fn(Communicator) -> R + Sync) -> Vec<R> {
        let ranks = builder.local(self.count).unwrap();
        std::thread::scope(|scope| {
            let body = &body;
            let threads: Vec<_> = ranks
                .into_iter()
                .map(|comm| scope.spawn(move || body(comm)))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        })
    }
}

/// The text of an error that must be there.
fn text<T>(result: Result<T, Error>) -> String {
    match result {
        Ok(_) => panic!("no error"),
        Err(error) => error.to_string(),
    }
}
