//! Why there is no model of a host.

use std::path::PathBuf;

/// Why a host cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel does not list interfaces, addresses, routes or neighbours.
    #[error("netlink, listing {what}: {reason}")]
    Netlink {
        /// What was asked for.
        what: &'static str,
        /// The kernel's answer.
        reason: String,
    },
    /// A file of a recorded host cannot be read.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The operating system's reason, or what is wrong with its text.
        reason: String,
    },
    /// Text that is not a host.
    #[error("this is not the description of a host that `spark-perf topo --json` prints: {0}")]
    Format(String),
    /// A host that another version of this program has described.
    #[error(
        "the description of a host has format {found}, and this program reads {expected}: use the same spark-perf on all hosts"
    )]
    Version {
        /// The format's version.
        found: u64,
        /// The version that is read.
        expected: u32,
    },
}
