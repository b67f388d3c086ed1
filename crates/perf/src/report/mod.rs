//! What a run reports: rows, and the forms in which they are shown.

pub(crate) mod compare;
pub(crate) mod json;
pub(crate) mod plot;
pub(crate) mod table;

use crate::stats::PerIteration;

/// What was measured in a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Key {
    /// Bytes of the larger buffer of a rank.
    pub(crate) size: u64,
    /// The call's count argument.
    pub(crate) count: u64,
    /// Name of the element type.
    pub(crate) dtype: &'static str,
    /// Name of the operation.
    pub(crate) op: &'static str,
    /// Root, or -1.
    pub(crate) root: i64,
}

/// The result of one way (out of place or in place) of a row.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Measure {
    /// Time of one call.
    pub(crate) time_us: f64,
    /// Processor time of one call, in a rank's program and in the system.
    pub(crate) cpu_us: f64,
    /// Algorithm bandwidth, GB/s.
    pub(crate) algorithm_bw: f64,
    /// Bus bandwidth, GB/s.
    pub(crate) bus_bw: f64,
    /// Wrong elements over all ranks, if checked.
    pub(crate) wrong: Option<u64>,
    /// With `-I`.
    pub(crate) per_iteration: Option<PerIteration>,
}

/// A line of the table.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    pub(crate) key: Key,
    pub(crate) out_of_place: Measure,
    pub(crate) in_place: Measure,
    pub(crate) timestamp: String,
}

/// Who takes part: a line of the header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Device {
    pub(crate) rank: usize,
    pub(crate) pid: u32,
    pub(crate) host: String,
    /// Number of the rank on its host, or CUDA's of the device.
    pub(crate) index: usize,
    /// Place of the device on the PCI bus; none is `0000:00:00`.
    pub(crate) bus: String,
    /// What holds the buffers.
    pub(crate) name: String,
}

/// The place of what is on no bus.
pub(crate) const NO_BUS: &str = "0000:00:00";

/// The numbers of the footer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Totals {
    /// Checks, over all ranks, that found a wrong element.
    pub(crate) out_of_bounds: u64,
    /// Mean of all rows' bus bandwidths, GB/s.
    pub(crate) average_bus_bw: f64,
    /// `NCCL_TESTS_MIN_BW`, GB/s.
    pub(crate) required_bus_bw: Option<f64>,
}

impl Totals {
    /// Whether the bandwidth is at least 0.9 of what was asked for; `None` if nothing was.
    pub(crate) fn bandwidth_okay(&self) -> Option<bool> {
        self.required_bus_bw
            .map(|required| self.average_bus_bw >= 0.9 * required)
    }
}
