//! Errors of reading a host or its description.

use std::path::PathBuf;

/// Why a host cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel does not list interfaces, addresses, routes or neighbours.
    #[error("netlink, listing {what}: {reason}")]
    Netlink {
        /// The list that was requested.
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
    /// A folder that is not a recorded host.
    #[error(
        "{}: this folder is no recorded host: it has no {missing}; `spark-perf topo --json` on \
         that host makes a file instead",
        path.display()
    )]
    NoTree {
        /// The folder.
        path: PathBuf,
        /// The missing file or folder.
        missing: &'static str,
    },
    /// A name that would be unsafe in a command line.
    #[error(
        "the description of a host names a {what} {name:?}; only letters, digits and _.:@- are \
         taken, and no - in front"
    )]
    Name {
        /// The kind of thing that it names.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A prefix longer than the address.
    #[error(
        "the description of a host has the prefix {ip}/{prefix}, which is longer than the address"
    )]
    Prefix {
        /// The address.
        ip: std::net::IpAddr,
        /// The prefix in bits.
        prefix: u8,
    },
    /// A description that is larger than any host's.
    #[error("the description of a host has a {what} of {length}, which no host has")]
    Long {
        /// The list or text that is too long.
        what: &'static str,
        /// Its length.
        length: usize,
    },
    /// Text that does not describe a host.
    #[error("this is not the description of a host that `spark-perf topo --json` prints: {0}")]
    Format(String),
    /// A description in the format of another version.
    #[error(
        "the description of a host has format {found}, and this program reads {expected}: use the \
         same spark-perf on all hosts"
    )]
    Version {
        /// The format's version.
        found: u64,
        /// The version that is read.
        expected: u32,
    },
}

impl From<serde_json::Error> for Error {
    /// The problem of a document.
    fn from(error: serde_json::Error) -> Self {
        Self::Format(error.to_string())
    }
}
