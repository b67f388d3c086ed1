//! Builds the library, and C programs that link with it.

use std::env;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use spark_ccl_testing::build_library;

/// The name of the library that programs look for when they start.
pub(crate) const SONAME: &str = "libspark_ccl.so.0";

pub(crate) const PACKAGE: &str = env!("CARGO_MANIFEST_DIR");

/// The folder of the library, which is built once.
pub(crate) fn library() -> &'static Path {
    static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
        let tmp = env!("CARGO_TARGET_TMPDIR");
        build_library(PACKAGE, "c_program", tmp, "libspark_ccl.so")
    });
    &FOLDER
}

pub(crate) const C11: (&str, &[&str]) = ("cc", &["-std=c11"]);
pub(crate) const CPP17: (&str, &[&str]) = ("c++", &["-std=c++17", "-x", "c++"]);

/// Compiles a program of the package's, or of the examples, by a compiler for a language.
pub(crate) fn compile(
    directory: &Path,
    source: &str,
    (compiler, language): (&str, &[&str]),
) -> PathBuf {
    let folder = library();
    let at_run_time = directory.join(SONAME);
    if !at_run_time.exists() {
        symlink(folder.join("libspark_ccl.so"), at_run_time).unwrap();
    }
    let name = Path::new(source).file_stem().unwrap().to_str().unwrap();
    let program = directory.join(format!("{name}-{}", language[0].trim_start_matches('-')));
    let variable = if compiler == "cc" { "CC" } else { "CXX" };
    let status = Command::new(env::var_os(variable).unwrap_or_else(|| compiler.into()))
        .args(language)
        .args(["-D_POSIX_C_SOURCE=200809L", "-O1", "-pthread"])
        .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror"])
        .arg(format!("-I{PACKAGE}/include"))
        .arg(format!("{PACKAGE}/{source}"))
        .arg("-o")
        .arg(&program)
        .args(["-x", "none", "-L"])
        .arg(folder)
        .args(["-lspark_ccl", "-lm"])
        .arg(format!("-Wl,-rpath,{}", directory.display()))
        .status()
        .expect("a compiler is needed: install gcc and g++, or set CC and CXX");
    assert!(status.success(), "the compiler's complaints are above");
    program
}
