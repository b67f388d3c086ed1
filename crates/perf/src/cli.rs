//! The flags of measurements, their checked form, and what several commands take from the command
//! line.
//!
//! Knows the names of collectives, and the columns of the table. Must not know how anything is
//! measured, or where the ranks come from.

pub(crate) mod args;
mod help;
pub(crate) mod options;
pub(crate) mod ranks;
pub(crate) mod sweep;
pub(crate) mod values;
