//! Tests with a fake libnccl, which records its calls and returns the results set by the test.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod arguments;
mod calls;
mod endings;
mod groups;
mod loading;
mod nonblocking;

use std::env;
use std::ffi::{CStr, CString, c_char, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;

use spark_ccl_nccl::{Communicator, Config, DType, DeviceSlice, Error, Library, Stream};
use tempfile::TempDir;

/// A loaded copy of the fake, with a journal of its own.
struct Fake {
    library: Library,
    itself: libloading::Library,
    _folder: TempDir,
}

impl Fake {
    /// The fake with the newest known version.
    fn new() -> Self {
        Self::of(23_007)
    }

    fn of(version: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = compile(folder.path(), &[&format!("-DVERSION={version}")]);
        Self {
            library: open_at(&path).unwrap(),
            // SAFETY: the fake has no initialisers.
            itself: unsafe { libloading::Library::new(&path) }.unwrap(),
            _folder: folder,
        }
    }

    /// Rank 1 of 4, on device 1.
    fn rank(&self, config: &Config) -> Communicator {
        let id = self.library.unique_id().unwrap();
        let comm = Communicator::init_rank(self.library, 4, id, 1, config).unwrap();
        self.journal();
        comm
    }

    /// The calls since the journal was last read.
    fn journal(&self) -> Vec<String> {
        // SAFETY: the type is that of `fake_journal` in nccl.c, which takes nothing and returns its
        // buffer.
        let text = unsafe { self.get::<extern "C" fn() -> *const c_char>("fake_journal")() };
        // SAFETY: the journal ends with a zero, and only this thread calls the fake meanwhile.
        let text = unsafe { CStr::from_ptr(text) }.to_str().unwrap();
        let lines = text.lines().map(str::to_owned).collect();
        // SAFETY: the type is that of `fake_clear` in nccl.c.
        unsafe { self.get::<extern "C" fn()>("fake_clear")() };
        lines
    }

    /// Makes the next call of a function fail.
    fn fail(&self, function: &str, code: i32) {
        let function = CString::new(function).unwrap();
        // SAFETY: the type is that of `fake_fail` in nccl.c.
        let fail = unsafe { self.get::<extern "C" fn(*const c_char, i32)>("fake_fail") };
        fail(function.as_ptr(), code);
    }

    /// Makes each call complete only after this many polls.
    fn progress(&self, looks: i32) {
        // SAFETY: the type is that of `fake_progress` in nccl.c.
        unsafe { self.get::<extern "C" fn(i32)>("fake_progress")(looks) };
    }

    /// Makes communicators report an asynchronous error.
    fn asynchronous(&self, code: i32) {
        // SAFETY: the type is that of `fake_async` in nccl.c.
        unsafe { self.get::<extern "C" fn(i32)>("fake_async")(code) };
    }

    /// # Safety
    ///
    /// `F` must be the function's type.
    unsafe fn get<F: Copy>(&self, name: &str) -> F {
        // SAFETY: `F` is the type of the function `name`, as this function requires, and the
        // library stays loaded while the symbol is borrowed.
        *unsafe { self.itself.get::<F>(name) }.unwrap()
    }
}

/// Loads a fake, or fails.
fn open_at(path: &Path) -> Result<Library, Error> {
    // SAFETY: the fake has no initialisers, and its functions have the types of NCCL's.
    unsafe { Library::open_at(path) }
}

/// Compiles the fake into a folder.
fn compile(folder: &Path, flags: &[&str]) -> PathBuf {
    let library = folder.join("libnccl.so.2");
    let status = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()))
        .args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"])
        .args(["-shared", "-fPIC"])
        .args(flags)
        .arg(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/fake_nccl/nccl.c"
        ))
        .arg("-o")
        .arg(&library)
        .status()
        .expect("a C compiler is needed: install gcc, or set CC");
    assert!(status.success(), "the C compiler's complaints are above");
    library
}

/// Floats at an address that is never accessed, on device 1.
fn floats(start: usize, len: usize) -> DeviceSlice {
    slice(start, len, DType::F32, 1)
}

fn slice(start: usize, len: usize, dtype: DType, device: i32) -> DeviceSlice {
    // SAFETY: the fake never accesses the memory.
    unsafe { DeviceSlice::from_raw(start as *mut c_void, len, dtype, device) }
}

/// A stream of device 1.
fn stream() -> Stream {
    // SAFETY: the fake never uses the stream.
    unsafe { Stream::from_raw(0x99 as *mut c_void, 1) }
}
