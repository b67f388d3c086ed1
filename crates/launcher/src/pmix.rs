//! PMIx, the key-value space of Open MPI and of `srun --mpi=pmix`, through `libpmix.so.2`.
//!
//! The library is opened at the first use. Calls that wait for other ranks are made in their
//! non-blocking form, so these waits have a deadline. `PMIx_Init`, which waits for the launcher's
//! daemon on this host, has no such form; nor have `PMIx_Put` and `PMIx_Commit`, which wait for the
//! library's own thread. So each exchange runs on a thread of ours, which is abandoned at the
//! deadline.

mod ffi;

use std::ffi::{CString, c_void};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{io, ptr};

use ffi::{Api, Proc, Status, Value};
use spark_ccl_fork::within;
use spark_ccl_log::{Condvar, Mutex};

use crate::owner::{ProtocolOwner, lock};
use crate::{Error, KeyValue, at_exit};

const SPACE: &str = "the launcher's PMIx key-value space";

/// The key-value space of the PMIx server that started this process.
pub(crate) struct PmixSpace;

impl KeyValue for PmixSpace {
    fn put(&mut self, key: &str, value: &[u8], deadline: Instant) -> Result<(), Error> {
        let (key, value) = (key.to_owned(), value.to_vec());
        with_client(deadline, move |client| {
            client.put(&key, &value)?;
            client.fence(deadline)
        })
    }

    fn get(&mut self, key: &str, deadline: Instant) -> Result<Vec<u8>, Error> {
        let key = key.to_owned();
        with_client(deadline, move |client| {
            client.fence(deadline)?;
            client.get_of_rank_0(&key, deadline)
        })
    }

    fn is_private(&self) -> bool {
        true
    }

    fn describe(&self) -> String {
        SPACE.to_owned()
    }
}

/// The process's only connection. It is kept until the process exits: PMIx cannot reliably be
/// initialised again.
static CLIENT: Mutex<Option<Client>> = Mutex::new(None);
static OWNER: ProtocolOwner = ProtocolOwner::new();

/// How much longer than its deadline an exchange may take, to report what it waits for.
const LAST_WORDS: Duration = Duration::from_millis(500);

fn with_client<T: Send + 'static>(
    deadline: Instant,
    work: impl FnOnce(&Client) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let own = OWNER.check();
    own.map_err(|forked| failed("begin", forked.to_string()))?;
    in_time(deadline, move || {
        let mut client = lock(&CLIENT, SPACE, deadline)?;
        if client.is_none() {
            *client = Some(Client::begin()?);
            at_exit::register(finalize);
        }
        match client.as_ref() {
            // Other ranks would match the barriers of an exchange that begins too late with those
            // of the next one.
            Some(client) if Instant::now() < deadline => work(client),
            _ => Err(failed("begin", "no time is left".to_owned())),
        }
    })
}

/// Runs an exchange, and waits for it a little longer than until the deadline.
fn in_time<T: Send + 'static>(
    deadline: Instant,
    exchange: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let begin = Instant::now();
    let exchange = || {
        spark_ccl_log::become_own();
        exchange()
    };
    within(deadline + LAST_WORDS, exchange).unwrap_or_else(|error| {
        let operation = "begin or put (PMIx_Init, PMIx_Put, PMIx_Commit)";
        if error.kind() != io::ErrorKind::TimedOut {
            return Err(failed(operation, error.to_string()));
        }
        Err(Error::Timeout {
            space: SPACE.to_owned(),
            operation: operation.to_owned(),
            waited: begin.elapsed(),
            reason: "the library does not return; does the launcher's daemon on this host run?"
                .to_owned(),
        })
    })
}

fn finalize() {
    // A thread in the middle of an exchange must not hold up the exit.
    let Some(client) = CLIENT.try_lock() else {
        return;
    };
    if let Some(client) = client.as_ref() {
        // SAFETY: a client exists only after PMIx_Init has succeeded, and only this function
        // finalizes, once. The lock on `CLIENT` excludes all other calls of ours; callbacks own
        // what they use.
        unsafe { (client.api.finalize)(ptr::null(), 0) };
    }
}

struct Client {
    api: Api,
    me: Proc,
}

impl Client {
    fn begin() -> Result<Self, Error> {
        let api = Api::open().map_err(|tried| Error::NoPmix { tried })?;
        let mut me = Proc::default();
        // SAFETY: `me` is a live local with the layout of `pmix_proc_t`, which the function fills
        // in. A null list of length 0 means no directives.
        let status = unsafe { (api.init)(&raw mut me, ptr::null(), 0) };
        let client = Self { api, me };
        client.check("begin (PMIx_Init)", status)?;
        Ok(client)
    }

    fn put(&self, key: &str, value: &[u8]) -> Result<(), Error> {
        let key = c_key(key)?;
        let mut value = Value::bytes(value);
        // SAFETY: PMIx_Init has succeeded, since only then a client exists. The key ends with NUL.
        // The value has the library's layout and points to bytes that outlive the call, which
        // copies them.
        let status = unsafe { (self.api.put)(ffi::GLOBAL, key.as_ptr(), &raw mut value) };
        self.check("put (PMIx_Put)", status)?;
        // SAFETY: the function takes no arguments, and PMIx_Init has succeeded, since only then a
        // client exists.
        let status = unsafe { (self.api.commit)() };
        self.check("put (PMIx_Commit)", status)
    }

    /// Waits until all ranks of the launch have entered the fence.
    fn fence(&self, deadline: Instant) -> Result<(), Error> {
        let operation = "wait for all ranks (PMIx_Fence)";
        self.wait(operation, deadline, Waiter::default(), |_, for_callback| {
            // SAFETY: null lists of length 0 mean all processes and no directives. `for_callback`
            // is a pointer from `Arc::into_raw`, and `on_done`, which has the type of fence
            // callbacks, takes that reference over.
            unsafe { (self.api.fence_nb)(ptr::null(), 0, ptr::null(), 0, on_done, for_callback) }
        })
        .map(drop)
    }

    fn get_of_rank_0(&self, key: &str, deadline: Instant) -> Result<Vec<u8>, Error> {
        let waiter = Waiter {
            key: c_key(key)?,
            ..Waiter::default()
        };
        let mut root = self.me;
        root.rank = 0;
        self.wait(
            "get (PMIx_Get)",
            deadline,
            waiter,
            |waiter, for_callback| {
                // SAFETY: `root` has the library's layout and is copied before the call returns.
                // The key ends with NUL, and the callback's reference keeps the waiter that owns it
                // alive until PMIx is done with the request, even after our deadline.
                // `for_callback` is a pointer from `Arc::into_raw`, and `on_value`, which has the
                // type of value callbacks, takes that reference over.
                unsafe {
                    (self.api.get_nb)(
                        &raw const root,
                        waiter.key.as_ptr(),
                        ptr::null(),
                        0,
                        on_value,
                        for_callback,
                    )
                }
            },
        )
    }

    /// Starts an operation whose callback gets a reference to `waiter`, and waits for the callback.
    fn wait(
        &self,
        operation: &str,
        deadline: Instant,
        waiter: Waiter,
        start: impl FnOnce(&Waiter, *mut c_void) -> Status,
    ) -> Result<Vec<u8>, Error> {
        let begin = Instant::now();
        let waiter = Arc::new(waiter);
        let for_callback = Arc::into_raw(Arc::clone(&waiter));
        let status = start(&waiter, for_callback.cast_mut().cast());
        if status != ffi::SUCCESS {
            // SAFETY: the pointer is from `Arc::into_raw` above. PMIx calls back only if the start
            // succeeded, so the reference has not been taken over.
            drop(unsafe { Arc::from_raw(for_callback) });
            return match status {
                ffi::OPERATION_SUCCEEDED => Ok(Vec::new()),
                status => Err(self.failure(operation, status)),
            };
        }
        let answer = waiter.answer.lock();
        let is_open = |answer: &mut Option<_>| answer.is_none();
        let mut answer = waiter.ready.wait_while_until(answer, is_open, deadline);
        match answer.take() {
            Some((ffi::SUCCESS, value)) => Ok(value),
            Some((status, _)) => Err(self.failure(operation, status)),
            None => Err(Error::Timeout {
                space: SPACE.to_owned(),
                operation: operation.to_owned(),
                waited: begin.elapsed(),
                reason: "no answer; have all ranks started?".to_owned(),
            }),
        }
    }

    fn check(&self, operation: &str, status: Status) -> Result<(), Error> {
        if status == ffi::SUCCESS {
            Ok(())
        } else {
            Err(self.failure(operation, status))
        }
    }

    fn failure(&self, operation: &str, status: Status) -> Error {
        failed(
            operation,
            format!("{} ({status})", self.api.text_of(status)),
        )
    }
}

/// Where a callback on PMIx's thread leaves its result.
#[derive(Default)]
struct Waiter {
    /// The key of a get. PMIx does not copy it, and reads it until it calls back.
    key: CString,
    answer: Mutex<Option<(Status, Vec<u8>)>>,
    ready: Condvar,
}

impl Waiter {
    fn finish(&self, status: Status, value: Vec<u8>) {
        *self.answer.lock() = Some((status, value));
        self.ready.notify_one();
    }
}

extern "C" fn on_done(status: Status, waiter: *mut c_void) {
    // SAFETY: `wait` passed PMIx a pointer from `Arc::into_raw` of an `Arc<Waiter>`, and takes it
    // back only if no callback follows. PMIx calls back once, so the reference is taken over once.
    let waiter = unsafe { Arc::from_raw(waiter.cast::<Waiter>().cast_const()) };
    waiter.finish(status, Vec::new());
}

extern "C" fn on_value(status: Status, value: *mut Value, waiter: *mut c_void) {
    // SAFETY: `wait` passed PMIx a pointer from `Arc::into_raw` of an `Arc<Waiter>`, and takes it
    // back only if no callback follows. PMIx calls back once, so the reference is taken over once.
    let waiter = unsafe { Arc::from_raw(waiter.cast::<Waiter>().cast_const()) };
    // SAFETY: PMIx passes null, or a pointer to a `pmix_value_t` that stays valid and unchanged
    // during the callback; `Value` has that layout.
    let bytes = unsafe { value.as_ref() }.and_then(|value| {
        // SAFETY: the value comes from PMIx: if its type is a byte object, its pointer and length
        // describe one.
        unsafe { value.to_bytes() }
    });
    match bytes {
        Some(bytes) => waiter.finish(status, bytes),
        None if status == ffi::SUCCESS => waiter.finish(ffi::NOT_FOUND, Vec::new()),
        None => waiter.finish(status, Vec::new()),
    }
}

/// The key as PMIx gets it. The prefix keeps it apart from names that begin with "pmix", which
/// belong to PMIx.
fn c_key(key: &str) -> Result<CString, Error> {
    CString::new(format!("spark_ccl.{key}"))
        .ok()
        .filter(|key| key.as_bytes_with_nul().len() <= ffi::KEY_LENGTH)
        .ok_or_else(|| failed("use a key", format!("{key:?} is too long or holds a NUL")))
}

fn failed(operation: &str, reason: String) -> Error {
    Error::of_space(SPACE, operation, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(100);
    const LONG: Duration = Duration::from_secs(15);

    #[test]
    fn a_library_that_does_not_return_is_a_timeout() {
        let (_never, ends) = std::sync::mpsc::channel::<()>();
        let begin = Instant::now();
        let error = in_time(begin + SHORT, move || Ok(ends.recv())).unwrap_err();
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
        assert!(begin.elapsed() < LONG);
    }

    #[test]
    fn another_thread_in_an_exchange_is_not_waited_for_beyond_the_deadline() {
        let other = CLIENT.lock();
        let error = PmixSpace
            .put("key", b"", Instant::now() + SHORT)
            .unwrap_err();
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
        assert!(error.to_string().contains("another thread"), "{error}");
        drop(other);
    }
}
