//! Passes the library's log lines to a function of the user.

use std::ffi::{CString, c_char, c_void};
use std::io;

use spark_ccl_abi::arguments::text;
use spark_ccl_abi::failure::{Failure, guarded};
use tracing_subscriber::EnvFilter;

use crate::status::Status;

/// `spark_ccl_log_function`.
type Function = extern "C" fn(line: *const c_char, data: *mut c_void);

/// The user's function, and the pointer that it gets.
#[derive(Clone, Copy)]
struct Sink {
    function: Function,
    data: *mut c_void,
}

// SAFETY: `data` is only passed to `function`, which any thread may call with it, by the contract
// of `spark_ccl_set_log`. Nothing else makes a sink.
unsafe impl Send for Sink {}
// SAFETY: a shared sink is only copied. Several threads may call `function` with `data` at once, by
// the contract of `spark_ccl_set_log`. Nothing else makes a sink.
unsafe impl Sync for Sink {}

impl io::Write for Sink {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = line.strip_suffix(b"\n").unwrap_or(line);
        let text: Vec<u8> = text.iter().copied().filter(|&byte| byte != 0).collect();
        if let Ok(text) = CString::new(text) {
            (self.function)(text.as_ptr(), self.data);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// `spark_ccl_set_log`.
///
/// # Safety
/// `function` may be called with `data` by any thread, by several at once, until the process ends.
/// `filter` is null, or points to a string that ends in a null character, and that nobody writes
/// until this returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_set_log(
    function: Option<Function>,
    data: *mut c_void,
    filter: *const c_char,
) -> Status {
    guarded(|| {
        let Some(function) = function else {
            return Err(Failure::invalid("the log function is null".to_owned()));
        };
        // SAFETY: `filter` is null, or points to a string that ends in a null character, and that
        // nobody writes until this returns (this function's contract). The text is used within this
        // closure only: `EnvFilter` copies it.
        let filter = unsafe { text(filter) };
        let filter = EnvFilter::try_new(filter.as_deref().unwrap_or("info"))
            .map_err(|error| Failure::invalid(format!("the log filter is not valid: {error}")))?;
        let sink = Sink { function, data };
        tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(move || sink)
            .with_ansi(false)
            .try_init()
            .map_err(|_| Failure::invalid("log lines go somewhere already".to_owned()))
    })
}
