//! Runs spark-perf on other hosts, over the system's ssh client, and on this one without it.
//!
//! Knows hosts, as users name them, and how ssh fails. Must not know what is run there.

mod all;
mod args;
mod error;
mod here;
mod hosts;
mod listen;
mod printed;
mod shell;

use std::io::Write;
use std::net::IpAddr;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant, SystemTime};

use all::ask_all;
pub(crate) use args::{HostArgs, Remote, SshArgs};
pub(crate) use error::Error;
pub(crate) use hosts::{Host, both_here, parse_list, parse_one, settled};
pub(crate) use listen::{Listening, listen_on_all};
use printed::Printed;

/// The time limit for the last output of a program to arrive once it has ended.
const LAST_OUTPUT: Duration = Duration::from_secs(5);
/// The pause between two looks at a host that runs something.
const LOOK: Duration = Duration::from_millis(10);

/// The output of spark-perf on a host, and its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    /// When it was started, and when it had ended, by this machine's clock.
    pub(crate) times: [SystemTime; 2],
}

impl Answer {
    /// The JSON that it printed; all of that, if it holds none.
    pub(crate) fn json(&self) -> &[u8] {
        printed::json(&self.stdout).unwrap_or(&self.stdout)
    }

    /// The lines that it printed on standard output, then those on standard error, without empty
    /// ones.
    pub(crate) fn lines(&self) -> Vec<String> {
        let both = [&self.stdout, &self.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        let lines = both.iter().flat_map(|text| text.lines().map(str::trim));
        lines
            .filter(|line| !line.is_empty())
            .map(str::to_owned)
            .collect()
    }
}

/// Runs spark-perf with these arguments on all hosts at once, gives each its `input`, by the host's
/// number, and waits for at most `limit`. Returns what each host answered, in the order of the
/// hosts. When the time is over, the connection is cut: a program that still runs there must end by
/// itself.
pub(crate) fn run_on_all(
    remote: &Remote,
    hosts: &[Host],
    arguments: &[&str],
    input: impl Fn(usize) -> Vec<u8>,
    limit: Duration,
) -> Vec<Result<Answer, Error>> {
    let deadline = Instant::now() + limit;
    let inputs: Vec<_> = (0..hosts.len()).map(input).collect();
    ask_all(hosts, limit, |number, host| {
        run_on(remote, host, arguments, &inputs[number], deadline)
    })
}

/// Runs this program here, as [`run_on_all`] runs it elsewhere.
pub(crate) fn run_here(arguments: &[&str], limit: Duration) -> Result<Answer, Error> {
    let host = Host::here();
    let remote = Remote::default();
    run_on(&remote, &host, arguments, &[], Instant::now() + limit)
}

/// Both ends of the connection that the ssh server has set in the environment.
pub(crate) fn connection() -> Option<[IpAddr; 2]> {
    ends(spark_ccl_config::Env::from_process().get("SSH_CONNECTION")?)
}

/// The client's address, and this host's, in the value of `SSH_CONNECTION`: addresses, each with a
/// port. An address of a link has the link's name after it.
pub(crate) fn ends(connection: &str) -> Option<[IpAddr; 2]> {
    let words: Vec<_> = connection.split_whitespace().collect();
    let address = |index: usize| words.get(index)?.split('%').next()?.parse().ok();
    Some([address(0)?, address(2)?])
}

fn run_on(
    remote: &Remote,
    host: &Host,
    arguments: &[&str],
    input: &[u8],
    deadline: Instant,
) -> Result<Answer, Error> {
    let mut command = remote.command(host, arguments);
    let started = SystemTime::now();
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|source| remote.not_started(host, source))?;
    if let Some(mut pipe) = child.stdin.take() {
        let input = input.to_vec();
        // A host that does not read its input says why by its status.
        std::thread::spawn(move || pipe.write_all(&input));
    }
    let stdout = Printed::of(child.stdout.take());
    let stderr = Printed::of(child.stderr.take());
    let status = wait(&mut child, host, deadline)?;
    let times = [started, SystemTime::now()];
    // A process that the program leaves behind may keep its pipes open for ever.
    let patience = Instant::now() + LAST_OUTPUT;
    let answer = Answer {
        status,
        stdout: stdout.until(patience),
        stderr: stderr.until(patience),
        times,
    };
    match Remote::failure(host, answer.status, &answer.stderr) {
        None => Ok(answer),
        Some(error) => Err(error),
    }
}

fn wait(child: &mut Child, host: &Host, deadline: Instant) -> Result<ExitStatus, Error> {
    let started = Instant::now();
    loop {
        let ended = child.try_wait();
        if let Some(status) = ended.map_err(|source| Error::wait(host, source))? {
            return Ok(status);
        }
        if Instant::now() >= deadline {
            // It may have ended just now.
            let _ = child.kill();
            let _ = child.wait();
            return Err(Error::late(host, started.elapsed()));
        }
        std::thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_of_a_connection_are_read() {
        let both = ends("fe80::1%en0 50022 10.0.0.2 22").unwrap();
        assert_eq!(both.map(|end| end.to_string()), ["fe80::1", "10.0.0.2"]);
        assert!(ends("").is_none());
    }

    #[test]
    fn what_a_program_leaves_behind_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let pid = folder.path().join("pid");
        let script = format!("sleep 600 & echo $! > {}; echo said", pid.display());
        let remote = Remote::by(&["sh", "-c", &script]);
        let host = &parse_list("spark-b").unwrap()[0];
        let limit = Duration::from_secs(300);
        // More than a pipe holds.
        let input = vec![0; 1 << 20];
        let before = SystemTime::now();
        let answer = run_on(&remote, host, &[], &input, Instant::now() + limit).unwrap();
        let [started, ended] = answer.times;
        assert!(before <= started && started <= ended && ended <= SystemTime::now());
        assert_eq!(answer.stdout, b"said\n");
        let sleeper = std::fs::read_to_string(pid).unwrap();
        let sleeper = rustix::process::Pid::from_raw(sleeper.trim().parse().unwrap()).unwrap();
        // It was not waited for: it is still there.
        rustix::process::kill_process(sleeper, rustix::process::Signal::KILL).unwrap();
    }
}
