//! Measures on GPUs, as nccl-tests does: every thread has one or more GPUs.
//!
//! Must not know what executes the calls, except for the specifics in `nccl`.

// Unsafe: the driver keeps addresses and handles whose lifetimes the compiler cannot check.
#[allow(unsafe_code)]
mod gpu;
#[allow(unsafe_code)]
mod kernels;

mod call;
mod calls;
mod events;
mod gpus;
mod placement;
mod runner;
mod team;
mod verify;

pub(crate) use team::Team;
