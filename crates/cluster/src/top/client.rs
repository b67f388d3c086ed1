//! A client of NCCL's RAS protocol.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use spark_ccl_config::HostPort;
use spark_ccl_fork::lookup;
use spark_ccl_status::ras::Report;

use super::unreadable;
use crate::error::Error;

/// The time limit of a connection. A stopped process accepts connections but does not answer;
/// another process is tried then.
const GREETING: Duration = Duration::from_secs(1);
const ATTEMPTS: usize = 5;
/// The time limit of a report, from its begin to its end.
const TRANSFER: Duration = Duration::from_secs(10);
/// A bound above any report, even on thousands of ranks.
const MOST_BYTES: u64 = 256 << 20;

/// A connection that is read until a time, however slowly the other side sends.
struct Until {
    stream: TcpStream,
    deadline: Instant,
}

impl Read for Until {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(bytes)
    }
}

/// Asks for a report; ranks may take `timeout` to answer.
pub(super) fn ask(address: &HostPort, timeout: Duration) -> Result<Report, Error> {
    let text = converse(address, timeout).map_err(Error::system(format!(
        "asking at {address} what runs (does a job run here with SPARK_CCL_RAS=1, and with the \
         same address?)"
    )))?;
    Report::parse(&text).map_err(|error| unreadable(address, &error))
}

fn converse(address: &HostPort, timeout: Duration) -> io::Result<String> {
    let mut stream = greet(address)?;
    stream.get_mut().deadline = Instant::now() + timeout + GREETING + TRANSFER;
    let seconds = timeout.as_secs();
    let demand = format!("TIMEOUT {seconds}\nSET FORMAT json\nSTATUS\n");
    stream.get_mut().stream.write_all(demand.as_bytes())?;
    for _ in 0..2 {
        let line = line(&mut stream)?;
        if line != "OK" {
            return Err(io::Error::other(format!("expected OK, saw {line:?}")));
        }
    }
    let mut text = String::new();
    stream.take(MOST_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

/// A connection to a process that answers.
fn greet(address: &HostPort) -> io::Result<BufReader<Until>> {
    let mut last = ErrorKind::AddrNotAvailable.into();
    for _ in 0..ATTEMPTS {
        let addresses = lookup(&address.host, address.port, Instant::now() + GREETING)?;
        for address in addresses {
            match greet_at(&address) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        if !matches!(last.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) {
            break;
        }
    }
    Err(last)
}

fn greet_at(address: &std::net::SocketAddr) -> io::Result<BufReader<Until>> {
    let mut stream = TcpStream::connect_timeout(address, GREETING)?;
    stream.set_write_timeout(Some(GREETING))?;
    stream.write_all(b"CLIENT PROTOCOL 2\n")?;
    let deadline = Instant::now() + GREETING;
    let mut stream = BufReader::new(Until { stream, deadline });
    let line = line(&mut stream)?;
    if line.starts_with("SERVER PROTOCOL ") {
        Ok(stream)
    } else {
        Err(io::Error::other(format!(
            "expected SERVER PROTOCOL, saw {line:?}"
        )))
    }
}

fn line(stream: &mut BufReader<Until>) -> io::Result<String> {
    let mut line = String::new();
    stream.take(1024).read_line(&mut line)?;
    Ok(line.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn one_that_sends_slowly_for_ever_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut other, _) = listener.accept().unwrap();
        let sends = std::thread::spawn(move || {
            while other.write_all(b"a").is_ok() {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let deadline = Instant::now() + Duration::from_millis(300);
        let mut until = Until { stream, deadline };
        let error = until.read_to_string(&mut String::new()).unwrap_err();
        let kinds = [ErrorKind::TimedOut, ErrorKind::WouldBlock];
        assert!(kinds.contains(&error.kind()), "{error}");
        drop(until);
        sends.join().unwrap();
    }
}
