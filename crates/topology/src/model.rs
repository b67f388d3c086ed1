//! The parts of a host, as plain data. Nothing here reads the machine (`read`) or draws conclusions
//! (`cluster`).

mod gpu;
mod network;
mod pci;
mod rdma;
mod software;
mod system;

pub use gpu::{BUILT_WITHOUT_CUDA, Cuda, CudaDevice, Gpu, GpuPeer, Reach};
pub use network::{Address, Neighbour, NeighbourState, Netdev, Network, Route, Traffic};
pub use pci::{PciFunction, PcieLink};
pub use rdma::{PortState, RdmaDevice, RdmaPort};
pub use software::{ConfFile, Library, Software};
pub use system::{CpuClass, Disk, HostMemory, Limit, Limits, NumaNode, System};
