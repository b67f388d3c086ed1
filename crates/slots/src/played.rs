//! The kernels' code, compiled for this machine, with a thread for each CTA, and with the proxies
//! and carriers of the library. It needs a C++ compiler, and no GPU.

mod buffers;
mod failures;
mod messages;
mod mixed;
#[path = "../../gpu/tests/oracle/mod.rs"]
mod oracle;
mod results;
mod short;
mod world;

use std::ffi::c_void;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use libloading::Library;
use spark_ccl_testing::{Need, has};

type Play = unsafe extern "C" fn(*const c_void, u32, u32, u32, u64, u32);

/// `play` of `tests/kernel.cpp`, if there is a compiler.
fn play() -> Option<Play> {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    if !has(Need::CppCompiler) {
        return None;
    }
    let library = LIBRARY.get_or_init(compiled);
    // SAFETY: `play` in `kernel.cpp` has the type `Play`, and its library stays loaded: the static
    // owns it.
    Some(unsafe { *library.get::<Play>("play").unwrap() })
}

/// Whether a thread sanitizer looks on: it reports reads of records together with flags as races.
fn is_watched() -> bool {
    std::env::var("SPARK_CCL_TEST_CXXFLAGS").is_ok_and(|flags| flags.contains("thread"))
}

/// A library of its own; a sanitizer in the flags is that of this test program.
fn compiled() -> Library {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().unwrap();
    let [object, library] = ["kernel.o", "kernel.so"].map(|name| folder.path().join(name));
    let flags = std::env::var("SPARK_CCL_TEST_CXXFLAGS").unwrap_or_default();
    let run = |command: &mut Command| assert!(command.status().unwrap().success());
    run(Command::new("c++")
        .args([
            "-std=c++17",
            "-O1",
            "-g",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-fPIC",
        ])
        .args(["-ffp-contract=off", "-c"])
        .args(flags.split_whitespace())
        .arg("-I")
        .arg(sources.join("../gpu/tests"))
        .arg(sources.join("tests/kernel.cpp"))
        .arg("-o")
        .arg(&object));
    run(Command::new("c++")
        .arg("-shared")
        .arg(&object)
        .arg("-o")
        .arg(&library));
    // SAFETY: the library was just compiled from `kernel.cpp`, which has no initialisers. It stays
    // mapped after the file is gone.
    unsafe { Library::new(library).unwrap() }
}
