//! The part of a communicator of C that calls need.

use std::sync::Arc;

use spark_ccl::{Communicator, UntypedCall};

use crate::failure::Failure;

/// A communicator, and what must stay as long as its calls are under way.
pub trait Comm: Send + Sync + 'static {
    /// The communicator itself.
    fn inner(&self) -> &Communicator;

    /// A failure of one of its calls, perhaps with more words.
    fn explain(&self, failure: Failure) -> Failure {
        failure
    }
}

/// A call that has not begun, and its communicator.
pub type Planned = (Arc<dyn Comm>, UntypedCall);
