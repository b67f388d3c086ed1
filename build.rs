//! Stamps the build with its version and commit, which ranks compare when they meet.

use std::process::Command;

fn main() {
    let version = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    println!("cargo:rustc-env=SPARK_CCL_VERSION={version}{}", commit());
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=.git/HEAD");
}

/// `+` and the commit, where this is built from a checkout.
fn commit() -> String {
    let output = Command::new("git")
        .args(["rev-parse", "--short=12", "HEAD"])
        .output();
    match output {
        Ok(output) if output.status.success() => {
            format!("+{}", String::from_utf8_lossy(&output.stdout).trim())
        }
        _ => String::new(),
    }
}
