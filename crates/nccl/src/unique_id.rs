//! The id by which the ranks of a new communicator find each other.

use std::fmt;

use crate::raw::ncclUniqueId;
use crate::{Error, Library};

/// The id by which the ranks of a communicator find each other: one rank creates it, and all get a
/// copy.
///
/// It admits any process that has it to the communicator: treat it as a secret.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UniqueId(pub(crate) [u8; 128]);

impl UniqueId {
    /// The id with these bytes.
    pub const fn from_bytes(bytes: [u8; 128]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    pub const fn as_bytes(&self) -> &[u8; 128] {
        &self.0
    }

    pub(crate) fn raw(self) -> ncclUniqueId {
        ncclUniqueId {
            internal: self.0.map(|byte| byte as _),
        }
    }

    pub(crate) fn from_raw(raw: ncclUniqueId) -> Self {
        Self(raw.internal.map(|byte| byte as u8))
    }
}

impl Library {
    /// Creates an id. This process listens for the ranks until all have connected.
    ///
    /// # Errors
    ///
    /// There is no network interface that NCCL may use.
    pub fn unique_id(self) -> Result<UniqueId, Error> {
        let mut raw = UniqueId([0; 128]).raw();
        // SAFETY: `raw` is a valid `ncclUniqueId`, which NCCL overwrites before it returns.
        let code = unsafe { (self.api.ncclGetUniqueId)(&raw mut raw) };
        self.check("ncclGetUniqueId", code)?;
        Ok(UniqueId::from_raw(raw))
    }
}

impl fmt::Debug for UniqueId {
    /// Leaves out the bytes, which are secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UniqueId(..)")
    }
}
