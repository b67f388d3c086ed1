//! A line on standard error about work that takes long.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use spark_ccl_console::print_error;

/// Shorter work prints nothing.
const PATIENCE: Duration = Duration::from_secs(2);

/// Does some work. While it is still under way after two seconds, prints once what is being done,
/// if there is something to say by then.
pub(crate) fn tell_if_long<R>(
    what: impl FnOnce() -> Option<String> + Send,
    work: impl FnOnce() -> R,
) -> R {
    std::thread::scope(|scope| {
        let (working, ended) = channel::<()>();
        scope.spawn(move || {
            if ended.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout)
                && let Some(what) = what()
            {
                print_error(format_args!("{what}"));
            }
        });
        let result = work();
        drop(working);
        result
    })
}
