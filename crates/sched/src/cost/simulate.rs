//! Follows every message of all ranks.

use super::LinkCost;
use crate::fault::Fault;
use crate::lockstep::{self, Model, Place, Slice, Window};
use crate::schedule::Steps;
use crate::step::{Kind, Step};

/// Microseconds until the last rank of `ranks` has ended, over links that hold as many messages
/// as a `chunk` (in elements) needs.
///
/// # Errors
///
/// Those of [`lockstep::run`].
pub fn simulate<S: Steps>(
    ranks: &[S],
    chunk: u64,
    bytes_per_element: u64,
    cost: &LinkCost,
) -> Result<f64, Fault> {
    let channels = ranks.iter().map(Steps::channels).max().unwrap_or(1) as usize;
    let mut clocks = Clocks {
        cost,
        bytes_per_element: bytes_per_element as f64,
        size: ranks.len() as f64,
        channels,
        now: vec![0.0; ranks.len() * channels],
        outgoing: vec![0.0; ranks.len() * channels],
        incoming: vec![0.0; ranks.len() * channels],
    };
    let slice = (cost.slice_bytes / bytes_per_element.max(1)).max(1);
    lockstep::run_model(ranks, Window::for_chunk(chunk, slice), &mut clocks)?;
    Ok(clocks.now.into_iter().fold(0.0, f64::max))
}

/// The time on each rank's channels. The channels of a rank share its processor and its wires,
/// so everything takes the longer the more there are.
struct Clocks<'a> {
    cost: &'a LinkCost,
    bytes_per_element: f64,
    size: f64,
    channels: usize,
    now: Vec<f64>,
    /// When the wires are free.
    outgoing: Vec<f64>,
    incoming: Vec<f64>,
}

impl Model for Clocks<'_> {
    /// When it arrives.
    type Message = f64;

    fn act(
        &mut self,
        at: Place,
        step: &Step,
        slice: Slice,
        received: Option<f64>,
    ) -> Result<Option<f64>, Fault> {
        let process = at.rank as usize * self.channels + at.channel as usize;
        let shared = self.channels as f64;
        let bytes = slice.len as f64 * self.bytes_per_element;
        let busy = bytes * self.cost.wire_us_per_byte * shared;
        if let Some(arrival) = received {
            // Messages of several senders come in one after another.
            let arrival = arrival.max(self.incoming[process] + busy);
            self.incoming[process] = arrival;
            self.now[process] = self.now[process].max(arrival);
        }
        self.now[process] += self.work(step, slice) * shared;
        if !step.kind.sends() {
            return Ok(None);
        }
        self.outgoing[process] = self.outgoing[process].max(self.now[process]) + busy;
        Ok(Some(self.outgoing[process] + self.cost.latency_us))
    }
}

impl Clocks<'_> {
    /// What the processor has to do.
    fn work(&self, step: &Step, slice: Slice) -> f64 {
        let overhead = self.cost.overhead_us;
        let bytes = |elements: u64| elements as f64 * self.bytes_per_element;
        let copy = bytes(slice.len) * self.cost.copy_us_per_byte;
        let reduce = bytes(slice.len) * self.cost.reduce_us_per_byte;
        let whole_copy = bytes(step.src.len) * self.cost.copy_us_per_byte;
        let whole_reduce = self.size * bytes(step.src.len) * self.cost.reduce_us_per_byte;
        match step.kind {
            Kind::Send | Kind::Recv => overhead + copy,
            Kind::RecvReduce => overhead + reduce,
            Kind::RecvReduceSend => 2.0 * overhead + reduce,
            Kind::RecvReduceCopySend => 2.0 * overhead + reduce + copy,
            Kind::RecvCopySend => 2.0 * overhead + 2.0 * copy,
            Kind::Copy | Kind::Get => whole_copy,
            Kind::ReduceLocal | Kind::GetReduce => whole_reduce,
            Kind::GetReducePut => whole_reduce + self.size * whole_copy,
            Kind::Signal | Kind::Wait => overhead,
            // Comes as its halves.
            Kind::SendRecv => 0.0,
        }
    }
}
