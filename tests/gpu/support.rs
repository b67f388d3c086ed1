//! What tests on GPUs have in common, whatever the backend is.

use std::io::Write;
use std::process::Command;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use spark_ccl::{Builder, Communicator, Error};
use spark_ccl_testing::{Need, has};

/// What a test has for itself while it runs.
pub(crate) struct Gpus {
    /// The ranks that a test has on them.
    pub(crate) count: usize,
    _alone: MutexGuard<'static, ()>,
    _watched: Sender<()>,
}

impl Gpus {
    /// Waits until no other test runs.
    pub(crate) fn alone(count: usize) -> Self {
        // Kernels of several communicators may wait for each other for ever.
        static ALONE: Mutex<()> = Mutex::new(());
        Self {
            count,
            _alone: ALONE.lock().unwrap_or_else(PoisonError::into_inner),
            _watched: watch(),
        }
    }

    /// Runs `body` for each rank of a communicator, on a thread of its own.
    pub(crate) fn each<R: Send>(
        &self,
        builder: &Builder,
        body: impl Fn(Communicator) -> R + Sync,
    ) -> Vec<R> {
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

/// Ends the process if the test does not end: a thread that is stuck in NCCL or CUDA cannot be.
fn watch() -> Sender<()> {
    // Some tests make a thousand communicators.
    const PATIENCE: Duration = Duration::from_secs(300);
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
pub(crate) fn in_another_process(test: &str) {
    let run = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", test])
        .status();
    assert!(run.unwrap().success(), "{test}");
}

/// Waits until the communicator has failed.
pub(crate) fn until_failed(comm: &Communicator) {
    while comm.check().is_ok() {
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Where the GPUs are none: one of their functions for tests, which takes a number.
pub(crate) fn of_fakes(function: &std::ffi::CStr) -> Option<extern "C" fn(i32) -> i32> {
    if !has(Need::FakeGpus) {
        return None;
    }
    // SAFETY: the library is loaded, because `has` found it to be the one without GPUs, whose
    // functions for tests take and return an `int`. It is never unloaded, so the function stays.
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

/// The text of an error that must be there.
pub(crate) fn text<T>(result: Result<T, Error>) -> String {
    match result {
        Ok(_) => panic!("no error"),
        Err(error) => error.to_string(),
    }
}

/// Without a GPU, a communicator's error says so.
pub(crate) fn lack_of_gpus_is_said(builder: &Builder) {
    if !has(Need::NoGpus) {
        return;
    }
    let error = builder.local(2).unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
    let said = error.to_string();
    assert!(
        said.contains("libcuda") || said.contains("finds no GPU"),
        "{said}"
    );
}
