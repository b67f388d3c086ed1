//! Groups of calls. Until it ends, a group keeps alive its communicators, and the memory that NCCL
//! writes.

use std::cell::RefCell;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::AtomicPtr;

use spark_ccl_log::MutexGuard;

use super::{Inner, serial};
use crate::error::Code;
use crate::{Error, Library};

thread_local! {
    static OPEN: RefCell<Option<Open>> = const { RefCell::new(None) };
}

/// The open group of this thread.
struct Open {
    library: Library,
    number: u64,
    depth: usize,
    /// The communicators that have calls in the group. They live until it ends, even if they are
    /// dropped.
    members: Vec<Arc<Inner>>,
    /// The places where NCCL may write handles, at the latest when the group ends.
    slots: Vec<Arc<Slot>>,
}

/// The place where NCCL writes a handle, at the latest when the call's group ends.
pub(super) type Slot = AtomicPtr<std::ffi::c_void>;

impl Library {
    /// Combines the calls of `body`: they start together when it returns. One thread can thus make
    /// the calls of several communicators, and sends and receives cannot wait for each other.
    /// Nested groups end with the outermost.
    ///
    /// If `body` fails, no call of the group starts. Blocking communicators of the group remain
    /// usable; nonblocking ones can only be aborted.
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
    /// aborted; or a nonblocking communicator was not ready in time.
    pub fn group<T, E: From<Error>>(self, body: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let group = Group::start(self)?;
        let outcome = body();
        if outcome.is_err() {
            group.cancel();
        }
        let ended = group.end();
        let value = outcome?;
        ended?;
        Ok(value)
    }
}

/// A group that has started, possibly within another. It also ends if its closure panics.
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
                in_other_thread: false,
            });
        }
        // SAFETY: the function takes no arguments, and may be called on any thread.
        library.check(NAME, unsafe { (library.api.ncclGroupStart)() })?;
        OPEN.with_borrow_mut(|open| open.get_or_insert_with(|| Open::new(library)).depth += 1);
        Ok(Self {
            library,
            ended: false,
        })
    }

    /// Makes NCCL refuse the group when it ends: one refused call is enough, and this call is
    /// always refused.
    fn cancel(&self) {
        let (nothing, none, constant) = (ptr::null_mut(), ptr::null_mut(), ptr::null());
        // SAFETY: NCCL checks the communicator first, and refuses a null one before it uses any
        // other argument.
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
            self.cancel();
            // The error only says that the group was cancelled.
            let _ = end(self.library);
        }
    }
}

fn end(library: Library) -> Result<(), Error> {
    const NAME: &str = "ncclGroupEnd";
    // SAFETY: a group is open on this thread. Its members and slots, to which its calls point, live
    // in `OPEN` until this returns.
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

    /// Releases the communicators after NCCL has ended the group.
    fn close(self, code: Code, failed: bool) {
        for member in &self.members {
            // A nonblocking communicator keeps reporting that the group was cancelled.
            let spared = code == Code::INVALID_ARGUMENT && member.has_no_error();
            if failed && !spared {
                member.fail();
                // NCCL may still write there until the communicator has been aborted.
                self.slots.iter().for_each(|slot| member.keep(slot.clone()));
            }
            *group_of(member) = None;
        }
    }

    /// Makes a communicator a member. Returns false if it is a member of another group.
    fn add(&mut self, inner: &Arc<Inner>) -> bool {
        let number = *group_of(inner).get_or_insert_with(|| {
            self.members.push(inner.clone());
            self.number
        });
        number == self.number
    }
}

fn group_of(inner: &Inner) -> MutexGuard<'_, Option<u64>> {
    inner.group.lock()
}

/// Adds a communicator to this thread's group, if there is one. Returns whether there is.
pub(super) fn join(inner: &Arc<Inner>, operation: &'static str) -> Result<bool, Error> {
    let (grouped, free) = OPEN.with_borrow_mut(|open| match open {
        Some(open) if open.library == inner.library => (true, open.add(inner)),
        _ => (false, group_of(inner).is_none()),
    });
    let in_other_thread = true;
    let taken = Error::Grouped {
        operation,
        in_other_thread,
    };
    if free { Ok(grouped) } else { Err(taken) }
}

/// Whether this thread has an open group of this library.
pub(super) fn is_open(library: Library) -> bool {
    OPEN.with_borrow(|open| open.as_ref().is_some_and(|open| open.library == library))
}

/// Keeps alive, until the group ends, a place that NCCL will write.
pub(super) fn keep(slot: &Arc<Slot>) {
    OPEN.with_borrow_mut(|open| {
        if let Some(open) = open {
            open.slots.push(slot.clone());
        }
    });
}
