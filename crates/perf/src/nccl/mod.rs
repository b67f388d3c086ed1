//! Measuring NCCL on GPUs, as nccl-tests does: every thread has one GPU or several.

// What the driver is handed has no lifetimes that the compiler knows.
#[allow(unsafe_code)]
mod gpu;
#[allow(unsafe_code)]
mod kernels;

mod bed;
mod call;
mod calls;
mod check;
mod events;
mod placement;
mod team;

pub(crate) use team::Team;
