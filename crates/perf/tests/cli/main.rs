//! Runs the program itself, with real processes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod arguments;
mod check;
mod cluster;
mod collectives;
mod discover;
mod fake_gpus;
mod faults;
mod firewall;
mod gids;
mod gpus;
mod in_order;
mod launch;
mod launch_here;
mod lldp;
mod netplan;
mod patience;
mod probe;
mod processes;
mod program;
mod rdma;
mod reports;
mod simulate;
mod survey;
mod tcp;
mod top;
mod tune;
