//! One model of a host, and what can be derived from the models of several hosts.
//!
//! A [`Host`] is plain data: processors, memory, PCI, GPUs, RDMA devices, network interfaces,
//! limits, software. [`live`] reads this machine, [`recorded`] a folder of recorded files; both use
//! the same code, which reads sysfs, procfs and netlink and never parses a command's output. Hosts
//! are sent to other machines as JSON.
//!
//! Everything derived is a pure function of hosts: [`cages()`] finds the PCI functions that share a
//! cable, [`rails`](cluster::rails) the ports that join two hosts, [`Cluster`] how hosts are
//! cabled. [`rdma`] and [`netif`] select the ports and interfaces that the library uses, [`Cores`]
//! the cores that a rank has to itself. This crate knows nothing about links or checks;
//! `spark-perf doctor` judges.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod cages;
pub mod cgroup;
pub mod cluster;
mod cores;
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
pub use cores::Cores;
pub use error::Error;
pub use host::{FORMAT, Host};
pub use model::{
    Address, BUILT_WITHOUT_CUDA, ConfFile, CpuClass, Cuda, CudaDevice, Disk, Gpu, GpuPeer,
    HostMemory, Library, Limit, Limits, Neighbour, NeighbourState, Netdev, Network, NumaNode,
    PciFunction, PcieLink, PortState, RdmaDevice, RdmaPort, Reach, Route, Software, System,
    Traffic,
};
pub use read::{live, recorded};
