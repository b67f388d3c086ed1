//! The tasks of a group, as kernels that wait for each other only once they run.

use super::engine::KernelEngine;
use super::enqueue::Admitted;
use crate::device::engine::StreamTask;
use crate::error::Error;
use std::collections::HashMap;
use std::sync::Arc;

/// Enqueues the tasks of a group in turns.
pub(super) fn enqueue_group(tasks: &[StreamTask<'_>]) -> Result<(), Error> {
    let admitted = tasks.iter().map(|task| {
        let engine = task.engine_as::<KernelEngine>()?;
        engine.admit(&task.task, task.stream)
    });
    let admitted = admitted.collect::<Result<Vec<_>, Error>>()?;
    // Before any is launched: a call that writes to a part of a block would otherwise wait for a call of the group that
    // reads another part. The buffers of a group are borrowed apart, so its calls need not wait for each other.
    admitted.iter().try_for_each(Admitted::hold_back)?;
    let turns = turns(tasks.iter().map(lanes));
    let mut in_turns: Vec<_> = turns.into_iter().zip(&admitted).collect();
    in_turns.sort_by_key(|&(turn, _)| turn);
    let mut launched = Vec::new();
    let mut done = Ok(());
    for (_, call) in in_turns {
        match call.launch() {
            Ok(end) => launched.push((call, end)),
            Err(error) => {
                done = Err(error);
                break;
            }
        }
    }
    // Also after an error: these run.
    for (call, end) in launched {
        done = done.and(call.note(end));
    }
    done
}

/// What keeps a task behind earlier ones: its engine, and its stream, which is known by its context, too.
fn lanes(task: &StreamTask<'_>) -> [(usize, usize); 2] {
    let engine = Arc::as_ptr(task.engine).addr();
    let context = task.stream.context().cu_ctx().addr();
    [(engine, 0), (context, task.stream.cu_stream().addr())]
}

/// When each task has its turn: one after the last earlier task of its engine, and of its stream. So those of several
/// engines alternate, as far as they are in streams of their own. If one engine's came first, they could fill their
/// stream, and the thread would wait there for a kernel that waits for one that this thread has not launched yet.
fn turns<K: Eq + std::hash::Hash + Copy>(tasks: impl Iterator<Item = [K; 2]>) -> Vec<usize> {
    let mut next = [HashMap::new(), HashMap::new()];
    let turn = |lanes: [K; 2]| {
        let earlier = next.iter().zip(&lanes);
        let turn = earlier.filter_map(|(next, lane)| next.get(lane).copied());
        let turn = turn.max().unwrap_or(0);
        for (next, lane) in next.iter_mut().zip(lanes) {
            next.insert(lane, turn + 1);
        }
        turn
    };
    tasks.map(turn).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_take_turns() {
        let tasks = [['a', 's'], ['a', 's'], ['b', 't'], ['b', 't']];
        assert_eq!(turns(tasks.into_iter()), [0, 1, 0, 1]);
    }

    #[test]
    fn an_engine_and_a_stream_keep_their_order() {
        // Two engines in one stream; then one of them in another stream.
        let tasks = [['a', 's'], ['a', 's'], ['b', 's'], ['b', 't'], ['c', 'u']];
        assert_eq!(turns(tasks.into_iter()), [0, 1, 2, 3, 0]);
    }
}
