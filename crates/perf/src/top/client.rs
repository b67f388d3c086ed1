//! A client of NCCL's RAS protocol.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use spark_ccl_config::HostPort;
use spark_ccl_status::ras::Report;

use super::unreadable;
use crate::error::Error;

/// How long a connection may take. A stopped process accepts connections but does not answer; another process is tried
/// then.
const GREETING: Duration = Duration::from_secs(1);
const ATTEMPTS: usize = 5;
/// A bound above any report, even on thousands of ranks.
const MOST_BYTES: u64 = 256 << 20;

/// Asks what runs; ranks may take `timeout` to answer.
pub(super) fn ask(address: &HostPort, timeout: Duration) -> Result<Report, Error> {
    let text = converse(address, timeout).map_err(|source| Error::System {
        what: format!(
            "asking at {address} what runs (does a job run here with SPARK_CCL_RAS=1, and with the same address?)"
        ),
        source,
    })?;
    Report::parse(&text).map_err(|error| unreadable(address, &error))
}

fn converse(address: &HostPort, timeout: Duration) -> io::Result<String> {
    let mut stream = greet(address)?;
    stream
        .get_ref()
        .set_read_timeout(Some(timeout + GREETING))?;
    let seconds = timeout.as_secs();
    let demand = format!("TIMEOUT {seconds}\nSET FORMAT json\nSTATUS\n");
    stream.get_mut().write_all(demand.as_bytes())?;
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
fn greet(address: &HostPort) -> io::Result<BufReader<TcpStream>> {
    let mut last = ErrorKind::AddrNotAvailable.into();
    for _ in 0..ATTEMPTS {
        let addresses = (&*address.host, address.port).to_socket_addrs()?;
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

fn greet_at(address: &std::net::SocketAddr) -> io::Result<BufReader<TcpStream>> {
    let stream = TcpStream::connect_timeout(address, GREETING)?;
    stream.set_read_timeout(Some(GREETING))?;
    stream.set_write_timeout(Some(GREETING))?;
    let mut stream = BufReader::new(stream);
    stream.get_mut().write_all(b"CLIENT PROTOCOL 2\n")?;
    let line = line(&mut stream)?;
    if line.starts_with("SERVER PROTOCOL ") {
        Ok(stream)
    } else {
        Err(io::Error::other(format!(
            "expected SERVER PROTOCOL, saw {line:?}"
        )))
    }
}

fn line(stream: &mut BufReader<TcpStream>) -> io::Result<String> {
    let mut line = String::new();
    stream.take(1024).read_line(&mut line)?;
    Ok(line.trim_end().to_owned())
}
