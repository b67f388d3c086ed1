//! Simulates every message of all ranks.

use super::fabric::{Fabric, PORTS};
use super::timeline::Timeline;
use crate::defect::Defect;
use crate::lockstep::{self, Model, ProcessId, Slice, Window};
use crate::step::{Kind, Rank, Step};
use crate::steps::Steps;

/// The microseconds until the last rank of `ranks` has ended, over links that hold as many messages
/// as a `chunk` (in elements) needs.
///
/// # Errors
///
/// The same as for [`lockstep::run`].
pub fn simulate<S: Steps>(
    ranks: &[S],
    chunk: u64,
    bytes_per_element: u64,
    fabric: &Fabric,
) -> Result<f64, Defect> {
    let channels = ranks.iter().map(Steps::channels).max().unwrap_or(1) as usize;
    let outer = fabric.outer(ranks.len() as u32);
    let slice = outer.slice_bytes / bytes_per_element.max(1);
    let mut clocks = Clocks {
        fabric,
        bytes_per_element: bytes_per_element as f64,
        size: ranks.len() as u32,
        channels,
        now: vec![0.0; ranks.len() * channels],
        processors: vec![Timeline::default(); ranks.len()],
        ports: vec![Timeline::default(); ranks.len() * PORTS],
    };
    lockstep::run_model(ranks, Window::for_chunk(chunk, slice.max(1)), &mut clocks)?;
    Ok(clocks.now.into_iter().fold(0.0, f64::max))
}

/// The current time of each rank's channels. The channels of a rank share its processor, and
/// messages share the ports on their routes.
struct Clocks<'a> {
    fabric: &'a Fabric,
    bytes_per_element: f64,
    size: u32,
    channels: usize,
    now: Vec<f64>,
    processors: Vec<Timeline>,
    ports: Vec<Timeline>,
}

impl Model for Clocks<'_> {
    /// The time of arrival.
    type Message = f64;

    fn act(
        &mut self,
        at: ProcessId,
        step: &Step,
        slice: Slice,
        received: Option<f64>,
    ) -> Result<Option<f64>, Defect> {
        let process = at.rank as usize * self.channels + at.channel as usize;
        let ready = self.now[process].max(received.unwrap_or(0.0));
        let work = self.work(at.rank, step, slice);
        let end = self.processors[at.rank as usize].reserve(ready, work) + work;
        self.now[process] = end;
        let sends = step.kind.sends();
        Ok(sends.then(|| self.carry(at.rank, step.send_to, slice, end)))
    }
}

impl Clocks<'_> {
    /// The time at which a message that leaves at `time` has arrived. A port forwards a message
    /// while it receives it, and is free for the next one when this one has left.
    fn carry(&mut self, from: Rank, to: Rank, slice: Slice, mut time: f64) -> f64 {
        let link = self.fabric.link(from, to);
        let wire = slice.len as f64 * self.bytes_per_element * link.wire_us_per_byte;
        for hop in self.fabric.route(from, to, self.size) {
            let left = self.ports[hop.out].reserve(time, wire);
            time = self.ports[hop.into].reserve(left + link.latency_us, wire);
        }
        time + wire
    }

    /// The time that the processor needs for a slice.
    fn work(&self, rank: Rank, step: &Step, slice: Slice) -> f64 {
        let (sends, receives) = (step.kind.sends(), step.kind.receives());
        let sent = self.fabric.link(rank, step.send_to);
        let received = self.fabric.link(step.recv_from, rank);
        let overhead = if sends { sent.overhead_us } else { 0.0 }
            + if receives { received.overhead_us } else { 0.0 };
        let link = if receives { received } else { sent };
        let bytes = |elements: u64| elements as f64 * self.bytes_per_element;
        let copy = bytes(slice.len) * link.copy_us_per_byte;
        let reduce = bytes(slice.len) * link.reduce_us_per_byte;
        let whole_copy = bytes(step.src.len) * link.copy_us_per_byte;
        let whole_reduce = f64::from(self.size) * bytes(step.src.len) * link.reduce_us_per_byte;
        overhead
            + match step.kind {
                Kind::Send | Kind::Recv => copy,
                Kind::RecvReduce | Kind::RecvReduceSend => reduce,
                Kind::RecvReduceCopySend => reduce + copy,
                Kind::RecvCopySend => 2.0 * copy,
                Kind::Copy | Kind::Get => whole_copy,
                Kind::ReduceLocal | Kind::GetReduce => whole_reduce,
                Kind::GetReducePut => whole_reduce + f64::from(self.size) * whole_copy,
                // The halves of an exchange are passed as separate steps.
                Kind::Signal | Kind::Wait | Kind::SendRecv => 0.0,
            }
    }
}
