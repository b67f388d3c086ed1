//! Groups: a thread's calls that proceed together. Knows calls; does not know their arguments.

use std::cell::RefCell;

use spark_ccl_fork::Process;

use crate::enqueued::Enqueued;
use crate::started::Started;
use crate::status::{Failure, Status, guarded};

/// The groups that a thread has opened.
struct Group {
    /// The process that has opened them. A forked child's copy means nothing there.
    owner: Process,
    /// How many groups are open, one within the other.
    depth: usize,
    /// In their order, with those that could not be started.
    calls: Vec<Result<Started, Failure>>,
    /// Those that are to be enqueued in streams.
    enqueued: Vec<Enqueued>,
}

thread_local! {
    static GROUP: RefCell<Option<Group>> = const { RefCell::new(None) };
}

/// `spark_ccl_group_start`.
#[unsafe(no_mangle)]
pub extern "C" fn spark_ccl_group_start() -> Status {
    guarded(|| {
        let is_open = with_group(|group| {
            let group = group.get_or_insert_with(|| Group {
                owner: Process::here(),
                depth: 0,
                calls: Vec::new(),
                enqueued: Vec::new(),
            });
            group.depth += 1;
        });
        is_open.ok_or_else(|| {
            Failure::invalid("this thread is about to end, and opens no group".to_owned())
        })
    })
}

/// `spark_ccl_group_end`.
#[unsafe(no_mangle)]
pub extern "C" fn spark_ccl_group_end() -> Status {
    guarded(|| {
        let ended = with_group(|own| {
            let group = own.as_mut()?;
            group.depth -= 1;
            Some(own.take_if(|group| group.depth == 0))
        });
        match ended.flatten() {
            None => Err(Failure::invalid(
                "no group is open in this thread".to_owned(),
            )),
            Some(None) => Ok(()),
            Some(Some(group)) => group.end(),
        }
    })
}

impl Group {
    fn end(self) -> Result<(), Failure> {
        // Device calls come first, since waiting for the others may take long. If a call of the
        // group could not begin, none is enqueued.
        let enqueued = if self.calls.iter().all(Result::is_ok) {
            Enqueued::enqueue(&self.enqueued)
        } else {
            Ok(())
        };
        // All of them: their buffers are the caller's again.
        let wait = |call: Result<Started, Failure>| call.and_then(|started| started.wait());
        let outcomes: Vec<_> = self.calls.into_iter().map(wait).collect();
        outcomes
            .into_iter()
            .collect::<Result<(), _>>()
            .and(enqueued)
    }
}

/// Whether this thread has opened one.
pub(crate) fn is_open() -> bool {
    with_group(|group| group.is_some()).unwrap_or(false)
}

/// An error if this thread has opened one. For functions that wait for other ranks themselves.
pub(crate) fn must_be_closed(function: &str) -> Result<(), Failure> {
    if !is_open() {
        return Ok(());
    }
    Err(Failure::invalid(format!(
        "spark_ccl_{function} waits for other ranks, and cannot be called within a group: end the \
         group of this thread first"
    )))
}

/// Leaves a call to the open group.
pub(crate) fn keep(started: Started) {
    push(Ok(started));
}

/// Leaves a call for a stream to the open group, which enqueues it when it ends. Gives it back
/// where none is open.
pub(crate) fn keep_enqueued(call: Enqueued) -> Option<Enqueued> {
    let mut call = Some(call);
    with_group(|group| {
        if let Some(group) = group {
            group.enqueued.extend(call.take());
        }
    });
    call
}

/// Has the open group end with this failure, if there is one.
pub(crate) fn keep_failure(failure: &Failure) {
    if is_open() {
        push(Err(failure.clone()));
    }
}

fn push(call: Result<Started, Failure>) {
    with_group(|group| {
        if let Some(group) = group {
            group.calls.push(call);
        }
    });
}

/// This thread's groups, if there are any; `None` while the thread ends.
fn with_group<R>(work: impl FnOnce(&mut Option<Group>) -> R) -> Option<R> {
    let inherited = |group: &mut Option<Group>| group.take_if(|group| !group.owner.is_here());
    let result = GROUP.try_with(|group| {
        // Dropped after the borrow ends.
        let parents = inherited(&mut group.borrow_mut());
        drop(parents);
        work(&mut group.borrow_mut())
    });
    result.ok()
}
