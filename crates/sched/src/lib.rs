//! Collective algorithms as data.
//!
//! A [`Schedule`] says what one rank sends, receives, reduces and copies, as a sequence of
//! fixed-size, pointer-free [`Step`]s per channel. It is a pure function of the rank and the
//! [`Shape`]: nothing is stored, steps are computed when asked for. The same schedules feed the
//! executor, the checker and the cost model.
#![forbid(unsafe_code)]

mod step;

pub use step::{Buf, Kind, Rank, Span, Step};
