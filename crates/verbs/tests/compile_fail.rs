//! Programs that must not compile, above all uses of memory that a device may write.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../../tests/suite/compile_fail.rs"]
mod compile_fail;
