//! Gives the shared library the name that programs look for at run time, and keeps it in memory.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let target = std::env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    if target != "linux" {
        return;
    }
    // The number changes with the ABI. Linkers find the library by its name without the number.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libspark_ccl.so.0");
    // Threads and destructors of thread-locals run the library's code: it must not be unloaded.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
