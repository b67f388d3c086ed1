//! A client of PyTorch's `TCPStore`, which torchrun's agent serves at `MASTER_ADDR:MASTER_PORT`.
//!
//! A request is a byte that names it, followed by its arguments. Numbers are in native byte order;
//! text and bytes are preceded by their length in 64 bits. The first request on a connection is the
//! validation with its magic number. Only some requests are answered.

use std::io::{self, Read, Write};
use std::net::TcpStream;
#[cfg(any(test, fuzzing))]
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use spark_ccl_fork::lookup;

use crate::{Error, KeyValue};

const VALIDATE: u8 = 0;
const SET: u8 = 1;
const GET: u8 = 3;
const CHECK: u8 = 5;
const WAIT: u8 = 6;

const MAGIC: u32 = 0x3C85_F7CE;
/// The answer to `CHECK`: all keys exist.
const READY: u8 = 0;
/// The answer to `WAIT`: all keys exist.
const STOP_WAITING: u8 = 0;
/// Longer values are refused; we never store any.
const MAX_VALUE: u64 = 1 << 20;

/// The store of a torchrun agent. Any process that can reach its port can read it.
pub(crate) struct TcpStore {
    host: String,
    port: u16,
    prefix: String,
    stream: Option<TcpStream>,
}

impl KeyValue for TcpStore {
    fn put(&mut self, key: &str, value: &[u8], deadline: Instant) -> Result<(), Error> {
        let key = format!("{}{key}", self.prefix);
        self.attempt("publish rank 0's address", deadline, |stream| {
            stream.send(&set_request(&key, value))?;
            // SET has no answer, so check that the store has the key.
            stream.send(&keys_request(CHECK, &key))?;
            stream.expect(READY)
        })
    }

    fn get(&mut self, key: &str, deadline: Instant) -> Result<Vec<u8>, Error> {
        let key = format!("{}{key}", self.prefix);
        self.attempt("wait for rank 0's address", deadline, |stream| {
            // Wait for the key first: the store closes the connection on a GET of a key that does
            // not exist.
            stream.send(&keys_request(WAIT, &key))?;
            stream.expect(STOP_WAITING)?;
            stream.send(&get_request(&key))?;
            stream.value()
        })
    }

    fn is_private(&self) -> bool {
        false
    }

    fn describe(&self) -> String {
        format!("torchrun's store at {}:{}", self.host, self.port)
    }
}

impl TcpStore {
    /// Keys get `prefix`, so that they do not collide with those of other users of the store.
    pub(crate) fn new(host: String, port: u16, prefix: String) -> Self {
        Self {
            host,
            port,
            prefix,
            stream: None,
        }
    }

    /// Runs one exchange. After a failure the stream's state is unknown, and it is dropped.
    fn attempt<T>(
        &mut self,
        operation: &str,
        deadline: Instant,
        exchange: impl FnOnce(&mut Timed<'_>) -> io::Result<T>,
    ) -> Result<T, Error> {
        let begin = Instant::now();
        let result = match self.stream.take() {
            Some(stream) => Ok(stream),
            None => connect(&self.host, self.port, deadline),
        }
        .and_then(|mut stream| {
            let value = exchange(&mut Timed {
                stream: &mut stream,
                deadline,
            })?;
            self.stream = Some(stream);
            Ok(value)
        });
        result.map_err(|error| {
            let (space, operation) = (self.describe(), operation.to_owned());
            if is_timeout(&error) {
                let reason = "no answer; is rank 0 running?".to_owned();
                Error::Timeout {
                    space,
                    operation,
                    waited: begin.elapsed(),
                    reason,
                }
            } else {
                Error::of_space(space, operation, error.to_string())
            }
        })
    }
}

/// Connects and validates. Retries until the deadline, since ranks may start before the agent
/// listens.
fn connect(host: &str, port: u16, deadline: Instant) -> io::Result<TcpStream> {
    loop {
        match connect_once(host, port, deadline) {
            Ok(mut stream) => {
                stream.set_nodelay(true)?;
                Timed {
                    stream: &mut stream,
                    deadline,
                }
                .send(&validate_request())?;
                return Ok(stream);
            }
            Err(error) if Instant::now() + RETRY >= deadline => return Err(error),
            Err(_) => thread::sleep(RETRY),
        }
    }
}

const RETRY: Duration = Duration::from_millis(100);
/// How long one address may take to connect if there are others. All are tried again.
const ATTEMPT: Duration = Duration::from_secs(3);

fn connect_once(host: &str, port: u16, deadline: Instant) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    let mut addresses = lookup(host, port, deadline)?.into_iter();
    let count = addresses.len();
    while let Some(address) = addresses.next() {
        let share = share(left(deadline)?, addresses.len(), count);
        match TcpStream::connect_timeout(&address, share) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// How long one of `count` addresses may take to connect, of the time that is left, before `others`
/// are tried.
fn share(left: Duration, others: usize, count: usize) -> Duration {
    // A silent address leaves time for the others, and for those before it to be tried again, soon
    // also where the deadline is far.
    let longest = if count == 1 { left } else { ATTEMPT };
    longest.min(left / (1 + others as u32))
}

/// A stream whose transfers all have the same deadline.
struct Timed<'a> {
    stream: &'a mut TcpStream,
    deadline: Instant,
}

impl Timed<'_> {
    fn send(&mut self, request: &[u8]) -> io::Result<()> {
        self.stream.set_write_timeout(Some(left(self.deadline)?))?;
        self.stream.write_all(request)
    }

    fn receive(&mut self, mut bytes: &mut [u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.stream.set_read_timeout(Some(left(self.deadline)?))?;
            match self.stream.read(bytes) {
                Ok(0) => {
                    let closed = "the store closed the connection; is it a TCPStore?";
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, closed));
                }
                Ok(n) => bytes = &mut bytes[n..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn expect(&mut self, expected: u8) -> io::Result<()> {
        let mut answer = [0];
        self.receive(&mut answer)?;
        if answer[0] == expected {
            return Ok(());
        }
        Err(io::Error::other(format!(
            "expected the answer {expected}, got {}",
            answer[0]
        )))
    }

    fn value(&mut self) -> io::Result<Vec<u8>> {
        let mut length = [0; 8];
        self.receive(&mut length)?;
        let length = u64::from_ne_bytes(length);
        if length > MAX_VALUE {
            return Err(io::Error::other(format!(
                "a value of {length} bytes is too long"
            )));
        }
        let mut value = vec![0; length as usize];
        self.receive(&mut value)?;
        Ok(value)
    }
}

/// Reads the answer to a request for a value.
#[cfg(any(test, fuzzing))]
pub(crate) fn read_value(stream: impl Into<OwnedFd>, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::from(stream.into());
    let stream = &mut stream;
    Timed { stream, deadline }.value()
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    Ok(left)
}

/// Whether an error is a timeout; a socket's own timeout is reported as `WouldBlock`.
fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock
    )
}

fn validate_request() -> Vec<u8> {
    let mut request = vec![VALIDATE];
    request.extend(MAGIC.to_ne_bytes());
    request
}

fn set_request(key: &str, value: &[u8]) -> Vec<u8> {
    let mut request = vec![SET];
    push(&mut request, key.as_bytes());
    push(&mut request, value);
    request
}

fn get_request(key: &str) -> Vec<u8> {
    let mut request = vec![GET];
    push(&mut request, key.as_bytes());
    request
}

/// `CHECK` and `WAIT` take a list of keys; ours has one.
fn keys_request(kind: u8, key: &str) -> Vec<u8> {
    let mut request = vec![kind];
    request.extend(1_u64.to_ne_bytes());
    push(&mut request, key.as_bytes());
    request
}

fn push(request: &mut Vec<u8>, bytes: &[u8]) {
    request.extend((bytes.len() as u64).to_ne_bytes());
    request.extend(bytes);
}

#[cfg(test)]
mod tests;
