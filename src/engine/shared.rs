//! The engine behind its mutex, and how callers wait on it.

use super::patience::{Pause, Rest};
use super::sleep::wake_others;
use super::{Engine, OpId, Program, Programs, Request, Task};
use crate::error::Error;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::any::Any;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Rounds that moved data after which a waiter lets other threads have the engine.
const BUSY_ROUNDS: u32 = 16;

/// The engines of this process. Whoever waits on one gives the others a push now and then, so that
/// it does not matter in which order operations of several communicators are waited for, nor whether
/// several ranks share a thread.
static FLEET: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

/// Gives every engine a push that nobody works on.
fn push_all() {
    engines(|shared| {
        if let Some(mut engine) = shared.engine.try_lock() {
            engine.progress();
            unlock(engine);
        }
    });
}

/// Does something with the engines of this process, if there are several.
pub(super) fn engines(mut work: impl FnMut(&Shared)) {
    let fleet = FLEET.lock();
    if fleet.len() < 2 {
        return;
    }
    let engines: Vec<Arc<Shared>> = fleet.iter().filter_map(Weak::upgrade).collect();
    drop(fleet);
    for shared in engines {
        work(&shared);
        if let Some(last) = Arc::into_inner(shared) {
            // Its owner is gone meanwhile. Its end takes a while, and may wait for this very thread.
            std::thread::spawn(move || drop(last));
        }
    }
}

/// An engine that threads share.
pub(crate) struct Shared {
    pub(super) engine: Mutex<Engine>,
    /// Signalled when the thread that blocked on the links does so no more.
    pub(super) woken: Condvar,
    /// Signalled when work is issued, for the optional progress thread.
    issued: Condvar,
}

impl Shared {
    pub(crate) fn new(engine: Engine) -> Arc<Self> {
        let shared = Arc::new(Self {
            engine: Mutex::new(engine),
            woken: Condvar::new(),
            issued: Condvar::new(),
        });
        let mut fleet = FLEET.lock();
        fleet.retain(|engine| engine.strong_count() > 0);
        fleet.push(Arc::downgrade(&shared));
        shared
    }

    /// Runs `work` on the engine.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut Engine) -> R) -> R {
        work(&mut self.engine.lock())
    }

    /// Checks a collective and runs it to its end.
    pub(crate) fn run(
        &self,
        check: impl FnOnce(&mut Programs) -> Result<(Task, &Program), Error>,
    ) -> Result<(), Error> {
        let mut engine = self.engine.lock();
        let id = engine.rush(check)?;
        unlock(engine);
        match id {
            None => Ok(()),
            Some(id) => {
                self.issued.notify_one();
                self.wait(id)
            }
        }
    }

    /// Checks one operation, or two that belong together, queues them and gives them a first push.
    pub(crate) fn issue(
        &self,
        check: impl FnOnce(&mut Programs) -> Result<(Request, Option<Request>), Error>,
    ) -> Result<(OpId, Option<OpId>), Error> {
        let mut engine = self.engine.lock();
        engine.check()?;
        let (first, second) = check(&mut engine.programs)?;
        let ids = (
            engine.issue(first),
            second.map(|request| engine.issue(request)),
        );
        engine.progress();
        leave(engine);
        self.issued.notify_one();
        Ok(ids)
    }

    /// The result, if the operation is done.
    pub(crate) fn test(&self, id: OpId) -> Option<Result<(), Error>> {
        let mut engine = self.engine.lock();
        engine.progress();
        engine.patrol(Instant::now());
        let result = engine.ops.take(id);
        unlock(engine);
        result
    }

    /// Waits until the operation is done and takes its result. It always ends: with success, with
    /// a fault, or at the operation's deadline.
    pub(crate) fn wait(&self, id: OpId) -> Result<(), Error> {
        self.drive(|engine| engine.ops.take(id))
    }

    /// Waits until the operation is done and leaves its result to be taken.
    pub(crate) fn settle(&self, id: OpId) {
        self.drive(|engine| engine.ops.is_done(id).then_some(()));
    }

    /// Makes progress until `outcome` has something to say.
    fn drive<R>(&self, mut outcome: impl FnMut(&mut Engine) -> Option<R>) -> R {
        let mut pause = Pause::default();
        let mut wanted = None;
        loop {
            let mut engine = self.engine.lock();
            if let Some(wanted) = wanted.take() {
                engine.patience.learn(wanted);
            }
            let (mut busy, mut idle) = (0, 0);
            while busy < BUSY_ROUNDS && idle < engine.patience.rounds() {
                let moved = engine.progress();
                if let Some(result) = outcome(&mut engine) {
                    leave(engine);
                    return result;
                }
                if moved {
                    busy += 1;
                    idle = 0;
                } else {
                    idle += 1;
                    engine.linger();
                }
            }
            engine.patrol(Instant::now());
            unlock(engine);
            push_all();
            if busy > 0 {
                pause = Pause::default();
            }
            if idle > 0 {
                match pause.rest() {
                    Rest::Yielded { was_wanted } => wanted = Some(was_wanted),
                    Rest::Block { nap } => {
                        if let Some(result) = self.block(nap, &mut outcome) {
                            return result;
                        }
                    }
                }
            }
        }
    }

    /// Waits until nothing is in flight.
    pub(crate) fn drain(&self) {
        self.drive(|engine| engine.is_idle().then_some(()));
    }

    /// Hands the buffers of an operation that nobody waits for to the engine.
    pub(crate) fn detach(&self, id: OpId, buffers: Box<dyn Any + Send>) {
        let mut engine = self.engine.lock();
        engine.ops.detach(id, buffers);
        unlock(engine);
    }

    /// The loop of the optional progress thread; ends when `stop` says so.
    pub(crate) fn run_in_background(&self, stop: impl Fn() -> bool) {
        let mut pause = Pause::default();
        while !stop() {
            let mut engine = self.engine.lock();
            if engine.is_idle() {
                self.issued
                    .wait_for(&mut engine, Duration::from_millis(100));
                pause = Pause::default();
            }
            if engine.progress() {
                pause = Pause::default();
            }
            engine.patrol(Instant::now());
            unlock(engine);
            if let Rest::Block { nap } = pause.rest() {
                self.block(nap, &mut |engine| engine.is_idle().then_some(()));
            }
        }
    }
}

/// Lets others have the engine, for longer than this thread waits on it: whoever waits on another one
/// may have to push this one.
fn leave(engine: MutexGuard<'_, Engine>) {
    let bell = (!engine.is_idle()).then(|| Arc::clone(&engine.wires.bell));
    unlock(engine);
    if let Some(bell) = bell {
        wake_others(&bell);
    }
}

/// Lets others have the engine, and drops the buffers that it is done with.
pub(super) fn unlock(mut engine: MutexGuard<'_, Engine>) {
    let discarded = engine.ops.discarded();
    if std::mem::take(&mut engine.has_news) && engine.is_blocked {
        engine.wires.bell.ring();
    }
    MutexGuard::unlock_fair(engine);
    drop(discarded);
}
