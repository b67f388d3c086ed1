//! The part of a communicator of C that calls need.

use spark_ccl::Communicator;

/// A communicator, and what must stay as long as its calls are under way.
pub trait Comm: Send + Sync + 'static {
    /// The communicator itself.
    fn inner(&self) -> &Communicator;
}
