//! The inspector's text for Prometheus: means over recent operations, by operation and size.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::{Group, Speed};
use crate::entry::Entry;
use crate::names::nccl;

/// The version of NCCL's labels.
const VERSION: &str = "v5.1";
const UNITS: [&str; 5] = ["B", "KB", "MB", "GB", "TB"];

/// The metrics of completed operations: mean times, and geometric means of bandwidths.
pub fn prometheus(operations: &[(&Group, Entry)]) -> String {
    let mut buckets: BTreeMap<(bool, String), Bucket> = BTreeMap::new();
    for (group, entry) in operations {
        let Some(speed) = Speed::of(entry, group.size) else {
            continue;
        };
        let key = (entry.peer.is_some(), labels(group, entry));
        buckets.entry(key).or_default().add(speed);
    }
    let mut text = String::new();
    for ((is_message, labels), bucket) in &buckets {
        let (bandwidth, time) = if *is_message {
            (
                "nccl_p2p_bus_bandwidth_gbs",
                "nccl_p2p_exec_time_microseconds",
            )
        } else {
            (
                "nccl_bus_bandwidth_gbs",
                "nccl_collective_exec_time_microseconds",
            )
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{bandwidth}{{{labels}}} {:.6}", bucket.bus());
        let _ = writeln!(text, "{time}{{{labels}}} {:.3}", bucket.micros());
    }
    text
}

#[derive(Default)]
struct Bucket {
    count: u32,
    micros: f64,
    moved: u32,
    /// The sum of the bandwidths' logarithms, of operations that move anything.
    logarithms: f64,
}

impl Bucket {
    fn add(&mut self, speed: Speed) {
        self.count += 1;
        self.micros += speed.micros as f64;
        if speed.bus > 0.0 {
            self.moved += 1;
            self.logarithms += speed.bus.ln();
        }
    }

    fn micros(&self) -> f64 {
        self.micros / f64::from(self.count.max(1))
    }

    fn bus(&self) -> f64 {
        match self.moved {
            0 => 0.0,
            moved => (self.logarithms / f64::from(moved)).exp(),
        }
    }
}

fn labels(group: &Group, entry: &Entry) -> String {
    let name = nccl(entry.signature.operation);
    let size = size_range(entry.bytes());
    let kind = if entry.peer.is_some() {
        format!("p2p_operation=\"{name}\",message_size=\"{size}\"")
    } else {
        format!("collective=\"{name}\",message_size=\"{size}\",algo_proto=\"unknown_unknown\"")
    };
    format!(
        "version=\"{VERSION}\",slurm_job_id=\"{}\",node=\"{}\",gpu=\"CPU{}\",comm_name=\"unknown\",n_nodes=\"{}\",nranks=\"{}\",{kind}",
        escape(group.job.as_deref().unwrap_or("unknown")),
        escape(&group.host),
        group.world_rank,
        group.nodes,
        group.size
    )
}

/// "4-5KB": whole numbers of the largest unit that fits.
fn size_range(bytes: u64) -> String {
    if bytes == 0 {
        return "0B".to_owned();
    }
    let unit = (bytes.ilog2() as usize / 10).min(UNITS.len() - 1);
    let lower = bytes >> (10 * unit);
    format!("{lower}-{}{}", lower + 1, UNITS[unit])
}

/// A label's value must not contain what ends it.
fn escape(value: &str) -> String {
    let escaped = value.replace('\\', "\\\\").replace('"', "\\\"");
    escaped.replace('\n', "\\n")
}
