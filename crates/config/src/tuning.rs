//! The fastest algorithms and kernels as `spark-perf tune` measured them on a machine, and the file
//! that stores them.

mod kernels;

use std::fmt;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Instant;

pub use kernels::{GpuLayout, GpuWire, KernelEntry, KernelStep};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use spark_ccl_types::{Algorithm, Operation};

use crate::algorithm::collectives;
use crate::files;

/// The version of the format.
const VERSION: u32 = 1;
/// Longer files are refused, since every rank gets the whole text.
const MAX_BYTES: usize = 48 << 10;

/// Which algorithm was the fastest, by the ranks' layout, collective and size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tuning {
    version: u32,
    entries: Vec<TuningEntry>,
    /// Files of machines without GPUs have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    kernels: Vec<KernelEntry>,
}

/// The measurements of one collective for one layout of ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TuningEntry {
    /// Where the ranks are.
    pub layout: Layout,
    /// The collective.
    #[serde(serialize_with = "collect_str", deserialize_with = "collective")]
    pub collective: Operation,
    /// The fastest algorithms, by ascending size. The last one also applies to all larger sizes.
    pub steps: Vec<TuningStep>,
}

/// The algorithm for a range of sizes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TuningStep {
    /// The largest size, in bytes of the call's count.
    pub up_to: u64,
    /// The algorithm.
    #[serde(serialize_with = "collect_str", deserialize_with = "algorithm")]
    pub algorithm: Algorithm,
}

/// Where ranks are, as far as measured times depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layout {
    /// The network that connects them.
    pub links: Links,
    /// How many there are.
    pub ranks: u32,
    /// The number of hosts that they are on.
    pub hosts: u32,
}

/// The links of a communicator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Links {
    /// Shared memory between any two ranks.
    #[serde(rename = "shm")]
    SharedMemory,
    /// TCP between any two ranks.
    #[serde(rename = "tcp")]
    Tcp,
    /// RDMA between any two ranks.
    #[serde(rename = "rdma")]
    Rdma,
    /// Shared memory within hosts, TCP between them.
    #[serde(rename = "shm+tcp")]
    SharedMemoryAndTcp,
    /// Shared memory within hosts, RDMA between them.
    #[serde(rename = "shm+rdma")]
    SharedMemoryAndRdma,
}

/// Why a file of measured choices cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TuningError {
    /// The system refused to read or write it.
    #[error("it cannot be read or written: {0}")]
    Io(#[from] std::io::Error),
    /// It is not what `spark-perf tune` writes.
    #[error("it is not what spark-perf tune writes: {0}")]
    Malformed(String),
    /// Another version of the library wrote it.
    #[error("its format is version {0}, and this library reads version {VERSION}")]
    Version(u32),
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            version: VERSION,
            entries: Vec::new(),
            kernels: Vec::new(),
        }
    }
}

impl Tuning {
    /// Reads a file until the deadline. If there is none, nothing was measured.
    ///
    /// # Errors
    /// [`TuningError`] for every file that this version did not write.
    pub fn read(path: &Path, deadline: Instant) -> Result<Self, TuningError> {
        match files::read(path, MAX_BYTES, deadline) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Self::default()),
            bytes => Self::parse(&bytes?),
        }
    }

    /// Parses what [`text`](Self::text) returns.
    ///
    /// # Errors
    /// [`TuningError`] for everything else.
    pub fn parse(bytes: &[u8]) -> Result<Self, TuningError> {
        /// The fields that all versions have in common.
        #[derive(Deserialize)]
        struct Head {
            version: u32,
        }
        let malformed = |error: serde_json::Error| TuningError::Malformed(error.to_string());
        if bytes.len() > MAX_BYTES {
            let text = format!("it has more than {MAX_BYTES} bytes");
            return Err(TuningError::Malformed(text));
        }
        let head: Head = serde_json::from_slice(bytes).map_err(malformed)?;
        if head.version != VERSION {
            return Err(TuningError::Version(head.version));
        }
        let tuning: Self = serde_json::from_slice(bytes).map_err(malformed)?;
        let algorithms = tuning.entries.iter().map(TuningEntry::problem);
        let kernels = tuning.kernels.iter().map(KernelEntry::problem);
        match algorithms.chain(kernels).find_map(|problem| problem) {
            Some(problem) => Err(TuningError::Malformed(problem)),
            None => Ok(tuning),
        }
    }

    /// All entries in one line, which is not longer than the file.
    pub fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Writes the file atomically, and creates the folders above it.
    ///
    /// # Errors
    /// [`TuningError::Io`] if the system refuses it; [`TuningError::Malformed`] if the file would
    /// be too long.
    pub fn save(&self, path: &Path) -> Result<(), TuningError> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let text = serde_json::to_string_pretty(self).map_err(std::io::Error::from)? + "\n";
        if text.len() > MAX_BYTES {
            let text =
                format!("it would have more than {MAX_BYTES} bytes; remove it to begin anew");
            return Err(TuningError::Malformed(text));
        }
        let draft = path.with_extension(format!("{}.new", std::process::id()));
        Ok(files::replace(path, &draft, text.as_bytes())?)
    }

    /// Adds an entry. It replaces an older one for the same layout and collective.
    pub fn put(&mut self, entry: TuningEntry) {
        self.entries
            .retain(|old| (old.layout, old.collective) != (entry.layout, entry.collective));
        self.entries.push(entry);
    }

    /// Adds an entry of kernels. It replaces an older one for the same layout and collective.
    pub fn put_kernels(&mut self, entry: KernelEntry) {
        let of = |entry: &KernelEntry| (entry.layout.clone(), entry.collective);
        self.kernels.retain(|old| of(old) != of(&entry));
        self.kernels.push(entry);
    }

    /// The entries of kernels for one layout of ranks.
    pub fn kernels_of(&self, layout: &GpuLayout) -> impl Iterator<Item = &KernelEntry> {
        self.kernels
            .iter()
            .filter(move |entry| entry.layout == *layout)
    }

    /// The entries for one layout of ranks.
    pub fn of(&self, layout: Layout) -> impl Iterator<Item = &TuningEntry> {
        self.entries
            .iter()
            .filter(move |entry| entry.layout == layout)
    }
}

impl TuningEntry {
    /// The entry's problem, if it has one.
    fn problem(&self) -> Option<String> {
        let sizes: Vec<_> = self.steps.iter().map(|step| step.up_to).collect();
        problem(self.collective, &sizes)
    }
}

/// The problem of the sizes of a collective's steps, if they have one.
fn problem(collective: Operation, sizes: &[u64]) -> Option<String> {
    if sizes.is_empty() {
        return Some(format!("{collective} has no steps"));
    }
    if !sizes.is_sorted_by(|a, b| a < b) {
        return Some(format!("the steps of {collective} do not ascend"));
    }
    None
}

fn collect_str<S: Serializer>(name: &impl fmt::Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(name)
}

fn collective<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Operation, D::Error> {
    let name = String::deserialize(deserializer)?;
    let known = collectives().find(|known| known.name() == name);
    known.ok_or_else(|| D::Error::custom(format!("{name:?} is not a collective")))
}

fn algorithm<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Algorithm, D::Error> {
    let name = String::deserialize(deserializer)?;
    name.parse().map_err(D::Error::custom)
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let links = match self.links {
            Links::SharedMemory => "shm",
            Links::Tcp => "tcp",
            Links::Rdma => "rdma",
            Links::SharedMemoryAndTcp => "shm and tcp",
            Links::SharedMemoryAndRdma => "shm and rdma",
        };
        let hosts = if self.hosts == 1 { "host" } else { "hosts" };
        write!(f, "{} ranks on {} {hosts}, {links}", self.ranks, self.hosts)
    }
}

#[cfg(test)]
mod tests;
