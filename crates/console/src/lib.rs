//! The common ground of the two halves of spark-perf: the commands that measure (`perf`), and those
//! about hosts (`cluster`).
//!
//! Knows the name of the program; knows no command and no flag. Each folder is one concern:
//!
//! | folder | concern |
//! |---|---|
//! | `command`, `error` | runs a command; its errors and exit codes |
//! | `output`, `draft` | what is printed; files that are written as a whole |
//! | `notation` | values as text |
//! | `document`, `rails` | JSON that one half writes and the other reads |
//! | `plot` | charts as SVG or PNG |
//! | `socket` | sockets that are bound to an interface |
//! | `signals`, `tether` | signals that end this process; ends a child with its parent |

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
#[allow(unsafe_code)]
pub mod tether;

pub use command::{run_named, run_parsed, settings};
pub use error::{Error, Failure, exit};
pub use output::{json, plain, print, print_error};
