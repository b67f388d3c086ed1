use std::cell::RefCell;
use std::ptr;
use std::sync::atomic::AtomicPtr;
use std::sync::{Arc, MutexGuard, PoisonError};

use super::{Inner, serial};
use crate::error::Code;
use crate::{Error, Library};

thread_local! {
    static OPEN: RefCell<Option<Open>> = const { RefCell::new(None) };
}

/// This thread's group.
struct Open {
    library: Library,
    number: u64,
    depth: usize,
    /// The communicators with calls in it: they live until it ends, whoever drops them.
    members: Vec<Arc<Inner>>,
    /// Where NCCL may write a handle as late as at its end.
    slots: Vec<Arc<Slot>>,
}

/// Where NCCL writes a handle, at the latest when the group of the call ends.
pub(super) type Slot = AtomicPtr<std::ffi::c_void>;

impl Library {
    /// Does the calls of `body` as one: they start together when it returns, so that one thread can
    /// do them for several communicators, and sends and receives cannot wait for each other.
    /// Groups within groups end with the outermost.
    ///
    /// When `body` fails, nothing of the group starts. Its communicators are as they were if they block; others can only be
    /// aborted.
    ///
    /// ```no_run
    /// # use spark_ccl_nccl::{Communicator, DeviceSlice, Error, Library, Stream};
    /// # fn exchange(library: Library, comm: &Communicator, mine: DeviceSlice, theirs: DeviceSlice,
    /// #     peer: usize, stream: Stream) -> Result<(), Error> {
    /// library.group(|| {
    ///     comm.send(mine, peer, stream)?;
    ///     comm.recv(theirs, peer, stream)
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The error of `body`; else NCCL's, after which all communicators of the group can only be
    /// aborted; or a communicator that does not block was not ready in time.
    pub fn group<T, E: From<Error>>(self, body: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let group = Group::start(self)?;
        let outcome = body();
        if outcome.is_err() {
            group.call_off();
        }
        let ended = group.end();
        let value = outcome?;
        ended?;
        Ok(value)
    }
}

/// A started group, or one within it; it ends also when its closure panics.
struct Group {
    library: Library,
    ended: bool,
}

impl Group {
    fn start(library: Library) -> Result<Self, Error> {
        const NAME: &str = "ncclGroupStart";
        let other = |open: &Option<Open>| open.as_ref().is_some_and(|open| open.library != library);
        if OPEN.with_borrow(other) {
            return Err(Error::Grouped {
                operation: NAME,
                elsewhere: false,
            });
        }
        // SAFETY: it takes nothing.
        library.check(NAME, unsafe { (library.api.ncclGroupStart)() })?;
        OPEN.with_borrow_mut(|open| open.get_or_insert_with(|| Open::new(library)).depth += 1);
        Ok(Self {
            library,
            ended: false,
        })
    }

    /// Has NCCL refuse the group when it ends: one refused call does, and this one always is.
    fn call_off(&self) {
        let (nothing, none, constant) = (ptr::null_mut(), ptr::null_mut(), ptr::null());
        // SAFETY: NCCL looks at the communicator first, and there is none.
        unsafe {
            (self.library.api.ncclAllReduce)(constant, nothing, 0, 0, 0, none, ptr::null_mut())
        };
    }

    fn end(mut self) -> Result<(), Error> {
        self.ended = true;
        end(self.library)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.ended {
            self.call_off();
            // It says that it was called off.
            let _ = end(self.library);
        }
    }
}

fn end(library: Library) -> Result<(), Error> {
    const NAME: &str = "ncclGroupEnd";
    // SAFETY: a group was started on this thread, and what its calls point to lives.
    let code = Code(unsafe { (library.api.ncclGroupEnd)() });
    let open = OPEN.with_borrow_mut(|open| {
        let depth = &mut open.as_mut()?.depth;
        *depth -= 1;
        if *depth == 0 { open.take() } else { None }
    });
    let members = open.as_ref().map_or(&[][..], |open| &open.members);
    let result = match code {
        Code::SUCCESS => Ok(()),
        Code::IN_PROGRESS => members.iter().try_for_each(|member| member.wait(NAME)),
        code => Err(library.failed(NAME, members.first().and_then(|first| first.rank()), code)),
    };
    if let Some(open) = open {
        open.close(code, result.is_err());
    }
    result
}

impl Open {
    fn new(library: Library) -> Self {
        Self {
            library,
            number: serial(),
            depth: 0,
            members: Vec::new(),
            slots: Vec::new(),
        }
    }

    /// Lets the communicators go, once NCCL has.
    fn close(self, code: Code, failed: bool) {
        for member in &self.members {
            // One that does not block goes on to say that the group was called off.
            let spared = code == Code::INVALID_ARGUMENT && member.is_fine();
            if failed && !spared {
                member.fail();
                // NCCL may still write there, until the communicator has been aborted.
                self.slots.iter().for_each(|slot| member.keep(slot.clone()));
            }
            *group_of(member) = None;
        }
    }

    /// Makes a communicator a member; says whether no other group has it.
    fn add(&mut self, inner: &Arc<Inner>) -> bool {
        let number = *group_of(inner).get_or_insert_with(|| {
            self.members.push(inner.clone());
            self.number
        });
        number == self.number
    }
}

fn group_of(inner: &Inner) -> MutexGuard<'_, Option<u64>> {
    inner.group.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a communicator part of this thread's group, if there is one; says whether there is.
pub(super) fn join(inner: &Arc<Inner>, operation: &'static str) -> Result<bool, Error> {
    let (grouped, free) = OPEN.with_borrow_mut(|open| match open {
        Some(open) if open.library == inner.library => (true, open.add(inner)),
        _ => (false, group_of(inner).is_none()),
    });
    let elsewhere = true;
    let taken = Error::Grouped {
        operation,
        elsewhere,
    };
    if free { Ok(grouped) } else { Err(taken) }
}

/// Whether this thread has a group of this library.
pub(super) fn is_open(library: Library) -> bool {
    OPEN.with_borrow(|open| open.as_ref().is_some_and(|open| open.library == library))
}

/// Keeps what NCCL will write until the group has ended.
pub(super) fn keep(slot: &Arc<Slot>) {
    OPEN.with_borrow_mut(|open| {
        if let Some(open) = open {
            open.slots.push(slot.clone());
        }
    });
}
