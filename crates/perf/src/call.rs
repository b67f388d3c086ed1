//! The calls that are measured: the collectives, how large their buffers are for a size, and how
//! they are called.
//!
//! Knows the library's calls. Must not know how calls are timed or checked, or by which flags they
//! were chosen.

pub(crate) mod buffer;
pub(crate) mod collective;
pub(crate) mod invocation;
pub(crate) mod op;
pub(crate) mod uneven;
