//! Fast path for an exchange, that is a small `all_reduce`, `all_gather` or `all_to_all`. It sends
//! one message to every peer (the same for all, or a block for each). Then it reduces or
//! concatenates one from every peer.
//!
//! It sends exactly the messages of the schedule's steps, so a rank may take it while others do
//! not.

use spark_ccl_compute::{Job, Operand, Streaming};
use spark_ccl_sched::Rank;
use spark_ccl_types::{Operation, Scale};

use super::run::{ASK_SLOTLESS_BYTES, Run};
use super::wires::Wires;
use crate::task::Task;

/// The lane of a schedule with one channel.
const LANE: usize = 0;

/// How far an exchange has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    Complete,
    /// This number of steps of its schedule is done.
    Steps(u64),
}

/// An exchange of a task.
struct Exchange<'a> {
    task: &'a Task,
    tag: u64,
    /// Elements, and bytes, of a message.
    count: usize,
    bytes: usize,
    /// Bytes from one rank's part of the input to the next rank's; 0 where all get the same.
    stride: usize,
}

impl<'a> Exchange<'a> {
    fn of(task: &'a Task, tag: u64, size: u32) -> Self {
        let element = task.signature.dtype.size();
        let differs = task.operation() == Operation::AllToAll;
        let count = if differs {
            task.input.len / size as usize
        } else {
            task.input.len
        };
        let bytes = count * element;
        let stride = if differs { bytes } else { 0 };
        Self {
            task,
            tag,
            count,
            bytes,
            stride,
        }
    }

    /// This rank's operand for `rank`, with a factor.
    fn own(&self, rank: Rank, scale: Scale) -> Operand {
        Operand {
            ptr: self
                .task
                .input
                .ptr
                .wrapping_add(rank as usize * self.stride),
            scale,
        }
    }

    fn job<'j>(&self, srcs: &'j [Operand], dsts: &'j [*mut u8]) -> Job<'j> {
        Job {
            dtype: self.task.signature.dtype,
            op: self.task.reduction.combine,
            srcs,
            dsts,
            count: self.count,
            streaming: Streaming::Nothing,
            divides: false,
        }
    }
}

/// Runs an exchange, and looks for each of its messages at most `polls` times. Does nothing with
/// long vectors.
pub(super) fn run(run: &mut Run<'_>, polls: u32) -> Progress {
    let Run {
        task, tag, wires, ..
    } = run;
    let exchange = Exchange::of(task, *tag, wires.size);
    let bytes = exchange.bytes;
    let reduces = task.operation().reduces();
    // Longer data that is only moved may go without a slot.
    if bytes > wires.slot_bytes || !reduces && bytes >= ASK_SLOTLESS_BYTES {
        return Progress::Steps(0);
    }
    let sent = send(&exchange, wires);
    if sent < wires.size - 1 {
        return Progress::Steps(u64::from(sent));
    }
    let taken = if reduces {
        reduce(&exchange, wires, polls)
    } else {
        gather(&exchange, wires, polls)
    };
    match taken {
        Progress::Complete if wires.unflushed.is_empty() => Progress::Complete,
        // All steps are done; only the kernel has yet to take bytes.
        Progress::Complete => Progress::Steps(2 * u64::from(wires.size)),
        Progress::Steps(steps) => Progress::Steps(u64::from(sent) + steps),
    }
}

/// Sends to one peer after the other, as far as the links take it at once. Returns their number.
fn send(exchange: &Exchange<'_>, wires: &mut Wires) -> u32 {
    let &Exchange { bytes, tag, .. } = exchange;
    for step in 1..wires.size {
        let peer = (wires.rank + step) % wires.size;
        let Ok(tx) = wires.tx(peer, LANE) else {
            return step - 1;
        };
        let Ok(Some(slot)) = tx.reserve(bytes) else {
            return step - 1;
        };
        let scale = exchange.task.reduction.scale_of_sent();
        let (srcs, dsts) = ([exchange.own(peer, scale)], [slot.as_mut_ptr()]);
        let job = Job {
            streaming: wires.slot_stores(peer, LANE, bytes),
            ..exchange.job(&srcs, &dsts)
        };
        // SAFETY: the source is all of the input, or the peer's block of it; `check` has found a
        // block for each rank. The input is readable until the operation is done. The slot has room
        // for as much (`reserve`), is this side's until it is committed below, and is no part of
        // the input.
        unsafe { wires.compute_now(&job) };
        if wires.commit(peer, LANE, bytes, tag).is_err() {
            return step - 1;
        }
    }
    wires.size - 1
}

/// Reduces the vectors of all ranks, in the order of ranks, if each arrives within `polls` polls.
fn reduce(exchange: &Exchange<'_>, wires: &mut Wires, polls: u32) -> Progress {
    let &Exchange {
        task, bytes, tag, ..
    } = exchange;
    let mut operands = std::mem::take(&mut wires.operands);
    operands.clear();
    for rank in 0..wires.size {
        if rank == wires.rank {
            operands.push(exchange.own(rank, task.reduction.scale));
        } else if let Some(ptr) = arrived(rank, tag, bytes, wires, polls) {
            let scale = task.reduction.scale_of_received();
            operands.push(Operand { ptr, scale });
        } else {
            break;
        }
    }
    let complete = operands.len() == wires.size as usize;
    if complete {
        let dsts = [task.output.ptr];
        // SAFETY: input and output are the operation's until it is done; they are as long, and the
        // same or apart (`check`). The other operands are messages in the links' memory, apart from
        // the output. `arrived` has checked that they are as long as the input, and they stay where
        // they are until they are released below.
        unsafe { wires.compute_now(&exchange.job(&operands, &dsts)) };
        let own = wires.rank;
        for peer in (0..wires.size).filter(|&peer| peer != own) {
            release(peer, wires);
        }
    }
    wires.operands = operands;
    if complete {
        Progress::Complete
    } else {
        Progress::Steps(0)
    }
}

/// Concatenates this rank's vector and the others', as long as each arrives within `polls` polls.
fn gather(exchange: &Exchange<'_>, wires: &mut Wires, polls: u32) -> Progress {
    let &Exchange {
        task, bytes, tag, ..
    } = exchange;
    let block = |rank: Rank| task.output.ptr.wrapping_add(rank as usize * bytes);
    let mut steps = 0;
    if !task.in_place {
        let own = exchange.own(wires.rank, Scale::One);
        let (srcs, dsts) = ([own], [block(wires.rank)]);
        // SAFETY: the output has a block for each rank, as long as the input or a block of it. It
        // lies apart from the input (`check`). Both are the operation's until it is done.
        unsafe { wires.compute_now(&exchange.job(&srcs, &dsts)) };
        steps += 1;
    }
    for distance in 1..wires.size {
        let from = (wires.rank + wires.size - distance) % wires.size;
        let Some(ptr) = arrived(from, tag, bytes, wires, polls) else {
            return Progress::Steps(steps);
        };
        let scale = Scale::One;
        let (srcs, dsts) = ([Operand { ptr, scale }], [block(from)]);
        // SAFETY: the output has a block for each rank, and is the operation's until it is done.
        // The message lies in the link's memory, apart from the output. `arrived` has checked that
        // it is as long as a block, and it stays where it is until it is released below.
        unsafe { wires.compute_now(&exchange.job(&srcs, &dsts)) };
        release(from, wires);
        steps += 1;
    }
    Progress::Complete
}

#[inline]
fn release(peer: Rank, wires: &mut Wires) {
    if let Ok(rx) = wires.rx(peer, LANE) {
        rx.release();
    }
}

/// The peer's message. Anything else that is there stays: the schedule's steps find it again, and
/// report what is wrong.
#[inline]
pub(super) fn arrived(
    peer: Rank,
    tag: u64,
    bytes: usize,
    wires: &mut Wires,
    polls: u32,
) -> Option<*const u8> {
    let rx = wires.rx(peer, LANE).ok()?;
    for _ in 0..polls {
        match rx.peek() {
            Ok(None) => std::hint::spin_loop(),
            Ok(Some(arrival)) if arrival.tag == tag && arrival.payload.len() == bytes => {
                return Some(arrival.payload.as_ptr());
            }
            _ => return None,
        }
    }
    None
}
