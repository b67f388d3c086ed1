//! Collective communication for Rust, C and Python training code.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod alloc;
mod buffer;
mod builder;
mod call;
mod communicator;
mod engine;
mod error;
mod logging;
mod mesh;
mod plan;
mod redop;
mod registered;
mod signature;
mod split;
mod world;

pub use buffer::{RecvBuf, Region, SendBuf};
pub use builder::{Builder, LaunchInfo, launcher};
pub use call::{
    Call, Failed, InPlace, Nothing, Operands, OutOfPlace, Pending, Receiving, Scope, ScopedPending,
    Sending,
};
pub use communicator::{Communicator, PeerInfo};
pub use error::{Error, ExitClass};
pub use redop::RedOp;
pub use registered::{Registered, RegisteredView, RegisteredViewMut};
pub use spark_ccl_bootstrap::UniqueId;
pub use spark_ccl_compute::{DType, Element, F8E4M3, F8E5M2};
pub use spark_ccl_control::Fault;

/// Version and commit of this build; all ranks must run the same.
pub const VERSION: &str = env!("SPARK_CCL_VERSION");
