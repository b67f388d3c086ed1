//! The settings of the NCCL backend.

use std::path::PathBuf;

use crate::Error;
use crate::reader::Reader;

/// Settings of NCCL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nccl {
    /// Its library, or the folder that contains it; `None` for the system's. It runs in this
    /// process: the user who sets the path vouches for the library.
    pub library: Option<PathBuf>,
    /// Whether its calls block. They may block for as long as a peer does not answer.
    pub blocking: bool,
}

impl Default for Nccl {
    fn default() -> Self {
        Self {
            library: None,
            blocking: true,
        }
    }
}

impl Nccl {
    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, Error> {
        let library = reader.take(&["SPARK_CCL_NCCL_LIBRARY"]);
        let library = library.map(|taken| PathBuf::from(taken.text));
        let blocking = reader.boolean("SPARK_CCL_NCCL_BLOCKING")?.unwrap_or(true);
        Ok(Self { library, blocking })
    }
}
