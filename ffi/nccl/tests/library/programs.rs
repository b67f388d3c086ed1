//! C programs on host memory, as ranks.

use std::env;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::{PACKAGE, library};

/// Compiles a program of this folder's, and links it with the library by the name that it stands
/// in for.
fn compile(directory: &Path, name: &str) -> PathBuf {
    symlink(library(), directory.join("libnccl.so.2")).unwrap();
    let program = directory.join(name);
    let status = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()))
        .args(["-std=c11", "-D_POSIX_C_SOURCE=200809L", "-O1"])
        .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror"])
        .arg(format!("{PACKAGE}/tests/{name}.c"))
        .arg("-o")
        .arg(&program)
        .arg(library())
        .arg("-lm")
        .arg(format!("-Wl,-rpath,{}", directory.display()))
        .status()
        .expect("a compiler is needed: install gcc, or set CC");
    assert!(status.success(), "the compiler's complaints are above");
    program
}

fn start(program: &Path, id: &Path, rank: usize, size: usize) -> Child {
    Command::new(program)
        .arg(id)
        .args([rank, size].map(|number| number.to_string()))
        .env_clear()
        // A rank that another one leaves waiting says so.
        .env("SPARK_CCL_TIMEOUT", "120")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn all_operations_work_on_host_memory() {
    let directory = tempfile::tempdir().unwrap();
    let program = compile(directory.path(), "host");
    for size in [2, 3, 4] {
        let id = directory.path().join(format!("id-{size}"));
        let ranks = (0..size).map(|rank| start(&program, &id, rank, size));
        let ranks: Vec<_> = ranks.collect();
        let ended = ranks.into_iter().map(Child::wait_with_output);
        let ended: Vec<_> = ended.map(Result::unwrap).collect();
        // The first that fails may only say that another has.
        for output in &ended {
            eprint!("{}", String::from_utf8_lossy(&output.stderr));
        }
        for (rank, output) in ended.iter().enumerate() {
            let said = String::from_utf8_lossy(&output.stdout);
            assert_eq!(said, format!("rank {rank} of {size}: right\n"));
            assert!(output.status.success(), "{:?}", output.status);
        }
    }
}
