//! What a rank hears of one that does not take part.

use std::sync::Arc;
use std::time::Duration;

use spark_ccl::cuda::cudarc::driver::CudaStream;
use spark_ccl::{Communicator, ExitClass};

/// A wait for the stream ends, and names the rank that is late, also in its text.
pub(crate) fn assert_names_the_late(comm: &Communicator, stream: &Arc<CudaStream>, rank: usize) {
    let error = loop {
        match comm.wait(stream) {
            Err(error) => break error,
            Ok(()) => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    assert_eq!(error.exit_class(), ExitClass::Timeout, "{error}");
    assert_eq!(error.ranks(), [rank], "{error}");
    let named = format!("it waits for: rank {rank} (");
    assert!(error.to_string().contains(&named), "{error}");
}
