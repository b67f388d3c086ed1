//! How a waiter blocks in the kernel, and what wakes it up: its peers, a fault, or another thread.
//!
//! Of the threads that wait on one engine, one blocks on the links, and the others wait for that
//! one. Another thread that moves or queues something meanwhile rings the engine's bell. It may
//! have ended an operation, or an operation may now wait for an event that the blocked thread does
//! not watch.

use std::sync::Arc;
use std::time::Duration;

use spark_ccl_log::Held;
use spark_ccl_transport::Wait;

use super::engine::unattended_engines;
use super::{Core, HostEngine, blocked};

impl Core {
    /// Prepares to block; `None` if something moved meanwhile.
    fn begin_block(&mut self) -> Option<Wait> {
        let mut wait = self.wires.arm();
        wait.settle();
        if self.progress() {
            self.wires.disarm();
            return None;
        }
        self.wires.watch(&mut wait);
        self.is_blocked = true;
        Some(wait)
    }

    fn end_block(&mut self) {
        self.is_blocked = false;
        self.wires.disarm();
    }
}

impl HostEngine {
    /// Blocks until something may have changed, for `most` at most. Returns the outcome if there is
    /// one already. If some events of this engine cannot end the block, it lasts no longer than
    /// `nap`.
    pub(super) fn block<R>(
        &self,
        nap: Duration,
        most: Duration,
        outcome: &mut impl FnMut(&mut Core) -> Option<R>,
    ) -> Option<R> {
        // Others leave the waiting to this thread until it is back, so no log line may hold it up.
        let _held = Held::new();
        let mut core = self.lock();
        // Another thread may have brought it about.
        let result = outcome(&mut core);
        if result.is_some() {
            return result;
        }
        if core.is_blocked {
            drop(core);
            self.wait_on(&self.woken, most, |core| core.is_blocked);
            return None;
        }
        let wait = core.begin_block();
        let bell = Arc::clone(&core.wires.bell);
        drop(core);
        let wait = wait?;
        blocked::note(&bell);
        let most = if wait.is_blind() || self.others_need_pushes() {
            nap
        } else {
            most
        };
        wait.block(&bell, most);
        blocked::forget(&bell);
        self.lock().end_block();
        self.woken.notify_all();
        None
    }

    /// Whether another engine of this process may have work that no thread attends to.
    fn others_need_pushes(&self) -> bool {
        let mut some = false;
        unattended_engines(|engine| {
            // A thread that holds its lock may leave work behind.
            let is_idle = || engine.try_lock().is_some_and(|it| it.is_idle());
            some |= !std::ptr::eq(engine, self) && !is_idle();
        });
        some
    }
}

#[cfg(test)]
mod tests {
    use spark_ccl_types::{DType, Operation};

    use crate::api::communicator::Communicator;
    use crate::host::request::Request;
    use crate::memory::buffer::Region;
    use crate::plan::Program;
    use crate::task::Spec;

    fn receipt(word: &mut u32) -> Request {
        let mut task = Spec::new(Operation::Recv, DType::U32)
            .task((Region::empty(), Region::host(std::ptr::from_mut(word), 1)));
        task.signature.count = 1;
        Request {
            task,
            program: Program::recv(1, 0, 1),
        }
    }

    #[test]
    fn nobody_blocks_on_links_that_came_after_the_wait_was_armed() {
        let comms = Communicator::local(2).unwrap();
        // The other end makes the link, and sends nothing.
        let there = comms[0].recv(vec![0_u32], 1).start().unwrap();
        let mut word = 0;
        let request = receipt(&mut word);
        let blocked = comms[1].membership().with(|core| {
            core.issue(request);
            let blocked = [(); 2].map(|()| core.begin_block().is_some());
            core.end_block();
            blocked
        });
        comms[0].send(&[7_u32], 1).run().unwrap();
        comms[1].send(&[8_u32], 0).run().unwrap();
        comms[1].membership().drain().unwrap();
        assert_eq!((blocked.unwrap(), word), ([false, true], 7));
        assert_eq!(there.wait().unwrap(), [8]);
    }
}
