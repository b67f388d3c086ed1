//! Communicators with NCCL on NVIDIA's GPUs, all that are here. Where there are too few, tests are skipped;
//! with `SPARK_CCL_TEST_GPU=1` they fail then.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod buffers;
mod collectives;
mod failures;
mod missing;
mod streams;

use spark_ccl::cuda::{devices, nccl_version};
use spark_ccl::{Backend, Builder, Communicator, Error};
use std::io::Write;
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
    let reason = match devices().and_then(|devices| nccl_version().map(|_| devices.len())) {
        Ok(count) if count >= least => {
            return Some(Gpus {
                count,
                _alone: alone,
                _watched: watch(),
            });
        }
        Ok(count) => format!("{count} GPUs, but {least} are needed"),
        Err(error) => error.to_string(),
    };
    let required = std::env::var_os("SPARK_CCL_TEST_GPU").is_some_and(|value| value == "1");
    assert!(!required, "SPARK_CCL_TEST_GPU=1, but: {reason}");
    eprintln!("SKIPPED: {reason}");
    None
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

/// Where the GPUs are none: has one of their functions for tests called, which takes a number.
fn of_fakes(function: &std::ffi::CStr) -> Option<extern "C" fn(i32)> {
    if std::env::var_os("FAKE_GPUS").is_none() {
        eprintln!("SKIPPED: real GPUs cannot be made to fail");
        return None;
    }
    // SAFETY: the library is there, and its functions for tests are of this type.
    unsafe {
        let library = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW);
        let function = libc::dlsym(library, function.as_ptr());
        assert!(!function.is_null());
        Some(std::mem::transmute::<*mut libc::c_void, extern "C" fn(i32)>(function))
    }
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
