//! The types that programs hold and call: the communicator, its calls, and the memory that it
//! gives. Knows the rooms above it; knows engines for devices only by their trait.

pub(crate) mod alloc;
pub(crate) mod assembly;
pub(crate) mod call;
pub(crate) mod collectives;
pub(crate) mod communicator;
pub(crate) mod messages;
pub(crate) mod record;
pub(crate) mod untyped;
