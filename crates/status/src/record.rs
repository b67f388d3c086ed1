//! Records of a rank's last operations, in the form of PyTorch's flight recorder: as JSON, and as
//! the pickle that its analyzer reads (`python -m torch.distributed.flight_recorder.fr_trace`).

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use spark_ccl_types::{Extent, Side};

use crate::entry::{Entry, Peer};
use crate::names::{torch, torch_type};
use crate::pickle;

/// The version of PyTorch's format.
const VERSION: &str = "2.10";
/// The analyzer accepts no other library's name; `comm_lib_version` names ours.
const LIBRARY: &str = "nccl";

/// One communicator's operations on one kind of memory, which are numbered apart from those on the
/// other kind.
#[derive(Debug, Clone)]
pub struct Group {
    /// Identifies it among others, alike on all ranks.
    pub name: String,
    /// Its ranks' numbers in the world.
    pub ranks: Vec<u32>,
    /// This rank's number in it.
    pub rank: u32,
    /// Whether they are on device memory: their ends are seen late, so their durations are omitted.
    pub on_device: bool,
    /// How long an operation may take, in milliseconds.
    pub timeout_ms: u64,
    /// In the order of the calls.
    pub entries: Vec<Entry>,
}

/// Messages are numbered from here: the analyzer takes neighbours of equal number, collectives or
/// not, for one call.
const MESSAGES: u64 = 1 << 32;

/// All that a rank has recorded.
#[derive(Debug, Clone, Serialize)]
pub struct Record {
    version: &'static str,
    comm_lib_version: String,
    pg_config: BTreeMap<String, Config>,
    pg_status: BTreeMap<String, Status>,
    entries: Vec<Operation>,
}

#[derive(Debug, Clone, Serialize)]
struct Config {
    name: String,
    desc: String,
    /// A list as text, in PyTorch's notation.
    ranks: String,
}

/// Numbers as text, as PyTorch writes them in JSON.
#[derive(Debug, Clone, Serialize)]
struct Status {
    #[serde(rename = "last_enqueued_collective")]
    enqueued: String,
    #[serde(rename = "last_started_collective")]
    started: String,
    #[serde(rename = "last_completed_collective")]
    completed: String,
}

#[derive(Debug, Clone, Serialize)]
struct Operation {
    record_id: u64,
    pg_id: usize,
    process_group: [String; 2],
    thread_name: &'static str,
    thread_id: &'static str,
    collective_seq_id: u64,
    p2p_seq_id: u64,
    op_id: u64,
    profiling_name: String,
    time_created_ns: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_ms: Option<f64>,
    input_sizes: Vec<[u64; 1]>,
    input_dtypes: Vec<&'static str>,
    output_sizes: Vec<[u64; 1]>,
    output_dtypes: Vec<&'static str>,
    state: State,
    time_discovered_started_ns: u64,
    time_discovered_completed_ns: u64,
    retired: bool,
    timeout_ms: u64,
    is_p2p: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Scheduled,
    Started,
    Completed,
}

impl Record {
    /// The record of these communicators, by this version of the library.
    pub fn new(library: &str, groups: &[Group]) -> Self {
        let mut entries: Vec<Operation> = Vec::new();
        for (number, group) in groups.iter().enumerate() {
            entries.extend(operations(number, group));
        }
        // Programs read entries in the order of the calls and compare ranks by these numbers, so
        // forgotten records count, too.
        entries.sort_by_key(|entry| entry.time_created_ns);
        let first = groups.iter().filter_map(|group| group.entries.first());
        let forgotten: u64 = first.map(|entry| entry.record).sum();
        for (record_id, entry) in (forgotten..).zip(&mut entries) {
            entry.record_id = record_id;
        }
        let named = |group: &Group| (group.name.clone(), config(group));
        let numbered = |(number, group): (usize, &Group)| (number.to_string(), status(group));
        Self {
            version: VERSION,
            comm_lib_version: library.to_owned(),
            pg_config: groups.iter().map(named).collect(),
            pg_status: groups.iter().enumerate().map(numbered).collect(),
            entries,
        }
    }

    /// As JSON.
    ///
    /// # Errors
    /// None that is known: the record has text keys and finite numbers only.
    pub fn json(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(self)
    }

    /// As the pickle that PyTorch's analyzer reads.
    ///
    /// # Errors
    /// None that is known, as for [`json`](Self::json).
    pub fn pickle(&self) -> Result<Vec<u8>, serde_json::Error> {
        let value: Value = serde_json::to_value(self)?;
        Ok(pickle::encode(&value))
    }
}

fn config(group: &Group) -> Config {
    Config {
        name: group.name.clone(),
        desc: "spark-ccl".to_owned(),
        ranks: format!("{:?}", group.ranks),
    }
}

fn status(group: &Group) -> Status {
    let collectives = || group.entries.iter().filter(|entry| entry.peer.is_none());
    let enqueued = collectives().map(|entry| entry.sequence).max();
    let done = collectives().filter(|entry| entry.completed.is_some());
    let done = done.map(|entry| entry.sequence).max();
    // Collectives run one after the other.
    let started = enqueued.map(|enqueued| enqueued.min(done.unwrap_or(0) + 1));
    let text = |sequence: Option<u64>| sequence.map_or(-1, |sequence| sequence as i64).to_string();
    Status {
        enqueued: text(enqueued),
        started: text(started),
        completed: text(done),
    }
}

/// The operations that PyTorch's format has names for. Collectives run one after the other, and so
/// do messages with one peer in one direction. So of the calls that are not done, the first is
/// started, and the others are not.
fn operations(number: usize, group: &Group) -> impl Iterator<Item = Operation> {
    let mut busy: BTreeMap<Option<Peer>, u64> = BTreeMap::new();
    group.entries.iter().filter_map(move |entry| {
        let is_first = *busy.entry(entry.peer).or_insert(entry.sequence) == entry.sequence;
        let state = match entry.completed {
            Some(_) => {
                busy.remove(&entry.peer);
                State::Completed
            }
            None if is_first => State::Started,
            None => State::Scheduled,
        };
        operation(number, group, entry, state)
    })
}

fn operation(number: usize, group: &Group, entry: &Entry, state: State) -> Option<Operation> {
    let signature = entry.signature;
    let name = torch(signature.operation)?;
    let called = match entry.peer {
        None => format!("{LIBRARY}:{name}"),
        Some(Peer::To(rank)) => format!("{LIBRARY}:{name} {}->{rank}", group.rank),
        Some(Peer::From(rank)) => format!("{LIBRARY}:{name} {}<-{rank}", group.rank),
    };
    let has = |side| signature.operation.extent(side) != Extent::Nothing;
    let sizes = |side, elements| has(side).then_some([elements]).into_iter().collect();
    let types = |side| {
        has(side)
            .then_some(torch_type(signature.dtype))
            .into_iter()
            .collect()
    };
    let (collective, pair) = match entry.peer {
        None => (entry.sequence, 0),
        Some(_) => (0, MESSAGES | entry.record),
    };
    let duration = entry.duration().filter(|_| !group.on_device);
    Some(Operation {
        record_id: 0,
        pg_id: number,
        process_group: [group.name.clone(), "spark-ccl".to_owned()],
        thread_name: "",
        thread_id: "",
        collective_seq_id: collective,
        p2p_seq_id: pair,
        op_id: entry.record + 1,
        profiling_name: called,
        time_created_ns: entry.called,
        duration_ms: duration.map(|nanos| nanos as f64 / 1e6),
        input_sizes: sizes(Side::Input, entry.input),
        input_dtypes: types(Side::Input),
        output_sizes: sizes(Side::Output, entry.output),
        output_dtypes: types(Side::Output),
        state,
        time_discovered_started_ns: if state == State::Scheduled {
            0
        } else {
            entry.called
        },
        time_discovered_completed_ns: entry.completed.unwrap_or(0),
        retired: state == State::Completed,
        timeout_ms: group.timeout_ms,
        is_p2p: entry.peer.is_some(),
    })
}

#[cfg(test)]
mod tests;
