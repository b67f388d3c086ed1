//! How values are written, on the command line and in the table.
//!
//! Knows no flag and no column.

pub(crate) mod hex;
pub(crate) mod number;
pub(crate) mod op;
pub(crate) mod pair;
pub(crate) mod size;
