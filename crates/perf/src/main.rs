//! spark-perf measures collectives, with the flags, the table and the checks of nccl-tests.
//!
//! This file only chooses the command. Each folder is one concern, and depends on those above it
//! only:
//!
//! | folder | concern |
//! |---|---|
//! | `exact` | numbers whose reduction is exact |
//! | `call` | what is measured: collectives, their sizes, buffers and calls |
//! | `report` | results, as table, JSON, plot, or beside those of an earlier run |
//! | `cli` | flags of measurements, checked |
//! | `check` | what buffers must hold |
//! | `memory` | what fits |
//! | `spawn` | starts a command as local ranks |
//! | `remote` | runs spark-perf on other hosts |
//! | `discover` | finds hosts on the link |
//! | `launch` | starts a program as ranks on several hosts |
//! | `netplan` | plans the addresses of the fast network, and applies them |
//! | `ranks` | where the ranks come from, and what they tell each other |
//! | `measure` | measures calls, in host memory or on GPUs: the command without a name |
//! | `survey` | the hosts that a command is about: this one, recorded ones, or others |
//! | `pair` | two ranks, and the rails between them |
//! | `checkup` | `spark-perf check`: puts together what the others find, and reports it |
//! | `simulate`, `tune`, `rdma`, `tcp`, `top`, `topo`, `doctor`, `env` | the other commands |

#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod call;
mod check;
mod checkup;
mod cli;
mod discover;
mod doctor;
mod env;
mod error;
mod exact;
#[cfg(test)]
mod fuzz;
mod launch;
mod measure;
mod memory;
mod netplan;
mod pair;
mod ranks;
mod rdma;
mod remote;
mod report;
mod simulate;
mod spawn;
mod survey;
mod tcp;
mod top;
mod topo;
mod tune;

use std::process::ExitCode;

use clap::Parser;
use spark_ccl_console::{run_named, run_parsed};

fn main() -> ExitCode {
    // nccl-tests' flags leave no room for clap's subcommands, but no collective has one of these
    // names.
    let command = std::env::args().nth(1);
    match command.as_deref() {
        Some("launch") => run_named(launch::run),
        Some("launch-agent") => run_named(launch::agent::run),
        Some("discover") => run_named(discover::run),
        Some("netplan") => run_named(netplan::run),
        Some("netplan-agent") => run_named(netplan::agent::run),
        Some("simulate") => run_named(simulate::run),
        Some("tune") => run_named(tune::run),
        Some("gids") => run_named(rdma::gids),
        Some("topo") => run_named(topo::run),
        Some("port-agent") => run_named(doctor::agent::run),
        Some("doctor") => run_named(doctor::run),
        Some("check") => run_named(checkup::run),
        Some("env") => run_named(env::run),
        Some("rdma_bw") => run_named(rdma::bandwidth),
        Some("tcp_bw") => run_named(tcp::run),
        Some("rdma_lat") => run_named(rdma::latency),
        Some("top") => run_named(top::run),
        _ => run_parsed(Parser::try_parse(), measure::run),
    }
}

#[cfg(test)]
mod tests {
    use clap::Command;

    use super::*;
    use crate::error::Error;

    fn of<A: Parser>(_: impl FnOnce(&A) -> Result<u8, Error>) -> Command {
        A::command()
    }

    /// A text with lines of more columns than a terminal would be broken once more.
    #[test]
    fn help_is_wrapped_once() {
        let commands = [
            of(measure::run),
            of(launch::run),
            of(discover::run),
            of(netplan::run),
            of(simulate::run),
            of(tune::run),
            of(rdma::gids),
            of(rdma::bandwidth),
            of(rdma::latency),
            of(topo::run),
            of(doctor::run),
            of(checkup::run),
            of(env::run),
            of(tcp::run),
            of(top::run),
        ];
        for command in commands {
            let texts = [command.get_before_help(), command.get_after_long_help()];
            for text in texts.into_iter().flatten() {
                for line in text.to_string().lines() {
                    assert!(line.chars().count() <= 80, "{}: {line}", command.get_name());
                }
            }
        }
    }
}
