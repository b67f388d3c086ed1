//! The driver's answers about streams, kept for as long as one call enqueues in them.

use std::cell::RefCell;
use std::marker::PhantomData;

use cudarc::driver::{CudaStream, sys};

use crate::Error;

thread_local! {
    /// The streams of the call that this thread is in.
    static STREAMS: RefCell<Vec<Asked>> = const { RefCell::new(Vec::new()) };
}

/// A stream, by its handle, and the answers so far.
#[derive(Debug)]
struct Asked {
    handle: usize,
    answers: Answers,
}

/// Answers that stay true while a call enqueues in the stream.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// Whether the stream captures a graph.
    pub(crate) captures: Option<bool>,
    /// The stream's number.
    pub(crate) id: Option<u64>,
}

/// Until it is dropped, this thread asks the driver about each stream only once.
#[derive(Debug)]
#[must_use = "it ends when it is dropped"]
pub struct OneCall {
    /// The answers are kept for this thread.
    not_send: PhantomData<*const ()>,
}

/// Begins a call that enqueues in these streams. A default stream is another one in each context or
/// thread, so the driver is asked about it each time.
///
/// A capture that another thread begins or ends meanwhile may be missed, as also by one question.
///
/// # Safety
/// Streams that are no default ones live until what this returns is dropped.
pub unsafe fn one_call(streams: impl Iterator<Item = sys::CUstream>) -> OneCall {
    // Null and the two special handles.
    let own = streams.map(<*mut _>::addr).filter(|&at| at > 2);
    let asked = own.map(|handle| Asked {
        handle,
        answers: Answers::default(),
    });
    let _ = STREAMS.try_with(|streams| {
        let mut streams = streams.borrow_mut();
        streams.clear();
        streams.extend(asked);
    });
    OneCall {
        not_send: PhantomData,
    }
}

impl Drop for OneCall {
    fn drop(&mut self) {
        let _ = STREAMS.try_with(|streams| streams.borrow_mut().clear());
    }
}

/// The answer about a stream that is known already, else the one that `ask` gets, which is kept
/// where the stream is one of this thread's call.
pub(crate) fn answer<T: Copy>(
    stream: &CudaStream,
    of: impl Fn(&mut Answers) -> &mut Option<T>,
    ask: impl FnOnce() -> Result<T, Error>,
) -> Result<T, Error> {
    let handle = stream.cu_stream().addr();
    let kept = |value: Option<T>| {
        let found = STREAMS.try_with(|streams| {
            let mut streams = streams.borrow_mut();
            let asked = streams.iter_mut().find(|asked| asked.handle == handle)?;
            let known = of(&mut asked.answers);
            *known = known.or(value);
            *known
        });
        found.ok().flatten()
    };
    if let Some(known) = kept(None) {
        return Ok(known);
    }
    let value = ask()?;
    kept(Some(value));
    Ok(value)
}
