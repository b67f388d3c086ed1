//! What the measuring program and the cluster tools of spark-perf share: how a command is run, what
//! it prints, how it writes values, files and plots, and the JSON that one program reads of the
//! other.
//!
//! Knows no command and no flag.

#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod command;
pub mod document;
pub mod draft;
mod error;
pub mod notation;
mod output;
pub mod plot;
pub mod rails;
pub mod signals;
pub mod socket;
pub mod stats;
#[allow(unsafe_code)]
pub mod tether;

pub use command::{run_named, run_parsed, settings};
pub use error::{Error, Failure, exit};
pub use output::{plain, print, print_error, tell_if_long};
