//! PMI-1, the text protocol over `PMI_FD` of MPICH's Hydra, its relatives, and Slurm's `pmi2`
//! plugin.
//!
//! Each request and each answer is a line of fields `name=value`, separated by spaces. Values must
//! be short and without spaces, so ours are sent as hexadecimal text in numbered pieces. A value
//! can be read after a barrier of all ranks that follows its put.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use spark_ccl_log::Mutex;

use crate::owner::{ProtocolOwner, lock};
use crate::{Error, KeyValue, at_exit, hex};

/// Slurm reads requests into a buffer of 1024 bytes, even if it announces a larger `vallen_max`.
const LONGEST_PIECE: usize = 512;
/// Longer lines are refused; no launcher sends them.
const LONGEST_LINE: usize = 64 << 10;
const SPACE: &str = "the launcher's PMI key-value space";

/// The key-value space behind `PMI_FD`.
pub(crate) struct Pmi1Space {
    fd: RawFd,
}

impl Pmi1Space {
    pub(crate) fn new(fd: RawFd) -> Self {
        Self { fd }
    }
}

impl KeyValue for Pmi1Space {
    fn put(&mut self, key: &str, value: &[u8], deadline: Instant) -> Result<(), Error> {
        let wire = open(self.fd, deadline)?;
        lock(&wire, SPACE, deadline)?.publish(key, value, deadline)
    }

    fn get(&mut self, key: &str, deadline: Instant) -> Result<Vec<u8>, Error> {
        let wire = open(self.fd, deadline)?;
        lock(&wire, SPACE, deadline)?.read(key, deadline)
    }

    fn is_private(&self) -> bool {
        true
    }

    fn describe(&self) -> String {
        format!("{SPACE} (PMI_FD={})", self.fd)
    }
}

type Shared = Arc<Mutex<Wire<BorrowedFd<'static>>>>;

/// The process's only connection, kept until it exits: the protocol cannot be initialised twice.
static OPEN: Mutex<Option<Shared>> = Mutex::new(None);
static OWNER: ProtocolOwner = ProtocolOwner::new();

fn open(fd: RawFd, deadline: Instant) -> Result<Shared, Error> {
    let own = OWNER.check();
    own.map_err(|forked| failed("begin", forked.to_string()))?;
    let mut open = lock(&OPEN, SPACE, deadline)?;
    if let Some(wire) = open.as_ref() {
        return Ok(Arc::clone(wire));
    }
    if fd < 0 {
        return Err(failed("begin", format!("PMI_FD={fd} is not open")));
    }
    // SAFETY: `fd` is not negative, so it is not -1. The launcher opened the descriptor for this
    // protocol and named it in PMI_FD, so nothing else in this process owns or closes it. If it is
    // not open after all, the check below returns an error before anything else uses it.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    rustix::io::fcntl_getfd(fd).map_err(|error| {
        failed(
            "begin",
            format!("PMI_FD is not an open descriptor: {error}"),
        )
    })?;
    let wire = Arc::new(Mutex::new(Wire::begin(fd, deadline)?));
    at_exit::register(finalize);
    *open = Some(Arc::clone(&wire));
    Ok(wire)
}

fn finalize() {
    // Neither a thread in the middle of an exchange nor a silent launcher may delay the exit.
    let Some(open) = OPEN.try_lock() else { return };
    if let Some(mut wire) = open.as_ref().and_then(|wire| wire.try_lock()) {
        let deadline = Instant::now() + Duration::from_secs(2);
        if let Err(error) = wire.ask("finalize", "cmd=finalize", "finalize_ack", deadline) {
            spark_ccl_log::debug!("{error}");
        }
    }
}

/// The client side of the protocol.
struct Wire<F> {
    fd: F,
    received: Vec<u8>,
    kvs: String,
    piece: usize,
    /// Set if an answer did not arrive: later answers would be matched with the wrong requests.
    broken: bool,
}

impl<F: AsFd> Wire<F> {
    fn begin(fd: F, deadline: Instant) -> Result<Self, Error> {
        let mut wire = Self {
            fd,
            received: Vec::new(),
            kvs: String::new(),
            piece: LONGEST_PIECE,
            broken: false,
        };
        let hello = "cmd=init pmi_version=1 pmi_subversion=1";
        wire.ask("begin", hello, "response_to_init", deadline)?;
        let maxes = wire.ask("begin", "cmd=get_maxes", "maxes", deadline)?;
        if let Some(longest) = maxes
            .get("vallen_max")
            .and_then(|v| v.parse::<usize>().ok())
        {
            // The limit includes the C string's NUL.
            wire.piece = longest.saturating_sub(1).clamp(2, LONGEST_PIECE);
        }
        let mut name = wire.ask("begin", "cmd=get_my_kvsname", "my_kvsname", deadline)?;
        wire.kvs = name
            .remove("kvsname")
            .ok_or_else(|| failed("begin", "the launcher did not name the space".to_owned()))?;
        Ok(wire)
    }

    fn publish(&mut self, key: &str, value: &[u8], deadline: Instant) -> Result<(), Error> {
        for (i, piece) in pieces(value, self.piece).iter().enumerate() {
            let put = format!("cmd=put kvsname={} key={key}.{i} value={piece}", self.kvs);
            self.ask("put", &put, "put_result", deadline)?;
        }
        self.barrier(deadline)
    }

    fn read(&mut self, key: &str, deadline: Instant) -> Result<Vec<u8>, Error> {
        self.barrier(deadline)?;
        let first = self.piece_at(key, 0, deadline)?;
        let (count, mut text) = first
            .split_once('.')
            .and_then(|(count, text)| Some((count.parse::<u32>().ok()?, text.to_owned())))
            .ok_or_else(|| failed("get", format!("{key} holds {first:?}, which is not ours")))?;
        for i in 1..count {
            text.push_str(&self.piece_at(key, i, deadline)?);
        }
        hex::decode(&text)
            .ok_or_else(|| failed("get", format!("{key} holds something that is not ours")))
    }

    fn piece_at(&mut self, key: &str, i: u32, deadline: Instant) -> Result<String, Error> {
        let get = format!("cmd=get kvsname={} key={key}.{i}", self.kvs);
        let mut answer = self.ask("get", &get, "get_result", deadline)?;
        answer
            .remove("value")
            .ok_or_else(|| failed("get", format!("{key} has no value")))
    }

    fn barrier(&mut self, deadline: Instant) -> Result<(), Error> {
        let operation = "wait for all ranks";
        self.ask(operation, "cmd=barrier_in", "barrier_out", deadline)?;
        Ok(())
    }

    /// Sends one request and returns the fields of its answer, which must be `expected`.
    fn ask(
        &mut self,
        operation: &str,
        request: &str,
        expected: &str,
        deadline: Instant,
    ) -> Result<HashMap<String, String>, Error> {
        if self.broken {
            let reason = "an earlier request was not answered".to_owned();
            return Err(failed(operation, reason));
        }
        let begin = Instant::now();
        self.broken = true;
        let line = self
            .send(request, deadline)
            .and_then(|()| self.line(deadline))
            .map_err(|error| match error {
                Errno::TIMEDOUT => Error::Timeout {
                    space: SPACE.to_owned(),
                    operation: operation.to_owned(),
                    waited: begin.elapsed(),
                    reason: "no answer; have all ranks started?".to_owned(),
                },
                Errno::PIPE => failed(operation, "the launcher closed the connection".to_owned()),
                error => failed(operation, error.to_string()),
            })?;
        self.broken = false;
        let answer = parse(&line);
        let is_expected = answer.get("cmd").is_some_and(|cmd| cmd == expected);
        // Hydra omits it from answers to requests that cannot fail.
        let is_success = answer.get("rc").is_none_or(|rc| rc == "0");
        if !is_expected || !is_success {
            return Err(failed(operation, format!("the launcher answered {line:?}")));
        }
        Ok(answer)
    }

    fn send(&mut self, request: &str, deadline: Instant) -> Result<(), Errno> {
        let mut line = format!("{request}\n").into_bytes();
        while !line.is_empty() {
            self.wait(PollFlags::OUT, deadline)?;
            match rustix::io::write(&self.fd, &line) {
                Ok(sent) => drop(line.drain(..sent)),
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn line(&mut self, deadline: Instant) -> Result<String, Errno> {
        loop {
            if let Some(end) = self.received.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.received.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            if self.received.len() > LONGEST_LINE {
                return Err(Errno::MSGSIZE);
            }
            self.wait(PollFlags::IN, deadline)?;
            let mut bytes = [0; 4096];
            match rustix::io::read(&self.fd, &mut bytes) {
                Ok(0) => return Err(Errno::PIPE),
                Ok(n) => self.received.extend(&bytes[..n]),
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn wait(&self, flags: PollFlags, deadline: Instant) -> Result<(), Errno> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = Timespec {
                tv_sec: left.as_secs().min(i32::MAX as u64) as i64,
                tv_nsec: left.subsec_nanos().into(),
            };
            match rustix::event::poll(&mut [PollFd::new(&self.fd, flags)], Some(&left)) {
                Ok(0) => return Err(Errno::TIMEDOUT),
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Initialises the protocol and reads a value, as a rank does.
#[cfg(any(test, fuzzing))]
pub(crate) fn begin_and_read(fd: impl AsFd, deadline: Instant) -> Result<Vec<u8>, Error> {
    Wire::begin(fd, deadline)?.read("key", deadline)
}

/// The value's text in pieces of at most `longest` bytes. The first one begins with the number of
/// pieces.
fn pieces(value: &[u8], longest: usize) -> Vec<String> {
    const NUMBER: usize = "4294967295.".len();
    let text = hex::encode(value);
    let room = longest.saturating_sub(NUMBER).max(1).min(text.len());
    let (first, rest) = text.split_at(room);
    let rest: Vec<String> = rest
        .as_bytes()
        .chunks(longest.max(1))
        .map(|piece| String::from_utf8_lossy(piece).into_owned())
        .collect();
    let mut pieces = vec![format!("{}.{first}", rest.len() + 1)];
    pieces.extend(rest);
    pieces
}

fn parse(line: &str) -> HashMap<String, String> {
    line.split_ascii_whitespace()
        .filter_map(|field| field.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

fn failed(operation: &str, reason: String) -> Error {
    Error::of_space(SPACE, operation, reason)
}

#[cfg(test)]
mod tests;
