//! Detects the launcher of this process, its rank, and how it finds the other ranks.
//!
//! [`detect`] reads the variables that launchers set. It does no I/O except reading the file named
//! by `SPARK_CCL_UNIQUE_ID_FILE`. The key-value spaces that it returns connect at their first use.
//! How ranks meet is not known here.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod at_exit;
mod detect;
mod error;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod hex;
mod node_list;
mod owner;
mod pmi1;
mod pmix;
mod tcp_store;
mod vars;

use std::fmt;
use std::time::Instant;

pub use detect::{detect, local_rank, rank_variables};
pub use error::Error;

/// What the launcher says about this process.
#[derive(Debug)]
pub struct Launch {
    /// Which launcher it is.
    pub kind: LauncherKind,
    /// This process's rank, below `size`.
    pub rank: u32,
    /// Number of processes, at least 1.
    pub size: u32,
    /// This process's number among those of its host, if the launcher says so.
    pub local_rank: Option<u32>,
    /// Number of processes on this host, if the launcher says so.
    pub local_size: Option<u32>,
    /// How the ranks find each other.
    pub rendezvous: Rendezvous,
}

/// The known launchers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LauncherKind {
    /// `SPARK_CCL_RANK` and `SPARK_CCL_SIZE`: `spark-perf`, or any script that sets them.
    Own,
    /// `RANK` and `WORLD_SIZE`: torchrun, or any script that sets them.
    Torchrun,
    /// Open MPI's `mpirun` and PRRTE's `prterun`.
    OpenMpi,
    /// MPICH's `mpiexec`, and other launchers with PMI-1.
    Hydra,
    /// Slurm's `srun`.
    Slurm,
}

impl fmt::Display for LauncherKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Own => "SPARK_CCL_RANK",
            Self::Torchrun => "torchrun",
            Self::OpenMpi => "Open MPI",
            Self::Hydra => "MPICH (Hydra)",
            Self::Slurm => "Slurm",
        })
    }
}

/// How the ranks of a launch find each other.
pub enum Rendezvous {
    /// Rank 0 publishes values for the others in the launcher's key-value space.
    KeyValue(Box<dyn KeyValue>),
    /// All ranks have the address of rank 0's host.
    Address {
        /// Name or address of rank 0's host.
        host: String,
        /// Port on that host.
        port: u16,
        /// The setting that names the host.
        setting: &'static str,
        /// Whether rank 0 binds the port. Otherwise another process owns it.
        bind: bool,
    },
    /// The text of a unique id.
    UniqueId(String),
}

impl fmt::Debug for Rendezvous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KeyValue(space) => write!(f, "KeyValue({})", space.describe()),
            Self::Address {
                host,
                port,
                setting,
                bind,
            } => f
                .debug_struct("Address")
                .field(setting, host)
                .field("port", port)
                .field("bind", bind)
                .finish(),
            // It holds a secret.
            Self::UniqueId(_) => f.write_str("UniqueId(..)"),
        }
    }
}

/// A launcher's key-value space, used to broadcast values from rank 0 to all ranks.
///
/// For each key, rank 0 calls [`put`](Self::put) once, and every other rank calls
/// [`get`](Self::get) once. The order is the same on all ranks: with some launchers each call is a
/// barrier of all ranks. A key must not be used twice, since with some launchers its value cannot
/// change.
pub trait KeyValue: Send {
    /// Publishes `value` under `key` (letters, digits and `._-`, at most 48 of them).
    ///
    /// # Errors
    /// If the launcher cannot be reached or refuses, or other ranks do not arrive before
    /// `deadline`.
    fn put(&mut self, key: &str, value: &[u8], deadline: Instant) -> Result<(), Error>;

    /// Waits until rank 0 has published `key`, and returns its value.
    ///
    /// # Errors
    /// If the launcher cannot be reached or refuses, or nothing is published before `deadline`.
    fn get(&mut self, key: &str, deadline: Instant) -> Result<Vec<u8>, Error>;

    /// Whether it may carry a secret: only processes of this launch can read it.
    fn is_private(&self) -> bool;

    /// The kind of the space, and where it is, for logs and errors.
    fn describe(&self) -> String;
}
