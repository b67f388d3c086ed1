//! The errors of the bootstrap: from the start of a process until all ranks are connected.

use std::io;
use std::net::SocketAddr;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use spark_ccl_seal::Changed;

/// Why ranks could not find, authenticate or connect to each other.
///
/// Errors that the rendezvous finds ([`Error::Mismatch`], [`Error::Missing`], [`Error::Lost`],
/// [`Error::Links`]) reach every rank with the same text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An invalid argument: a rank beyond the size, a size of 0, no address to listen on.
    #[error("{0}")]
    Argument(String),
    /// Text or bytes that are not a unique id.
    #[error("not a valid unique id: {0}")]
    UniqueId(String),
    /// A rendezvous beyond loopback needs a secret, and none was given.
    #[error(
        "the rendezvous at {address} is reachable from other hosts, but no secret was given: set \
         SPARK_CCL_SECRET or SPARK_CCL_SECRET_FILE to the same value on every rank, or use a \
         loopback address"
    )]
    NoSecret {
        /// The rendezvous address as the caller gave it.
        address: String,
    },
    /// The rendezvous port is taken.
    #[error(
        "cannot listen on {address}: the port is in use; choose another MASTER_PORT or stop the \
         process that holds it"
    )]
    AddressInUse {
        /// The address that could not be bound.
        address: SocketAddr,
    },
    /// The other end proved a different secret, or none.
    #[error(
        "{peer} has a different secret; start every rank with the same unique id, SPARK_CCL_SECRET \
         or SPARK_CCL_SECRET_FILE"
    )]
    Auth {
        /// The other end.
        peer: String,
    },
    /// There is no secret, and the other end does not belong to this process's user.
    #[error(
        "{peer}: {problem}; without a secret, all ranks must belong to one user of this host: set \
         SPARK_CCL_SECRET or SPARK_CCL_SECRET_FILE to the same value on every rank"
    )]
    User {
        /// The other end.
        peer: String,
        /// The user that it belongs to, and the user of this process.
        problem: String,
    },
    /// The other end uses another version of the protocol.
    #[error(
        "{peer} speaks bootstrap protocol version {theirs}, this process speaks version {ours}; \
         run the same release of spark-ccl on every rank"
    )]
    Version {
        /// The other end.
        peer: String,
        /// The version of this process.
        ours: u16,
        /// The version of the other end.
        theirs: u16,
    },
    /// The other end does not use this protocol.
    #[error("{peer} does not speak the spark-ccl protocol: {reason}")]
    Protocol {
        /// The other end.
        peer: String,
        /// The expected and the seen values.
        reason: String,
    },
    /// Bytes from the other end were changed on the way.
    #[error("{peer}: {error}")]
    Changed {
        /// The other end.
        peer: String,
        /// Its meaning.
        error: Changed,
    },
    /// Ranks disagree about the size, a rank number, the build or the configuration.
    #[error("{0}")]
    Mismatch(String),
    /// Not every rank arrived at the rendezvous in time.
    #[error("{0}")]
    Missing(String),
    /// A unique id that is no longer valid: its time is over, its world is complete, or its process
    /// has ended.
    #[error(
        "the unique id can no longer be used: {0}; an id is good for one world, while the process \
         that made it lives: make a new one, and start all ranks with it in time"
    )]
    Expired(String),
    /// A rank, or the rendezvous, went away before all links were up.
    #[error("{0}")]
    Lost(String),
    /// At least one rank could not set up its links.
    #[error("{0}")]
    Links(String),
    /// No address of the other end answered.
    #[error("cannot reach {peer}: {}{}", list_attempts(.attempts), advice(.peer, *.refused))]
    Unreachable {
        /// The other end.
        peer: String,
        /// Every address that was tried, and its error.
        attempts: Vec<(String, String)>,
        /// Whether all of them refused the connection: nobody listens there.
        refused: bool,
    },
    /// This process has cancelled it.
    #[error("the ranks did not meet: another thread of this process has cancelled it")]
    Cancelled,
    /// A deadline passed.
    #[error("timed out: {0}")]
    Timeout(String),
    /// The operating system refused a call for a reason other than the network.
    #[error("cannot {doing}: {error}")]
    Os {
        /// The attempted operation.
        doing: String,
        /// The operating system's error.
        error: String,
    },
}

impl Error {
    /// [`Error::Os`], with a remedy where one is known.
    pub fn os(doing: impl Into<String>, error: &io::Error) -> Self {
        let advice = match Errno::from_io_error(error) {
            Some(Errno::MFILE) => {
                let most = getrlimit(Resource::Nofile).current;
                let most = most.map(|most| format!(" ({most})")).unwrap_or_default();
                format!(
                    "; this process has as many files open as it may{most}: raise `ulimit -n`, or \
                     close what it does not need"
                )
            }
            _ => String::new(),
        };
        Error::Os {
            doing: doing.into(),
            error: format!("{error}{advice}"),
        }
    }
}

/// How errors that list addresses name the rendezvous.
pub(crate) const RENDEZVOUS: &str = "the rendezvous";

fn advice(peer: &str, refused: bool) -> &'static str {
    if refused && peer == RENDEZVOUS {
        "; has rank 0 been started there?"
    } else {
        ""
    }
}

fn list_attempts(attempts: &[(String, String)]) -> String {
    let mut text = String::new();
    for (address, error) in attempts {
        if !text.is_empty() {
            text.push_str("; ");
        }
        text.push_str(address);
        text.push_str(": ");
        text.push_str(error);
    }
    if text.is_empty() {
        text.push_str("it has no address that this process could use");
    }
    text
}
