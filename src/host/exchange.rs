//! The quick way through an exchange: a small vector to every peer, then everyone's at once.
//!
//! On the links it is what the schedule's steps are, so that a rank may take it while others do not.

use super::exec::Run;
use super::wires::Wires;
use crate::task::Task;
use spark_ccl_compute::{Job, Operand};
use spark_ccl_sched::Rank;
use spark_ccl_types::Scale;

/// The lane of a schedule with one channel.
const LANE: usize = 0;

/// How far an exchange got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    Complete,
    /// So many steps of its schedule are done.
    Steps(u64),
}

/// Runs an exchange, and looks for each of its messages at most `polls` times. Does nothing with other programs.
pub(super) fn run(run: &mut Run<'_>, polls: u32) -> Progress {
    let Run {
        task, tag, wires, ..
    } = run;
    let bytes = task.input.len * task.signature.dtype.size();
    if !run.program.is_exchange() || bytes > wires.slot_bytes {
        return Progress::Steps(0);
    }
    let sent = send(task, *tag, bytes, wires);
    if sent < wires.size - 1 || !reduce(task, *tag, bytes, wires, polls) {
        return Progress::Steps(u64::from(sent));
    }
    let (own, steps) = (wires.rank, 2 * u64::from(wires.size));
    for peer in (0..wires.size).filter(|&peer| peer != own) {
        if let Ok(rx) = wires.rx(peer, LANE) {
            rx.release();
        }
    }
    if wires.unflushed.is_empty() {
        Progress::Complete
    } else {
        // All of them: what is left is that the kernel takes its bytes.
        Progress::Steps(steps)
    }
}
/// Sends to one peer after the other; to how many.
fn send(task: &Task, tag: u64, bytes: usize, wires: &mut Wires) -> u32 {
    for step in 1..wires.size {
        let peer = (wires.rank + step) % wires.size;
        let Ok(tx) = wires.tx(peer, LANE) else {
            return step - 1;
        };
        let Ok(Some(slot)) = tx.reserve(bytes) else {
            return step - 1;
        };
        let (srcs, dsts) = ([own(task)], [slot.as_mut_ptr()]);
        // SAFETY: the input is readable until the operation is done; the slot has room for as much
        // and stays lent until it is committed.
        unsafe { wires.compute_now(&job(task, &srcs, &dsts)) };
        if wires.commit(peer, LANE, bytes, tag).is_err() {
            return step - 1;
        }
    }
    wires.size - 1
}

/// Reduces the vectors of all ranks, in the order of ranks, if each arrives within `polls` polls.
fn reduce(task: &Task, tag: u64, bytes: usize, wires: &mut Wires, polls: u32) -> bool {
    let mut operands = std::mem::take(&mut wires.operands);
    operands.clear();
    for rank in 0..wires.size {
        if rank == wires.rank {
            operands.push(own(task));
        } else if let Some(ptr) = arrived(rank, tag, bytes, wires, polls) {
            let scale = Scale::One;
            operands.push(Operand { ptr, scale });
        } else {
            break;
        }
    }
    let complete = operands.len() == wires.size as usize;
    if complete {
        let dsts = [task.output.ptr];
        // SAFETY: input and output are the operation's until it is done; messages stay where they
        // are until they are released, and were checked to be as long as the input.
        unsafe { wires.compute_now(&job(task, &operands, &dsts)) };
    }
    wires.operands = operands;
    complete
}

/// The peer's message. Anything else that is there stays: the schedule's steps find it again, and say
/// what is wrong.
fn arrived(peer: Rank, tag: u64, bytes: usize, wires: &mut Wires, polls: u32) -> Option<*const u8> {
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

fn own(task: &Task) -> Operand {
    Operand {
        ptr: task.input.ptr,
        scale: task.reduction.scale,
    }
}

fn job<'a>(task: &Task, srcs: &'a [Operand], dsts: &'a [*mut u8]) -> Job<'a> {
    Job {
        dtype: task.signature.dtype,
        op: task.reduction.combine,
        srcs,
        dsts,
        count: task.input.len,
        streaming: false,
    }
}
