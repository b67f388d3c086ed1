//! Runs a command: its arguments, its settings, its exit code.

use std::process::ExitCode;

use clap::Parser;
use spark_ccl_config::{Env, Settings};

use crate::error::{Error, Failure, exit};
use crate::output::print_error;

/// Runs a command with the arguments after its name.
pub fn run_named<A: Parser, E: Failure>(run: impl FnOnce(&A) -> Result<u8, E>) -> ExitCode {
    let program = A::command().get_name().into();
    let args = std::iter::once(program).chain(std::env::args_os().skip(2));
    run_parsed(A::try_parse_from(args), run)
}

/// Runs `run` with the arguments, if they are valid.
pub fn run_parsed<A, E: Failure>(
    args: Result<A, clap::Error>,
    run: impl FnOnce(&A) -> Result<u8, E>,
) -> ExitCode {
    let args = match args {
        Ok(args) => args,
        Err(error) => {
            // A failure to print cannot be reported.
            let _ = error.print();
            return if error.use_stderr() {
                ExitCode::from(exit::USAGE)
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    match run(&args) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            print_error(format_args!("{error}"));
            ExitCode::from(error.exit_code())
        }
    }
}

/// The settings from this process's environment.
///
/// # Errors
///
/// If a variable has a value that it cannot have.
pub fn settings() -> Result<Settings, Error> {
    Settings::from_env(&Env::from_process()).map_err(|error| Error::Usage(error.to_string()))
}
