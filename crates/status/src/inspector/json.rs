//! The inspector's JSON: one line for each operation.

use serde::Serialize;
use serde_json::error::Error;

use super::{Group, Speed};
use crate::entry::{Entry, Peer};
use crate::names::nccl;

/// The version of the format.
const VERSION: &str = "v4.0";

#[derive(Serialize)]
struct Line<'a> {
    header: Header<'a>,
    metadata: Metadata<'a>,
    #[serde(flatten)]
    operation: Operation,
}

#[derive(Serialize)]
struct Header<'a> {
    id: String,
    comm_name: &'a str,
    rank: u32,
    n_ranks: u32,
    nnodes: usize,
}

#[derive(Serialize)]
struct Metadata<'a> {
    inspector_output_format_version: &'a str,
    git_rev: &'a str,
    rec_mechanism: &'a str,
    dump_timestamp_us: u64,
    hostname: &'a str,
    pid: u32,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Operation {
    CollPerf(Collective),
    P2pPerf(Message),
}

#[derive(Serialize)]
struct Collective {
    coll: &'static str,
    coll_sn: u64,
    coll_msg_size_bytes: u64,
    coll_exec_time_us: u64,
    coll_timing_source: &'static str,
    coll_algobw_gbs: f64,
    coll_busbw_gbs: f64,
}

#[derive(Serialize)]
struct Message {
    p2p: &'static str,
    p2p_sn: u64,
    p2p_peer: u32,
    p2p_msg_size_bytes: u64,
    p2p_exec_time_us: u64,
    p2p_timing_source: &'static str,
    p2p_algobw_gbs: f64,
    p2p_busbw_gbs: f64,
}

/// NCCL's name for times measured by the processor.
const TIMING: &str = "collective_cpu";

/// The line of a completed operation with its line break, written at `now`, in microseconds since
/// 1970; `None` if it is not done. `revision` is that of the library.
///
/// # Errors
/// None that is known: the line has text keys and finite numbers only.
pub fn line(
    group: &Group,
    entry: &Entry,
    now: u64,
    revision: &str,
) -> Result<Option<String>, Error> {
    let Some(speed) = Speed::of(entry, group.size) else {
        return Ok(None);
    };
    let line = Line {
        header: Header {
            id: format!("0x{:x}", group.context),
            comm_name: "unknown",
            rank: group.rank,
            n_ranks: group.size,
            nnodes: group.nodes,
        },
        metadata: Metadata {
            inspector_output_format_version: VERSION,
            git_rev: revision,
            rec_mechanism: "spark_ccl",
            dump_timestamp_us: now,
            hostname: &group.host,
            pid: group.pid,
        },
        operation: operation(entry, speed),
    };
    let mut text = serde_json::to_string(&line)?;
    text.push('\n');
    Ok(Some(text))
}

fn operation(entry: &Entry, speed: Speed) -> Operation {
    let name = nccl(entry.signature.operation);
    match entry.peer {
        None => Operation::CollPerf(Collective {
            coll: name,
            coll_sn: entry.sequence,
            coll_msg_size_bytes: entry.bytes(),
            coll_exec_time_us: speed.micros,
            coll_timing_source: TIMING,
            coll_algobw_gbs: speed.algorithm,
            coll_busbw_gbs: speed.bus,
        }),
        Some(Peer::To(peer) | Peer::From(peer)) => Operation::P2pPerf(Message {
            p2p: name,
            p2p_sn: entry.sequence,
            p2p_peer: peer,
            p2p_msg_size_bytes: entry.bytes(),
            p2p_exec_time_us: speed.micros,
            p2p_timing_source: TIMING,
            p2p_algobw_gbs: speed.algorithm,
            p2p_busbw_gbs: speed.bus,
        }),
    }
}
