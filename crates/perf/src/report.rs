//! The results of a run, and the formats in which they are reported.
//!
//! Must not know how they were measured, or which flags there are.

pub(crate) mod compare;
pub(crate) mod json;
pub(crate) mod plot;
pub(crate) mod table;

use spark_ccl::Backend;

use crate::stats::PerIteration;

/// The measured call of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Key {
    /// The executor of the calls.
    pub(crate) backend: Backend,
    /// The bytes of a rank's larger buffer.
    pub(crate) size: u64,
    /// The count argument of the call.
    pub(crate) count: u64,
    /// The name of the element type.
    pub(crate) dtype: &'static str,
    /// The name of the operation.
    pub(crate) op: &'static str,
    /// The root, or -1.
    pub(crate) root: i64,
}

/// The result of a row for one mode (out of place or in place).
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Measure {
    /// The time of one call.
    pub(crate) time_us: f64,
    /// The processor time of one call on a rank, in the program and in the system.
    pub(crate) cpu_us: f64,
    /// The algorithm bandwidth in GB/s.
    pub(crate) algorithm_bw: f64,
    /// The bus bandwidth in GB/s.
    pub(crate) bus_bw: f64,
    /// The number of wrong elements over all ranks, if checked.
    pub(crate) wrong: Option<u64>,
    /// Only with `-I`.
    pub(crate) per_iteration: Option<PerIteration>,
    /// The time divided by that of the first backend, for the second of two.
    pub(crate) ratio: Option<f64>,
    /// In host memory, the ranks of which a peer's core is far: they store long messages to it past
    /// the caches.
    pub(crate) far_ranks: Option<u64>,
}

/// A row of the table.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    pub(crate) key: Key,
    pub(crate) out_of_place: Measure,
    pub(crate) in_place: Measure,
    pub(crate) timestamp: String,
}

/// A rank's line of the header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Device {
    pub(crate) rank: usize,
    pub(crate) pid: u32,
    pub(crate) host: String,
    /// The number of the rank on its host, or CUDA's ordinal of the device.
    pub(crate) index: usize,
    /// The PCI bus id of the device; `0000:00:00` if it has none.
    pub(crate) bus: String,
    /// The device that holds the buffers.
    pub(crate) name: String,
}

/// The bus id of a device without one.
pub(crate) const NO_BUS: &str = "0000:00:00";

/// The numbers of the footer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Totals {
    /// The number of checks, over all ranks, that found a wrong element.
    pub(crate) out_of_bounds: u64,
    /// The mean of all rows' bus bandwidths in GB/s.
    pub(crate) average_bus_bw: f64,
    /// `NCCL_TESTS_MIN_BW` in GB/s.
    pub(crate) required_bus_bw: Option<f64>,
}

impl Totals {
    /// Whether the bandwidth is at least 0.9 times the required one; `None` if none is required.
    pub(crate) fn bandwidth_okay(&self) -> Option<bool> {
        self.required_bus_bw
            .map(|required| self.average_bus_bw >= 0.9 * required)
    }
}
