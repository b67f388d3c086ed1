//! Programs on other hosts that print a line, and then run until they are not needed any more.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use super::all::ask_all;
use super::{Error, Host, Remote, printed};

/// The longest line.
const LONGEST: u64 = 1 << 20;

/// A program that stays until this is dropped, or its host is cut off: it ends with its standard
/// input.
pub(crate) struct Listening {
    /// Its first line.
    pub(crate) said: Vec<u8>,
    child: Child,
}

impl Drop for Listening {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// It may have ended already.
fn end(child: &mut Child) {
    drop(child.stdin.take());
    let _ = child.kill();
    let _ = child.wait();
}

/// Runs spark-perf with these arguments on all hosts at once, and waits for at most `limit` for a
/// line of each.
pub(crate) fn listen_on_all(
    remote: &Remote,
    hosts: &[Host],
    arguments: &[&str],
    limit: Duration,
) -> Vec<Result<Listening, Error>> {
    let deadline = Instant::now() + limit;
    ask_all(hosts, limit, |_, host| {
        let mut command = remote.command(host, arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let spawned = command.stderr(Stdio::null()).spawn();
        let mut child = spawned.map_err(|source| remote.not_started(host, source))?;
        let left = deadline.saturating_duration_since(Instant::now());
        if let Some(said) = first_line(&mut child, left) {
            return Ok(Listening { said, child });
        }
        end(&mut child);
        Err(Error::late(host, limit))
    })
}

/// The first line that is JSON: shells may print others before.
fn first_line(child: &mut Child, limit: Duration) -> Option<Vec<u8>> {
    let mut lines = BufReader::new(child.stdout.take()?.take(LONGEST)).split(b'\n');
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let line = lines.find_map(|line| line.ok().filter(|it| printed::json(it).is_some()));
        // Nobody waits after the limit.
        let _ = sender.send(line);
    });
    receiver.recv_timeout(limit).ok().flatten()
}
