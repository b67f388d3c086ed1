//! What calls need of a communicator as C has it.

use spark_ccl::Communicator;

/// A communicator, and what must stay as long as its calls are under way.
pub trait Comm: Send + Sync + 'static {
    /// The communicator itself.
    fn inner(&self) -> &Communicator;
}
