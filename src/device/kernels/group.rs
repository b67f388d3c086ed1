//! The tasks of a group, as kernels that wait for each other only once they run.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use spark_ccl_cuda::cudarc::driver::CudaStream;
use spark_ccl_cuda::{DeviceBlock, is_capturing};
use spark_ccl_gpu::{self as gpu, Call, Message};

use super::copies::{Copies, MessageCopy, check_across, copied};
use super::engine::KernelEngine;
use super::enqueue::{Admitted, LaunchEnd, Work};
use crate::device::allocation::new_block;
use crate::engine::StreamTask;
use crate::error::Error;
use crate::memory::device::block::{Block, BlockMemory};

/// Enqueues the tasks of a group, in the order of `turns`.
pub(super) fn enqueue_together(tasks: &[StreamTask<'_>]) -> Result<(), Error> {
    let admitted = tasks.iter().map(|task| {
        let engine = task.engine_as::<KernelEngine>()?;
        engine.admit(&task.task, task.stream)
    });
    let admitted = admitted.collect::<Result<Vec<_>, Error>>()?;
    let mut kernels = kernels(&admitted);
    kernels.iter().try_for_each(GroupKernel::check)?;
    check_messages(&kernels)?;
    kernels
        .iter_mut()
        .try_for_each(GroupKernel::copy_messages)?;
    // Held until all calls are noted: nothing is freed meanwhile.
    let passed = admitted.iter().map(Admitted::to_launch);
    let _passed = passed.collect::<Result<Vec<_>, _>>()?;
    // Before any is launched: a call that writes to a part of a block would otherwise wait for a
    // call of the group that reads another part. The buffers of a group are borrowed apart, or
    // copied, so its calls need not wait for each other.
    admitted.iter().try_for_each(Admitted::hold_back)?;
    let turns = turns(kernels.iter().map(GroupKernel::lanes));
    let mut in_turns: Vec<_> = turns.into_iter().zip(&kernels).collect();
    in_turns.sort_by_key(|&(turn, _)| turn);
    let in_turns: Vec<_> = in_turns.into_iter().map(|(_, kernel)| kernel).collect();
    let mut launched = Vec::new();
    let mut done = Ok(());
    for (place, &kernel) in in_turns.iter().enumerate() {
        let result = kernel.launch();
        kernel.calls.iter().for_each(|call| call.observe(&result));
        let (end, was_launched) = kernel.engine.end_of(result, kernel.stream());
        launched.extend(end.map(|end| (kernel, end)));
        done = was_launched;
        if let Err(error) = &done {
            let (earlier, missing) = in_turns.split_at(place);
            give_up_parts(earlier, missing, error);
            break;
        }
    }
    // Also after an error, since these kernels run.
    for (kernel, end) in launched {
        done = done.and(kernel.note(&end));
    }
    done
}

/// Fails each communicator with kernels of the group that were launched and others that were not:
/// there, this rank is not in step with the others any more.
fn give_up_parts(launched: &[&GroupKernel<'_>], missing: &[&GroupKernel<'_>], error: &Error) {
    for kernel in missing {
        let mut launched = launched.iter();
        if launched.any(|other| std::ptr::eq(other.engine, kernel.engine)) {
            let base = &kernel.engine.base;
            base.give_up(format!("a group was enqueued in part: {error}"));
        }
    }
}

/// A kernel, and the calls that it does: a collective, or all sends and receives of an engine.
struct GroupKernel<'a> {
    engine: &'a KernelEngine,
    calls: Vec<&'a Admitted<'a>>,
    does: Does<'a>,
}

enum Does<'a> {
    Collective(&'a Call),
    Messages(Vec<Message>, Option<Copies>),
}

/// The kernels of a group: of each engine, its collectives, and then all its messages together.
/// That order is the same on all ranks, also where these put messages into the group at different
/// places between collectives.
fn kernels<'a>(admitted: &'a [Admitted<'a>]) -> Vec<GroupKernel<'a>> {
    let mut collectives = Vec::new();
    let mut passing: Vec<GroupKernel<'a>> = Vec::new();
    for call in admitted {
        let engine = call.engine;
        let kernel = |does| GroupKernel {
            engine,
            calls: vec![call],
            does,
        };
        match &call.work {
            Work::Collective(collective) => collectives.push(kernel(Does::Collective(collective))),
            Work::Messages(messages) => {
                let mut others = passing.iter_mut();
                match others.find(|other| std::ptr::eq(other.engine, engine)) {
                    Some(other) => other.add(call, messages),
                    None => passing.push(kernel(Does::Messages(messages.clone(), None))),
                }
            }
        }
    }
    collectives.append(&mut passing);
    collectives
}

/// Refuses messages of several communicators that need the same memory.
fn check_messages(kernels: &[GroupKernel<'_>]) -> Result<(), Error> {
    let messages = kernels.iter().filter_map(|kernel| match &kernel.does {
        Does::Messages(messages, _) => Some(&messages[..]),
        Does::Collective(_) => None,
    });
    let of_each: Vec<_> = messages.collect();
    // Within one communicator, messages that others may overwrite are sent from copies.
    if of_each.len() > 1 {
        check_across(&of_each)?;
    }
    Ok(())
}

impl<'a> GroupKernel<'a> {
    fn add(&mut self, call: &'a Admitted<'a>, more: &[Message]) {
        if let Does::Messages(messages, _) = &mut self.does {
            messages.extend_from_slice(more);
            self.calls.push(call);
        }
    }

    /// Redirects messages to copies where another one may arrive first.
    fn copy_messages(&mut self) -> Result<(), Error> {
        let (engine, limit) = (self.engine, self.limit()?);
        if let Does::Messages(messages, copies) = &mut self.does {
            *copies = copied(messages, |bytes| {
                let member = engine.member().ok_or_else(|| engine.base.gone())?;
                member
                    .copies()
                    .of(bytes, |bytes| block_for(engine, bytes, limit))
            })?;
        }
        Ok(())
    }

    /// The stream in which the kernel is launched.
    fn stream(&self) -> &'a Arc<CudaStream> {
        self.calls[0].stream
    }

    /// The other streams of the kernel's calls.
    fn others(&self) -> Vec<&'a Arc<CudaStream>> {
        let mut others = Vec::new();
        for call in &self.calls {
            if call.stream != self.stream() && !others.contains(&call.stream) {
                others.push(call.stream);
            }
        }
        others
    }

    /// How long the kernel may take: the longest time limit of its calls, if one has its own.
    fn limit(&self) -> Result<Option<Duration>, Error> {
        if self.calls.iter().all(|call| call.limit().is_none()) {
            return Ok(None);
        }
        let timeout = self.engine.base.lock()?.calls.timeout;
        let limits = self.calls.iter().map(|call| call.limit());
        Ok(limits.map(|limit| limit.unwrap_or(timeout)).max())
    }

    /// The two queues in which the kernel comes behind earlier ones: its engine's, and its
    /// stream's, which is identified by handle and context.
    fn lanes(&self) -> [(usize, usize); 2] {
        let engine = std::ptr::from_ref(self.engine).addr();
        let context = self.stream().context().cu_ctx().addr();
        [(engine, 0), (context, self.stream().cu_stream().addr())]
    }

    /// Refuses messages in several streams if one of the streams captures.
    fn check(&self) -> Result<(), Error> {
        let others = self.others();
        let mut streams = others.iter().copied().chain([self.stream()]);
        let captures = |stream: &Arc<CudaStream>| self.engine.base.own(is_capturing(stream));
        if others.is_empty()
            || !streams.try_fold(false, |any, stream| Ok::<_, Error>(any | captures(stream)?))?
        {
            return Ok(());
        }
        Err(Error::Invalid {
            operation: "group",
            problem: "messages of a communicator are passed together; to capture them, put them in one stream"
                .to_owned(),
        })
    }

    /// Launches the kernel; after an error, a part of it may run.
    fn launch(&self) -> Result<LaunchEnd, Error> {
        match &self.does {
            Does::Collective(call) => self.engine.launch(call, self.stream(), self.limit()?),
            Does::Messages(messages, copies) => {
                let copies = copies.as_ref().map(|copies| &copies.all[..]);
                self.pass(messages, copies.unwrap_or_default())
            }
        }
    }

    /// Passes messages in the order of all streams of their calls: behind what is there, and before
    /// what comes.
    fn pass(&self, messages: &[Message], copies: &[MessageCopy]) -> Result<LaunchEnd, Error> {
        let (base, others) = (&self.engine.base, self.others());
        let lost = |error| base.lost(error);
        for other in &others {
            if let Some(before) = base.end(other).map_err(lost)? {
                before.hold_back(self.stream()).map_err(lost)?;
            }
        }
        let (stream, limit) = (self.stream(), self.limit()?);
        let end = self.engine.pass(messages, copies, stream, limit)?;
        if let Ok(Some(end)) = &end {
            others
                .iter()
                .try_for_each(|other| end.hold_back(other))
                .map_err(|error| self.engine.failed(gpu::Error::InPart(error)))?;
        }
        Ok(end)
    }

    /// Notes for the memory of the kernel's calls when the kernel will have run.
    fn note(&self, end: &LaunchEnd) -> Result<(), Error> {
        if let Does::Messages(_, Some(copies)) = &self.does
            && let Some(member) = self.engine.member()
        {
            member.copies().were_used(copies, end);
        }
        let mut done = Ok(());
        for call in &self.calls {
            done = done.and(call.note(end.clone()));
        }
        done
    }
}

/// Memory for copies of messages. Where it runs out, waits for it as for memory of the user's.
fn block_for(
    engine: &KernelEngine,
    bytes: usize,
    limit: Option<Duration>,
) -> Result<Arc<Block>, Error> {
    let base = &engine.base;
    let made = {
        // The driver could keep this thread waiting while it frees memory.
        let _passed = base.to_launch(limit)?;
        base.own(DeviceBlock::new(&base.context, bytes))
    };
    match made {
        Ok(memory) => {
            let gpu = Arc::clone(&base.gpu);
            Ok(Block::new(BlockMemory::Device(memory), bytes, gpu))
        }
        Err(error) if error.is_of_memory() => new_block(engine, bytes),
        Err(error) => Err(error.into()),
    }
}

/// When each kernel has its turn: after the earlier kernels of its engine and of its stream. So
/// kernels of several engines alternate, if they are in several streams. If all kernels of one
/// engine came first, they could fill their stream. The thread would wait there for a kernel, and
/// that kernel for one which this thread has not launched yet.
fn turns<K: Eq + std::hash::Hash + Copy>(kernels: impl Iterator<Item = [K; 2]>) -> Vec<usize> {
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
    kernels.map(turn).collect()
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
