//! The shared library, and C programs that are linked with it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod exits;
mod exports;
mod programs;

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use spark_ccl_testing::build_library;

const PACKAGE: &str = env!("CARGO_MANIFEST_DIR");
const FILE: &str = "libspark_nccl.so";

/// The library, which is built once.
fn library() -> &'static Path {
    static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
        let tmp = env!("CARGO_TARGET_TMPDIR");
        build_library(PACKAGE, "library", tmp, FILE).join(FILE)
    });
    &FOLDER
}
