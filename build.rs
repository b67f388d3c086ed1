//! Stamps the build with its version and commit, which ranks compare when they meet.

use std::path::Path;
use std::process::Command;

fn main() {
    let version = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    println!("cargo:rustc-env=BUILT_VERSION={version}{}", commit());
    println!("cargo:rerun-if-changed=build.rs");
    // Grows with every commit and checkout, which .git/HEAD does not: that names a branch.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"])
        && Path::new(&log).exists()
    {
        println!("cargo:rerun-if-changed={log}");
    }
}

/// `+` and the commit, where this is built from a checkout. A package that is unpacked within
/// another project's checkout has none: that project's commit says nothing about this crate.
fn commit() -> String {
    git(&["ls-files", "--error-unmatch", "build.rs"])
        .and_then(|_| git(&["rev-parse", "--short=12", "HEAD"]))
        .map_or_else(String::new, |commit| format!("+{commit}"))
}

/// What git answers; `None` where there is no git, or no checkout.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let answer = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    output.status.success().then_some(answer)
}
