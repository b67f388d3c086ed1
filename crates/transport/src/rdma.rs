//! RDMA between hosts: the local ports, and links over the rails to a peer.

pub mod link;
mod local;
mod registry;

pub use local::{LocalDevice, LocalPort, devices, library, no_device};
pub use registry::{Keys, Reach, RegisteredMemory, Registration, Registry};
pub use spark_ccl_topology::rdma::*;
pub use spark_ccl_verbs::device_fence;
