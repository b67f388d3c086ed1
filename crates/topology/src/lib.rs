//! One model of a host, and what follows from the models of several.
//!
//! A [`Host`] is plain data: processors, memory, PCI, GPUs, RDMA devices, network interfaces, limits, software. [`live`]
//! reads this machine's, [`recorded`] one that was written down as a folder of files; both by the same code, from sysfs,
//! procfs and netlink, never from the output of a command. A host is also a JSON document, by which it is sent.
//!
//! What follows from hosts is computed by pure functions: [`cages()`] finds the functions of a network card that share a
//! cable, [`rails`](cluster::rails) the ports that lead from one host to another, [`Cluster`] how hosts are cabled.
//! [`rdma`] and [`netif`] select ports and interfaces; the library itself uses them.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod cages;
pub mod cluster;
mod error;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod host;
mod model;
pub mod netif;
pub mod rdma;
mod read;
#[cfg(any(test, feature = "testing"))]
#[allow(clippy::unwrap_used)]
pub mod testing;

pub use cages::cages;
pub use cluster::Cluster;
pub use error::Error;
pub use host::{FORMAT, Host};
pub use model::{
    Address, BUILT_WITHOUT_CUDA, ConfFile, CpuClass, Cuda, CudaDevice, Disk, Gpu, GpuPeer, Library,
    Limit, Limits, Memory, Neighbour, NeighbourState, Netdev, Network, NumaNode, PciFunction,
    PcieLink, PortState, RdmaDevice, RdmaPort, Reach, Route, Software, System,
};
pub use read::{live, recorded};
