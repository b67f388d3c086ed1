//! Collective algorithms as data.
//!
//! A [`Schedule`] lists what one rank sends, receives, reduces and copies, as a sequence of
//! fixed-size, pointer-free [`Step`]s per channel. It is a pure function of the rank and the
//! [`Shape`]: it stores no steps, but computes each when it is requested. The executor, the checker
//! and the cost model all use the same schedules.
//!
//! ```
//! use spark_ccl_sched::{Algorithm, Kind, Shape, Steps, schedule};
//! use spark_ccl_types::Operation;
//!
//! let shape = Shape { rank: 0, size: 2, count: 100, root: 0, chunk: 64, hosts: None };
//! let schedule = schedule(Operation::AllReduce, Algorithm::Ring, true, shape)?;
//! let kinds: Vec<Kind> = schedule.walk(0).map(|step| step.kind).collect();
//! assert_eq!(kinds, [Kind::Send, Kind::RecvReduceCopySend, Kind::Recv]);
//! # Ok::<(), spark_ccl_sched::Unsupported>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod algorithms;
pub mod check;
pub mod cost;
mod defect;
mod hosts;
pub mod lockstep;
mod rounds;
mod schedule;
mod shape;
mod step;
mod steps;

pub use algorithms::{AllToAllV, all_to_all_v};
pub use defect::{Defect, Problem, Stuck};
pub use hosts::Hosts;
pub use schedule::{Schedule, schedule};
pub use shape::{Shape, Unsupported};
pub use spark_ccl_types::Algorithm;
pub use step::{Buf, Kind, Rank, Span, Step};
pub use steps::{Steps, Walk};
