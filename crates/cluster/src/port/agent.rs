//! `spark-perf port-agent`: listens at a new port of this host, or tries those of others.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::sync::mpsc::channel;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use spark_ccl_console::{print, socket::connect_from};

use super::firewall::Firewall;
use super::{Attempt, Hello, Outcome};
use crate::at_once::at_once;
use crate::error::Error;
use crate::hex;

/// The time limit of an attempt; the kernel needs 3 s to find that nobody has an address.
const ATTEMPT: Duration = Duration::from_secs(5);

/// The time limit for an agent's input to end. Its starter needs at most 40 s for each
/// of two steps.
const PATIENCE: Duration = Duration::from_secs(120);

/// The command line of an agent.
#[derive(Debug, Clone, Parser)]
#[command(name = "spark-perf port-agent", hide = true)]
pub(crate) struct AgentArgs {
    #[arg(value_enum)]
    step: Step,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Step {
    /// Listen until standard input ends.
    Listen,
    /// Try what standard input names.
    Connect,
}

/// Does one step.
pub(crate) fn run(args: &AgentArgs) -> Result<u8, Error> {
    match args.step {
        Step::Listen => listen(),
        Step::Connect => connect(),
    }
}

fn listen() -> Result<u8, Error> {
    // One of both kinds of addresses, where there is IPv6.
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0))
        .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)))
        .map_err(Error::system("listening at a port"))?;
    let port = listener.local_addr().map_err(Error::system("listening"))?;
    let token = hex::random()?;
    say(&Hello {
        port: port.port(),
        token: token.clone(),
        firewall: Firewall::here(),
        ssh: crate::remote::connection(),
    })?;
    std::thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            // The peer may be gone.
            let _ = (&socket).write_all(token.as_bytes());
        }
    });
    // Ends with the connection of ssh.
    all_of(io::stdin(), PATIENCE).map_err(Error::system("waiting for the end of the input"))?;
    Ok(0)
}

fn connect() -> Result<u8, Error> {
    let read = all_of(io::stdin(), PATIENCE);
    let attempts: io::Result<Vec<Attempt>> = read.and_then(|text| Ok(serde_json::from_str(&text)?));
    let attempts = attempts.map_err(Error::system("reading what to try"))?;
    let panicked = |_| Outcome::Failed("a defect of spark-perf".to_owned());
    let outcomes = at_once(&attempts, attempt).into_iter();
    let outcomes: Vec<_> = outcomes.map(|one| one.unwrap_or_else(panicked)).collect();
    say(&outcomes)?;
    Ok(0)
}

/// An input up to its end, which must come in time: the starter may be gone while the connection is
/// still open.
fn all_of(input: impl Read + Send + 'static, patience: Duration) -> io::Result<String> {
    let (sender, receiver) = channel();
    // Nobody waits after the patience.
    std::thread::spawn(move || drop(sender.send(io::read_to_string(input))));
    let late = |_| Err(ErrorKind::TimedOut.into());
    receiver.recv_timeout(patience).unwrap_or_else(late)
}

fn say(value: &impl serde::Serialize) -> Result<(), Error> {
    let text = serde_json::to_string(value);
    let text = text.map_err(Error::system("writing JSON"))?;
    Ok(print(&(text + "\n"))?)
}

/// Connects, and reads who is there.
fn attempt(one: &Attempt) -> Outcome {
    let read = || -> io::Result<String> {
        let socket = connect_from(one.source, None, (one.target, one.port).into(), ATTEMPT)?;
        socket.set_read_timeout(Some(ATTEMPT))?;
        let mut said = vec![0; one.token.len()];
        (&socket).read_exact(&mut said)?;
        Ok(String::from_utf8_lossy(&said).into_owned())
    };
    match read() {
        Ok(said) if said == one.token => Outcome::Reached,
        Ok(_) => Outcome::Stranger,
        Err(error) => match error.kind() {
            ErrorKind::ConnectionRefused => Outcome::Refused,
            ErrorKind::TimedOut | ErrorKind::WouldBlock => Outcome::TimedOut(ATTEMPT.as_secs()),
            _ => Outcome::Failed(error.to_string()),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn an_input_ends_in_time_or_is_given_up() {
        let (own, mut peer) = UnixStream::pair().unwrap();
        peer.write_all(b"[]").unwrap();
        let error = all_of(own.try_clone().unwrap(), Duration::ZERO).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        drop(peer);
        assert!(all_of(own, PATIENCE).is_ok());
        let text = all_of(&b"[]"[..], PATIENCE).unwrap();
        assert_eq!(text, "[]");
    }
}
