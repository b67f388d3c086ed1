//! C ABI of spark-ccl; `include/spark_ccl.h` is its documentation.
//!
//! Every function checks its pointers for null, catches panics, and returns a result code; the
//! message behind the code is the calling thread's [`spark_ccl_last_error`]. Communicators and
//! requests are handles in tables. The common part of libraries for C is in `crates/abi`. Nothing
//! here is generic over element types: calls go to the library's untyped core.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod blocks;
pub mod collectives;
pub mod comm;
pub mod device;
pub mod groups;
#[cfg(test)]
mod header;
pub mod log;
pub mod memory;
pub mod options;
mod registered;
pub mod rendezvous;
pub mod requests;
mod run;
mod status;
pub mod unique_id;

use std::ffi::{c_char, c_int};

use spark_ccl_abi::failure::last_error;

/// `spark_ccl_version`: 10000 times the major, 100 times the minor, and the patch number.
#[unsafe(no_mangle)]
pub extern "C" fn spark_ccl_version() -> c_int {
    let part = |text: &str| text.parse::<c_int>().unwrap_or(0);
    10_000 * part(env!("CARGO_PKG_VERSION_MAJOR"))
        + 100 * part(env!("CARGO_PKG_VERSION_MINOR"))
        + part(env!("CARGO_PKG_VERSION_PATCH"))
}

/// `spark_ccl_result_string`.
#[unsafe(no_mangle)]
pub extern "C" fn spark_ccl_result_string(result: c_int) -> *const c_char {
    status::name(result).as_ptr()
}

/// `spark_ccl_last_error`.
#[unsafe(no_mangle)]
pub extern "C" fn spark_ccl_last_error() -> *const c_char {
    last_error()
}
