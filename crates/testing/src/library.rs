//! Shared libraries of the workspace, for tests that link C programs with them.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Builds the package's shared library, which cargo does not do for tests: nothing in Rust can link
/// to it. The folder that it is in.
///
/// What it consists of is there already, if cargo selects features as for the workspace's tests: of
/// all packages, and a test of one, whose dependencies count. So the caller is the integration test
/// `test` of the package in the folder `package`, and `tmp` its `CARGO_TARGET_TMPDIR`.
///
/// # Panics
/// It cannot be built.
pub fn build_library(package: &str, test: &str, tmp: &str, file: &str) -> PathBuf {
    let target = Path::new(tmp).parent().unwrap();
    // This test is target[/triple]/profile/deps/name.
    let program = env::current_exe().unwrap();
    let profile = program.parent().and_then(Path::parent).unwrap();
    let above = profile.parent().unwrap();
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args(["build", "--workspace", "--lib", "--test", test])
        .args(["--offline", "--message-format=json", "--profile"])
        .arg(match profile.file_name().unwrap().to_str().unwrap() {
            "debug" => "dev",
            name => name,
        })
        .args(["--manifest-path", &format!("{package}/Cargo.toml")])
        .arg("--target-dir")
        .arg(target);
    if above != target {
        cargo.arg("--target").arg(above.file_name().unwrap());
    }
    let output = cargo.stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "cargo build");
    // Its messages are JSON, in which paths are strings. A reader of JSON would be a dependency of
    // all tests, and some of their empty arrays would no longer have one possible type.
    String::from_utf8(output.stdout)
        .unwrap()
        .split('"')
        .map(Path::new)
        .find(|path| path.ends_with(file))
        .and_then(|path| path.parent().map(Path::to_owned))
        .unwrap_or_else(|| panic!("cargo built no {file}"))
}
