//! spark-perf measures collectives, with the flags, the table and the checks of nccl-tests.
//!
//! This file only chooses the command; those about hosts are in the crate `cluster`, which no other
//! file may name. Each folder is one concern, and depends on those above it only:
//!
//! | folder | concern |
//! |---|---|
//! | `exact` | numbers whose reduction is exact |
//! | `stats` | statistics of single iterations |
//! | `call` | what is measured: collectives, their sizes, buffers and calls |
//! | `report` | results, as table, JSON, plot, or beside those of an earlier run |
//! | `cli` | flags of measurements, checked |
//! | `verify` | what buffers must hold |
//! | `limits` | what fits into memory |
//! | `spawn` | starts a command as local ranks |
//! | `ranks` | where the ranks come from, and what they tell each other |
//! | `measure` | measures calls, in host memory or on GPUs: the command without a name |
//! | `pair` | two ranks, and the rails between them |
//! | `simulate`, `tune`, `rdma`, `tcp` | the other commands |
//!
//! A new flag of measurements is a field of a group in `cli/args.rs` and of `Options` in
//! `cli/options.rs`, which checks it. Besides these, only `measure/backend.rs` reads parsed flags:
//! there, `host_flag` lists the flags that ask for host memory. `measure/bench.rs` runs the sweep.
//! A line above the table is in `measure/header.rs`, a key of the report in `report/json.rs`.
//! Processes that spark-perf starts as ranks get its whole command line. Tests are in
//! `cli/options/tests.rs`, and with exit codes and texts in `tests/cli/arguments.rs`. The other
//! commands have an `args.rs` of their own.

#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod call;
mod cli;
mod error;
mod exact;
mod limits;
mod measure;
mod pair;
mod ranks;
mod rdma;
mod report;
mod simulate;
mod spawn;
mod stats;
mod tcp;
mod tune;
mod verify;

use std::process::ExitCode;

use clap::Parser;
use spark_ccl_console::{run_named, run_parsed};

fn main() -> ExitCode {
    // nccl-tests' flags leave no room for clap's subcommands, but no collective has one of these
    // names.
    let command = std::env::args().nth(1).unwrap_or_default();
    match command.as_str() {
        "simulate" => run_named(simulate::run),
        "tune" => run_named(tune::run),
        "gids" => run_named(rdma::gids),
        "rdma_bw" => run_named(rdma::bandwidth),
        "tcp_bw" => run_named(tcp::run),
        "rdma_lat" => run_named(rdma::latency),
        other => spark_ccl_cluster::run(other)
            .unwrap_or_else(|| run_parsed(Parser::try_parse(), measure::run)),
    }
}

#[cfg(test)]
mod tests {
    use clap::{Command, ValueEnum};
    use spark_ccl_testing::fits_a_terminal;

    use super::*;
    use crate::call::collective::Collective;
    use crate::error::Error;

    #[test]
    fn check_runs_all_collectives() {
        let all = Collective::value_variants().iter();
        let names = all.filter(|&&one| one != Collective::Hypercube);
        let names: Vec<_> = names.map(|one| one.name()).collect();
        assert_eq!(names, spark_ccl_cluster::COLLECTIVES);
    }

    fn of<A: Parser>(_: impl FnOnce(&A) -> Result<u8, Error>) -> Command {
        A::command()
    }

    #[test]
    fn help_is_wrapped_once() {
        let commands = [
            of(measure::run),
            of(simulate::run),
            of(tune::run),
            of(rdma::gids),
            of(rdma::bandwidth),
            of(rdma::latency),
            of(tcp::run),
        ];
        for command in commands {
            let texts = [command.get_before_help(), command.get_after_long_help()];
            fits_a_terminal(command.get_name(), texts.into_iter().flatten());
        }
    }
}
