//! Collective communication for training and inference code in Rust and C.
//!
//! Ranks are processes or threads, on one host or several. They reduce, gather, scatter and
//! exchange memory; every wait has a deadline, and errors name the rank at fault. No GPU, network
//! card or other library is needed.
//!
//! Cargo features: `cuda`, on by default, adds device memory. `future` lets tasks await calls that
//! were started (`PendingFuture`).
//!
//! Begin with the [`tutorial`].

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod api;
#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(feature = "cuda")]
mod device;
#[cfg(feature = "cuda")]
mod engine;
mod error;
mod host;
mod members;
mod memory;
mod mesh;
mod observe;
mod opening;
mod plan;
mod task;
mod world;

/// How to use the library, chapter by chapter. The tests compile all Rust code, and run most of it.
pub mod tutorial {
    #[allow(unused_imports, reason = "the chapters link to them")]
    use crate::{
        Builder, Call, Communicator, Error, Failed, Fault, Pending, UniqueId, rank_variables,
    };

    #[doc = include_str!("../docs/tutorial/1-first-all-reduce.md")]
    pub mod first_all_reduce {}
    #[doc = include_str!("../docs/tutorial/2-launchers.md")]
    pub mod launchers {}
    #[doc = include_str!("../docs/tutorial/3-registered-memory.md")]
    pub mod registered_memory {}
    #[doc = include_str!("../docs/tutorial/4-overlap.md")]
    pub mod overlap {}
    #[doc = include_str!("../docs/tutorial/5-errors-and-timeouts.md")]
    pub mod errors_and_timeouts {}
    #[doc = include_str!("../docs/tutorial/6-choosing-paths.md")]
    pub mod choosing_paths {}
    #[doc = include_str!("../docs/tutorial/7-c.md")]
    pub mod c {}
}

#[cfg(feature = "future")]
pub use api::call::PendingFuture;
pub use api::call::{
    Call, Failed, InPlace, Nothing, Operands, OutOfPlace, OwnedOperands, Pending, Receiving, Scope,
    ScopedPending, Sending,
};
pub use api::communicator::{Communicator, PeerInfo};
pub use api::untyped::UntypedCall;
pub use error::{Error, ExitClass};
pub use memory::blocks::Blocks;
pub use memory::buffer::{GivenBack, OwnedBuf, RecvBuf, Region, SendBuf};
pub use memory::registered::{Registered, RegisteredView, RegisteredViewMut};
pub use mesh::peer_link::{Carrier, PeerLink};
pub use opening::builder::Builder;
pub use plan::Explanation;
pub use spark_ccl_bootstrap::{Cancel, UniqueId};
pub use spark_ccl_config::{
    AlgorithmChoice, Backend, GpuLayout, GpuWire, Layout, Links, MOST_CTAS, Net,
    ParseAlgorithmsError, Path,
};
pub use spark_ccl_control::{Fault, Late, Member};
pub use spark_ccl_fork::Forked;
pub use spark_ccl_transport::Rails;
pub use spark_ccl_types::{
    Algorithm, DType, Element, Extent, F8E4M3, F8E5M2, InPlaceRule, Operation, RedOp, ReduceOp,
    Reducer, Side, bf16, f16,
};
pub use world::VERSION;
pub use world::launch::{LaunchInfo, launcher, rank_variables};
