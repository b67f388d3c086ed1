//! The commands of spark-perf about hosts. They find hosts, their cables and settings, check
//! whether they are sound, and start programs on them.
//!
//! To measure, they start spark-perf as a process, here or on other hosts, and read its JSON. Their
//! tests with processes are in `crates/perf/tests/cli`, because they need that program. Each folder
//! is one concern, and depends on those above it only:
//!
//! | folder | concern |
//! |---|---|
//! | `hex` | random secrets |
//! | `at_once`, `long`, `program` | work in threads, work that takes long, programs of the system |
//! | `remote` | runs spark-perf on other hosts |
//! | `survey` | the hosts that a command is about: this one, recorded ones, or others |
//! | `discover` | finds hosts on the link |
//! | `launch` | starts a program as ranks on several hosts |
//! | `netplan` | plans the addresses of the fast network, and applies them |
//! | `finding` | what is found: whether it is right, what is wanted, and how to mend it |
//! | `port` | whether hosts accept connections of others |
//! | `topo`, `env`, `top`, `doctor` | the other commands |
//! | `check` | `spark-perf check`: puts together what the others find, and reports it |

#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod at_once;
mod check;
mod discover;
mod doctor;
mod env;
mod error;
mod finding;
#[cfg(test)]
mod fuzz;
mod hex;
mod launch;
mod long;
mod netplan;
mod port;
mod program;
mod remote;
mod survey;
mod top;
mod topo;

use std::process::ExitCode;

pub use check::COLLECTIVES;
use spark_ccl_console::run_named;

/// Runs the command of this name, which is this process's first argument, with those after it;
/// `None` if there is none here. The program is spark-perf: commands start it again.
///
/// # Examples
///
/// ```
/// assert!(spark_ccl_cluster::run("all_reduce").is_none());
/// ```
pub fn run(command: &str) -> Option<ExitCode> {
    Some(match command {
        "launch" => run_named(launch::run),
        "launch-agent" => run_named(launch::agent::run),
        "discover" => run_named(discover::run),
        "netplan" => run_named(netplan::run),
        "netplan-agent" => run_named(netplan::agent::run),
        "topo" => run_named(topo::run),
        "port-agent" => run_named(port::agent::run),
        "doctor" => run_named(doctor::run),
        "check" => run_named(check::run),
        "env" => run_named(env::run),
        "top" => run_named(top::run),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use clap::{Command, Parser};
    use spark_ccl_testing::fits_a_terminal;

    use super::*;
    use crate::error::Error;

    fn of<A: Parser>(_: impl FnOnce(&A) -> Result<u8, Error>) -> Command {
        A::command()
    }

    #[test]
    fn help_is_wrapped_once() {
        let commands = [
            of(launch::run),
            of(discover::run),
            of(netplan::run),
            of(topo::run),
            of(doctor::run),
            of(check::run),
            of(env::run),
            of(top::run),
        ];
        for command in commands {
            let texts = [command.get_before_help(), command.get_after_long_help()];
            fits_a_terminal(command.get_name(), texts.into_iter().flatten());
        }
    }
}
