//! All algorithms by the checker, the evaluator and the cost model.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod correct;
mod cost;
mod defects;
mod fabric;
mod hosts;
mod in_place;
mod large;
mod random;
