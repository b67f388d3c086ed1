//! Records of a rank's last operations, on request.

use std::path::Path;

use super::communicator::Communicator;
use crate::error::Error;

impl Communicator {
    /// Writes this rank's last operations to a file, in the form of PyTorch's flight recorder: up
    /// to 1,000 of each communicator of the world that still exists. If the name ends with `.json`,
    /// the file has JSON; otherwise a pickle, which `python -m
    /// torch.distributed.flight_recorder.fr_trace` reads.
    ///
    /// Up to 1,000 operations on device memory are added. The file may be 50 ms behind in whether
    /// one of them has run. Operations in captured graphs are not recorded.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), spark_ccl::Error> {
    /// let builder = spark_ccl::Communicator::builder().set("SPARK_CCL_RECORD", "1");
    /// let comm = builder.from_env()?;
    /// comm.barrier().run()?;
    /// comm.record(format!("/tmp/records/rank_{}", comm.rank()))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] if the settings do not ask for records (`SPARK_CCL_RECORD=1`);
    /// [`Error::System`] if the file cannot be written.
    pub fn record(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.membership().check_process()?;
        let Some(observation) = &self.inner.observation else {
            return Err(Error::Invalid {
                operation: "record",
                problem: "no operations are recorded; set SPARK_CCL_RECORD=1, or a folder"
                    .to_owned(),
            });
        };
        observation.observed.record(path.as_ref())
    }
}
