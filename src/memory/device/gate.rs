//! Keeps launches and freeing apart on a GPU. Knows no ranks.
//!
//! Each thread that launches holds a GPU's gate open until the call is recorded; a thread that
//! frees memory closes it. The locks of the ranks' states would not do: other threads need those
//! while the driver waits, and a rank that is added meanwhile has another one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use spark_ccl_log::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A GPU's gate.
#[derive(Debug, Default)]
pub(crate) struct Gate(RwLock<()>);

/// Keeps the gate open.
pub(crate) type Passed<'a> = RwLockReadGuard<'a, ()>;

/// Keeps the gate closed.
pub(crate) type Closed<'a> = RwLockWriteGuard<'a, ()>;

/// The gates of the GPUs, by CUDA's numbers.
static GATES: Mutex<BTreeMap<usize, Arc<Gate>>> = Mutex::new(BTreeMap::new());

/// The gate of a GPU.
pub(crate) fn gate(device: usize) -> Arc<Gate> {
    Arc::clone(GATES.lock().entry(device).or_default())
}

impl Gate {
    /// Waits for a while until it is open. A thread may pass it several times: none waits to close
    /// it.
    pub(crate) fn pass_within(&self, limit: Duration) -> Option<Passed<'_>> {
        self.0.try_read_for(limit)
    }

    /// Closes it, if no thread passes it now, and none has closed it.
    pub(crate) fn close(&self) -> Option<Closed<'_>> {
        self.0.try_write()
    }
}
