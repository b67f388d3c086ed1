//! Log output by the environment: `SPARK_CCL_LOG`, or NCCL's variables.

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use spark_ccl_config::{Log, files};
use spark_ccl_fork::PerProcess;
use spark_ccl_log::{Lines, Mutex, remark, tell};
use tracing_subscriber::EnvFilter;

/// A call that waits for this long says so, once.
pub(crate) const REMARK_AFTER: Duration = Duration::from_secs(30);

static INSTALLED: AtomicBool = AtomicBool::new(false);

/// Emits warnings about settings, even if nothing asks for logs: a misspelt name has no other
/// effect. A process emits each once; further processes of a host, only to the log.
pub(crate) fn warn_once(warnings: &[String], is_first: bool) {
    static SAID: PerProcess<Mutex<BTreeSet<String>>> = PerProcess::new();
    for warning in warnings {
        let is_new = SAID.get().lock().insert(warning.clone());
        match is_new {
            true if is_first => remark(warning),
            true => spark_ccl_log::warn!("{warning}"),
            false => {}
        }
    }
}

/// Installs a subscriber where the settings ask for logs and the user has none of its own. Its
/// lines are written by a thread of their own, so a pipe that nobody reads, or a file system that
/// hangs, holds up nothing else.
pub(crate) fn install(log: &Log, host: &str) {
    let Some(filter) = &log.filter else {
        return;
    };
    // Pairs with nothing: it only decides who is the first. Nobody waits for that one, since a
    // child that is forked meanwhile lacks it.
    if INSTALLED.swap(true, Ordering::Relaxed) {
        return;
    }
    let filter = EnvFilter::try_new(filter).unwrap_or_else(|error| {
        tell(format!(
            "spark-ccl: the log filter {filter:?} is not valid ({error}); using info"
        ));
        EnvFilter::new("info")
    });
    let mut lines = match log.file_for(host, std::process::id()) {
        Some(path) => Lines::to_file(move || {
            let opened = files::create_log(&path);
            if let Err(error) = &opened {
                let path = path.display();
                tell(format!("spark-ccl: cannot log to {path}: {error}"));
            }
            opened.ok()
        }),
        None => Lines::to_stderr(),
    };
    // Has the file opened, even if nothing is ever logged. It returns at once, and never fails.
    let _ = lines.write(&[]);
    // A program that has a subscriber keeps it, and gets our events there.
    let _kept = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(move || lines.clone())
        .with_ansi(false)
        .try_init();
}
