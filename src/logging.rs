//! Log output by the environment: `SPARK_CCL_LOG`, or NCCL's variables.

use spark_ccl_config::{Log, files};
use std::sync::atomic::{AtomicBool, Ordering};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

static INSTALLED: AtomicBool = AtomicBool::new(false);

/// Installs a subscriber where the settings ask for logs and the program has none of its own.
pub(crate) fn install(log: &Log, host: &str) {
    let Some(filter) = &log.filter else {
        return;
    };
    // Pairs with nothing: it only decides who is the first. Nobody waits for that one, which a child that is forked
    // meanwhile has not got.
    if INSTALLED.swap(true, Ordering::Relaxed) {
        return;
    }
    let filter = EnvFilter::try_new(filter).unwrap_or_else(|error| {
        eprintln!("spark-ccl: the log filter {filter:?} is not valid ({error}); using info");
        EnvFilter::new("info")
    });
    match log.file_for(host, std::process::id()) {
        Some(path) => match files::create(&path) {
            Ok(file) => subscribe(filter, file),
            Err(error) => {
                eprintln!("spark-ccl: cannot log to {}: {error}", path.display());
                subscribe(filter, std::io::stderr);
            }
        },
        None => subscribe(filter, std::io::stderr),
    }
}

fn subscribe<W>(filter: EnvFilter, writer: W)
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    // A program that has a subscriber keeps it, and gets our events there.
    let _kept = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(writer)
        .with_ansi(false)
        .try_init();
}
