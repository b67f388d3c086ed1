//! TCP ports for tests that tell several processes where to meet.

use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU16, Ordering};

/// Below the ports that the kernel gives to outgoing connections, so none of those takes one by
/// chance.
const PORTS: std::ops::Range<u16> = 12_000..28_000;

/// A socket for each port given to this process. Other processes cannot bind the same names until
/// it ends.
static GIVEN: Mutex<Vec<UnixListener>> = Mutex::new(Vec::new());

/// A TCP port without a listener. No other test of this network namespace is given it while this
/// process runs.
///
/// # Panics
///
/// No port of the range is free.
pub fn free_port() -> u16 {
    // Atomic: only the counter itself is shared.
    static TRIED: AtomicU16 = AtomicU16::new(0);
    let span = PORTS.end - PORTS.start;
    let first = std::process::id().wrapping_mul(97);
    loop {
        let tried = TRIED.fetch_add(1, Ordering::Relaxed);
        assert!(tried < span, "no port of {PORTS:?} is free");
        let port = PORTS.start + (first.wrapping_add(u32::from(tried)) % u32::from(span)) as u16;
        let name = SocketAddr::from_abstract_name(format!("spark-ccl test port {port}")).unwrap();
        let Ok(holder) = UnixListener::bind_addr(&name) else {
            continue;
        };
        if TcpListener::bind(("0.0.0.0", port)).is_ok() {
            GIVEN.lock().unwrap().push(holder);
            return port;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_port_is_given_twice() {
        let ports: BTreeSet<u16> = (0..200).map(|_| free_port()).collect();
        assert_eq!(ports.len(), 200);
        assert!(ports.iter().all(|port| PORTS.contains(port)));
    }

    #[test]
    fn ports_in_use_are_not_given() {
        let next = free_port() + 1;
        let _listener = TcpListener::bind(("0.0.0.0", next));
        assert_ne!(free_port(), next);
    }
}
