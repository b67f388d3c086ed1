//! How values are written, on the command line and in the table.
//!
//! Knows no flag and no column.

pub mod number;
pub mod size;
