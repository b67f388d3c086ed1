//! Collective communication for training and inference code in Rust and C.
//!
//! Ranks are processes or threads, on one host or several. They reduce, gather, scatter and
//! exchange memory; every wait has a deadline, and errors name the rank at fault. No GPU, network
//! card or other library is needed.
//!
//! The cargo features: `cuda`, on by default, is device memory. `future` lets tasks await calls
//! that were started (`PendingFuture`).
//!
//! Begin with the [`tutorial`].

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod alloc;
mod blocks;
mod buffer;
mod builder;
mod call;
mod collectives;
mod communicator;
#[cfg(feature = "cuda")]
pub mod cuda;
mod deadline;
#[cfg(feature = "cuda")]
mod device;
mod engine;
mod error;
mod hearing;
mod host;
mod launch;
mod lineage;
mod logging;
mod measured;
mod membership;
mod mesh;
mod messages;
mod names;
mod observe;
mod opening;
mod peer_link;
mod plan;
mod record;
mod redial;
mod registered;
mod rendezvous;
mod shrink;
mod split;
mod task;
mod untyped;
mod world;

/// How to use the library, chapter by chapter. All code here is compiled and run by the tests.
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

pub use blocks::Blocks;
pub use buffer::{GivenBack, OwnedBuf, RecvBuf, Region, SendBuf};
pub use builder::Builder;
#[cfg(feature = "future")]
pub use call::PendingFuture;
pub use call::{
    Call, Failed, InPlace, Nothing, Operands, OutOfPlace, OwnedOperands, Pending, Receiving, Scope,
    ScopedPending, Sending,
};
pub use communicator::{Communicator, PeerInfo};
pub use error::{Error, ExitClass};
pub use launch::{LaunchInfo, launcher, rank_variables};
pub use peer_link::{Carrier, PeerLink};
pub use plan::Explanation;
pub use registered::{Registered, RegisteredView, RegisteredViewMut};
pub use spark_ccl_bootstrap::UniqueId;
pub use spark_ccl_config::{
    AlgorithmChoice, Backend, GpuLayout, GpuWire, Layout, Links, Net, ParseAlgorithmsError, Path,
};
pub use spark_ccl_control::{Fault, Late, Member};
pub use spark_ccl_fork::Forked;
pub use spark_ccl_transport::Rails;
pub use spark_ccl_types::{
    Algorithm, DType, Element, Extent, F8E4M3, F8E5M2, InPlaceRule, Operation, RedOp, ReduceOp,
    Reducer, Side, bf16, f16,
};
pub use untyped::UntypedCall;

/// Version and commit of this build; all ranks must run the same.
pub const VERSION: &str = env!("SPARK_CCL_VERSION");
