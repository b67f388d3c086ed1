//! Gives the shared library the name that programs look for at run time, its own functions first,
//! and a place in memory for as long as the process lives.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let target = std::env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    if target != "linux" {
        return;
    }
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnccl.so.2");
    // NCCL itself may be mapped, too. This library calls its own functions.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // Threads and destructors of thread-locals run the library's code: it must not be unloaded.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
