//! Gives the shared library the name that programs look for at run time, and keeps it in memory.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let target = std::env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    if target != "linux" {
        return;
    }
    // The number changes with the ABI. What is at hand is linked with under the name without a
    // number.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libspark_ccl.so.0");
    // Threads of the library, and destructors of thread-locals, run code of it: it must not be
    // unloaded under them.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
