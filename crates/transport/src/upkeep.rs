//! Looks after links that nobody else polls. Only a look finds out that a rail has failed, and
//! sends again what was on its way there. By then, a rank that has handed its last message to a
//! link may wait elsewhere: for a GPU, for another communicator, or for anything outside of this
//! library. And that may wait for the message.

use std::io;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use spark_ccl_fork::PerProcess;
use spark_ccl_log::Mutex;

/// How often the thread looks: a link goes without a look for less than twice as long.
const EVERY: Duration = Duration::from_millis(200);

static LINKS: PerProcess<Mutex<Links>> = PerProcess::new();

/// A link that a thread of the process looks after.
pub(crate) trait Upkeep: Send + Sync {
    /// Does what is due. Does not wait for another thread that has the link.
    fn look(&self);
}

#[derive(Default)]
struct Links {
    all: Vec<Weak<dyn Upkeep>>,
    /// A thread looks after them.
    are_kept: bool,
}

/// Has a thread of this process look after a link until it is dropped.
///
/// # Errors
/// The thread cannot be started.
pub(crate) fn keep(link: &Arc<impl Upkeep + 'static>) -> io::Result<()> {
    let link: Weak<dyn Upkeep> = Arc::downgrade(link) as _;
    let mut links = LINKS.get().lock();
    if !links.are_kept {
        spark_ccl_log::spawn("spark-upkeep", keep_all)?;
        links.are_kept = true;
    }
    links.all.push(link);
    Ok(())
}

/// Lets another thread be started if this one has panicked.
struct Keeping;

impl Drop for Keeping {
    fn drop(&mut self) {
        if thread::panicking() {
            LINKS.get().lock().are_kept = false;
        }
    }
}

/// Ends when there are no links any more.
fn keep_all() {
    let _keeping = Keeping;
    loop {
        thread::sleep(EVERY);
        let mut links = LINKS.get().lock();
        links.all.retain(|link| link.strong_count() > 0);
        if links.all.is_empty() {
            links.are_kept = false;
            return;
        }
        let all = links.all.clone();
        drop(links);
        for link in all.iter().filter_map(Weak::upgrade) {
            link.look();
        }
    }
}
