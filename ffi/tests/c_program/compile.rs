//! Builds the library, and C programs that link with it.

use std::env;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

/// The name of the library that programs look for when they start.
pub(crate) const SONAME: &str = "libspark_ccl.so.0";

pub(crate) const PACKAGE: &str = env!("CARGO_MANIFEST_DIR");

/// The folder of the library, which is built once.
pub(crate) fn library() -> &'static Path {
    static FOLDER: LazyLock<PathBuf> = LazyLock::new(build);
    &FOLDER
}

/// Builds the library, which cargo does not do for tests: nothing in Rust can link to it. The
/// folder that it is in.
///
/// What it consists of is there already, if cargo selects features as for the workspace's tests: of
/// all packages, and a test of one, whose dependencies count.
fn build() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    // This test is target[/triple]/profile/deps/name.
    let test = env::current_exe().unwrap();
    let profile = test.parent().and_then(Path::parent).unwrap();
    let above = profile.parent().unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .args(["build", "--workspace", "--lib", "--test", "c_program"])
        .args(["--offline", "--message-format=json", "--profile"])
        .arg(match profile.file_name().unwrap().to_str().unwrap() {
            "debug" => "dev",
            name => name,
        })
        .args(["--manifest-path", &format!("{PACKAGE}/Cargo.toml")])
        .arg("--target-dir")
        .arg(target);
    if above != target {
        cargo.arg("--target").arg(above.file_name().unwrap());
    }
    let output = cargo.stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "cargo build");
    String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .flat_map(|message| message["filenames"].as_array().cloned().unwrap_or_default())
        .filter_map(|file| file.as_str().map(PathBuf::from))
        .find(|file| file.ends_with("libspark_ccl.so"))
        .and_then(|file| file.parent().map(Path::to_owned))
        .expect("cargo built no libspark_ccl.so")
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
