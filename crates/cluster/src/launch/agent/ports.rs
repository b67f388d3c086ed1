//! Ports that are free on this host, for rank 0 to listen on.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};

/// Below the ports that Linux gives to connections by default, so that none of these takes one
/// before rank 0 does.
const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;
/// Each attempt finds a free one, except on a very busy host.
const ATTEMPTS: usize = 100;

/// Held ports, which are given back when this is dropped.
pub(super) struct Ports([(u16, TcpListener); 2]);

impl Ports {
    pub(super) fn hold() -> io::Result<Self> {
        Ok(Self([hold_one()?, hold_one()?]))
    }

    pub(super) fn numbers(&self) -> [u16; 2] {
        [self.0[0].0, self.0[1].0]
    }
}

fn hold_one() -> io::Result<(u16, TcpListener)> {
    let mut refused = None;
    for _ in 0..ATTEMPTS {
        let mut random = [0; 2];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let port = FIRST + u16::from_ne_bytes(random) % COUNT;
        // A socket of IPv6 holds the port for IPv4 as well; some hosts have no IPv6.
        let bound = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port));
        match bound.or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))) {
            Ok(listener) => return Ok((port, listener)),
            Err(error) => refused = Some(error),
        }
    }
    Err(refused.unwrap_or_else(|| io::ErrorKind::AddrInUse.into()))
}
