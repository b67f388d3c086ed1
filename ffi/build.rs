//! Names the library within itself, so that programs linked by path find it by name.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libspark_ccl.so");
}
