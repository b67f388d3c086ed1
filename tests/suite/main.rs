//! The library's tests through its public API: ranks as threads and as real processes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod collectives;
