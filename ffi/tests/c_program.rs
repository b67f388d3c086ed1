//! A C program, compiled against the header and linked with the library.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::env;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const PACKAGE: &str = env!("CARGO_MANIFEST_DIR");

/// Builds the library, which cargo does not do for tests: nothing in Rust can link to it.
fn library() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    // This test is target[/triple]/profile/deps/name.
    let test = env::current_exe().unwrap();
    let profile = test.parent().and_then(Path::parent).unwrap();
    let above = profile.parent().unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .args(["build", "--offline", "--message-format=json", "--profile"])
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
        .expect("cargo built no libspark_ccl.so")
}

/// Compiles the program into `directory`.
fn compile(directory: &Path) -> PathBuf {
    let library = library();
    let folder = library.parent().unwrap();
    let program = directory.join("all_reduce");
    let status = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()))
        .args(["-std=c99", "-D_POSIX_C_SOURCE=200809L", "-O1"])
        .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror"])
        .arg(format!("-I{PACKAGE}/include"))
        .arg(format!("{PACKAGE}/tests/all_reduce.c"))
        .arg("-o")
        .arg(&program)
        .arg("-L")
        .arg(folder)
        .arg("-lspark_ccl")
        .arg(format!("-Wl,-rpath,{}", folder.display()))
        .status()
        .expect("a C compiler is needed: install gcc, or set CC");
    assert!(status.success(), "the C compiler's complaints are above");
    program
}

fn lines(output: &Output) -> Vec<String> {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?}: {error}", output.status);
    let mut lines: Vec<String> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(str::to_owned)
        .collect();
    lines.sort();
    lines
}

#[test]
fn ranks_in_c_reduce() {
    let directory = tempfile::tempdir().unwrap();
    let program = compile(directory.path());

    let output = Command::new(&program).env_clear().output().unwrap();
    assert_eq!(lines(&output), ["rank 0 of 2: right", "rank 1 of 2: right"]);

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    drop(listener);
    let ranks: Vec<_> = ["0", "1"]
        .map(|rank| {
            Command::new(&program)
                .arg("env")
                .env_clear()
                .envs([
                    ("RANK", rank),
                    ("WORLD_SIZE", "2"),
                    ("LOCAL_RANK", rank),
                    ("MASTER_ADDR", "127.0.0.1"),
                    ("MASTER_PORT", &port),
                ])
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .into_iter()
        .collect();
    for (rank, process) in ranks.into_iter().enumerate() {
        let output = process.wait_with_output().unwrap();
        assert_eq!(lines(&output), [format!("rank {rank} of 2: right")]);
    }
}
