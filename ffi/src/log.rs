//! The library's log lines, handed to a function of the program's.

use crate::arguments::text;
use crate::status::{Failure, Status, guarded};
use std::ffi::{CString, c_char, c_void};
use std::io;
use tracing_subscriber::EnvFilter;

/// `spark_ccl_log_function`.
type Function = extern "C" fn(line: *const c_char, data: *mut c_void);

/// The program's function, and what it wants to have passed.
#[derive(Clone, Copy)]
struct Sink {
    function: Function,
    data: *mut c_void,
}

// SAFETY: the header says that the function is called by any thread, with the program's own pointer.
unsafe impl Send for Sink {}
// SAFETY: as above; it may be called by several threads at once.
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
/// `function` may be called by any thread, by several at once, until the process ends. `filter` is null or a string that
/// ends in a null character.
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
        // SAFETY: this function's contract.
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
