//! The memory of calls: of the host, registered, and of devices. Knows no communicator.

pub(crate) mod blocks;
pub(crate) mod buffer;
#[cfg(feature = "cuda")]
pub(crate) mod device;
pub(crate) mod registered;
