//! Polls links that nobody else polls. Only a poll finds out that a rail has failed, and sends again what was on its way
//! there. A rank that has handed its last message to a link may wait elsewhere by then: for a GPU, for another
//! communicator, or for anything outside of this library; and what it waits for may wait for that message.

use std::io;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use spark_ccl_fork::PerProcess;
use spark_ccl_log::Mutex;

use super::core::Core;
use super::tx::Tx;

/// How often the thread looks: a link goes without a poll for less than twice as long.
const EVERY: Duration = Duration::from_millis(200);

static LINKS: PerProcess<Mutex<Links>> = PerProcess::new();

#[derive(Default)]
struct Links {
    all: Vec<Weak<Mutex<Core>>>,
    /// There is a thread that polls them.
    are_polled: bool,
}

/// Has a thread of this process poll a link that nobody else polls, until both halves are dropped. With only one rail, there
/// is nothing to do.
///
/// # Errors
/// The thread cannot be started.
pub fn keep_polled(tx: &Tx) -> io::Result<()> {
    if tx.core.lock().rails().count() < 2 {
        return Ok(());
    }
    let mut links = LINKS.get().lock();
    if !links.are_polled {
        spark_ccl_log::spawn("spark-upkeep", poll_all)?;
        links.are_polled = true;
    }
    links.all.push(Arc::downgrade(&tx.core));
    Ok(())
}

/// Lets another thread be started where this one has panicked.
struct Polling;

impl Drop for Polling {
    fn drop(&mut self) {
        if thread::panicking() {
            LINKS.get().lock().are_polled = false;
        }
    }
}

/// Ends when there are no links any more.
fn poll_all() {
    let _polling = Polling;
    loop {
        thread::sleep(EVERY);
        let mut links = LINKS.get().lock();
        links.all.retain(|link| link.strong_count() > 0);
        if links.all.is_empty() {
            links.are_polled = false;
            return;
        }
        let all = links.all.clone();
        drop(links);
        for link in all.iter().filter_map(Weak::upgrade) {
            // Where another thread has the link, it polls.
            if let Some(mut core) = link.try_lock() {
                core.poll_if_neglected();
            }
        }
    }
}
