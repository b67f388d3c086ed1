//! The flags of measurements, their checked form, and what several commands take from the command
//! line and the environment.
//!
//! Knows the names of collectives, and the columns of the table. Must not know how anything is
//! measured, or where the ranks come from.

pub(crate) mod args;
mod help;
pub(crate) mod options;
pub(crate) mod ranks;
pub(crate) mod sweep;

use spark_ccl_config::{Env, Settings};

use crate::error::Error;

/// The settings from this process's environment.
pub(crate) fn settings() -> Result<Settings, Error> {
    Settings::from_env(&Env::from_process()).map_err(|error| Error::Usage(error.to_string()))
}
