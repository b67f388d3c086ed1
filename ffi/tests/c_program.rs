//! C programs, compiled against the header and linked with the library.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::env;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const PACKAGE: &str = env!("CARGO_MANIFEST_DIR");

/// Builds the library, which cargo does not do for tests: nothing in Rust can link to it. The folder that it is in.
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
        .and_then(|file| file.parent().map(Path::to_owned))
        .expect("cargo built no libspark_ccl.so")
}

const C11: (&str, &[&str]) = ("cc", &["-std=c11"]);
const CPP17: (&str, &[&str]) = ("c++", &["-std=c++17", "-x", "c++"]);

/// Compiles a program of the package's, or of the examples, by a compiler for a language.
fn compile(directory: &Path, source: &str, (compiler, language): (&str, &[&str])) -> PathBuf {
    let folder = library();
    let name = Path::new(source).file_stem().unwrap().to_str().unwrap();
    let program = directory.join(format!("{name}-{}", language[0].trim_start_matches('-')));
    let variable = if compiler == "cc" { "CC" } else { "CXX" };
    let status = Command::new(env::var_os(variable).unwrap_or_else(|| compiler.into()))
        .args(language)
        .args(["-D_POSIX_C_SOURCE=200809L", "-O1"])
        .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror"])
        .arg(format!("-I{PACKAGE}/include"))
        .arg(format!("{PACKAGE}/{source}"))
        .arg("-o")
        .arg(&program)
        .args(["-x", "none", "-L"])
        .arg(&folder)
        .args(["-lspark_ccl", "-lm"])
        .arg(format!("-Wl,-rpath,{}", folder.display()))
        .status()
        .expect("a compiler is needed: install gcc and g++, or set CC and CXX");
    assert!(status.success(), "the compiler's complaints are above");
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

/// Runs a program as so many ranks; what they say, by rank.
fn launch(program: &Path, arguments: &[&str], ranks: usize) -> Vec<Vec<String>> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    drop(listener);
    let size = ranks.to_string();
    let ranks: Vec<_> = (0..ranks)
        .map(|rank| {
            let rank = rank.to_string();
            Command::new(program)
                .args(arguments)
                .env_clear()
                .envs([
                    ("RANK", rank.as_str()),
                    ("WORLD_SIZE", &size),
                    ("LOCAL_RANK", &rank),
                    ("MASTER_ADDR", "127.0.0.1"),
                    ("MASTER_PORT", &port),
                ])
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let ended = ranks
        .into_iter()
        .map(|rank| rank.wait_with_output().unwrap());
    ended.map(|output| lines(&output)).collect()
}

/// Runs a program whose ranks find everything right.
fn verify(program: &Path, arguments: &[&str], ranks: usize) {
    let expected: Vec<_> = (0..ranks)
        .map(|rank| [format!("rank {rank} of {ranks}: right")])
        .collect();
    assert_eq!(launch(program, arguments, ranks), expected);
}

#[test]
fn ranks_in_c_reduce() {
    let directory = tempfile::tempdir().unwrap();
    let program = compile(directory.path(), "tests/ranks.c", C11);
    let output = Command::new(&program).env_clear().output().unwrap();
    assert_eq!(lines(&output), ["rank 0 of 2: right", "rank 1 of 2: right"]);
    verify(&program, &["env"], 2);
}

#[test]
fn all_collectives_work_in_c_and_cpp() {
    let directory = tempfile::tempdir().unwrap();
    let program = compile(directory.path(), "tests/collectives.c", C11);
    for ranks in [1, 2, 3, 5] {
        verify(&program, &[], ranks);
    }
    let program = compile(directory.path(), "tests/collectives.c", CPP17);
    verify(&program, &[], 2);
}

#[test]
fn the_examples_do_what_they_say() {
    let directory = tempfile::tempdir().unwrap();
    for language in [C11, CPP17] {
        let program = |name| {
            let source = format!("../examples/c/{name}.c");
            compile(directory.path(), &source, language)
        };
        assert_eq!(
            launch(&program("all_reduce"), &[], 3),
            [0, 1, 2].map(|rank| [format!("rank {rank} of 3: 3, 3")])
        );
        assert_eq!(
            launch(&program("overlap"), &[], 2),
            [0, 1].map(|rank| [format!(
                "rank {rank} of 2: 8 layers averaged; the last begins with 7.5"
            )])
        );
        let said = launch(&program("recover"), &[], 3);
        assert!(said[2].is_empty(), "{said:?}");
        for rank in 0..2 {
            // Sorted: what the rank has heard, and what it does then.
            let [goes_on, heard] = &said[rank][..] else {
                panic!("{said:?}");
            };
            assert_eq!(*goes_on, format!("rank {rank} of 2 goes on"));
            assert!(heard.contains("rank 2"), "{said:?}");
        }
    }
}

/// The shared library has the functions of the header, and nothing else.
#[test]
fn only_the_header_is_exported() {
    let output = Command::new("nm")
        .args(["-D", "--defined-only", "--format=posix"])
        .arg(library().join("libspark_ccl.so"))
        .output()
        .expect("nm is needed: install binutils");
    assert!(output.status.success());
    let symbols = String::from_utf8(output.stdout).unwrap();
    let mut exported: Vec<&str> = symbols
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    exported.sort_unstable();
    let header = std::fs::read_to_string(format!("{PACKAGE}/include/spark_ccl.h")).unwrap();
    let mut declared: Vec<&str> = header
        .lines()
        .filter(|line| {
            line.starts_with("spark_ccl_")
                || line.starts_with("int ")
                || line.starts_with("const char *")
        })
        .filter_map(|line| line.split('(').next())
        .filter_map(|start| start.rsplit([' ', '*']).next())
        .collect();
    declared.sort_unstable();
    assert_eq!(exported, declared);
}
