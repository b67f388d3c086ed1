//! The listeners of a rendezvous and of a rank.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use socket2::Socket;

use crate::address::Address;
use crate::{Error, net};

/// A TCP listener. The error names the address.
pub(crate) fn listen(address: SocketAddr) -> Result<Socket, Error> {
    net::listen_tcp(address).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => Error::AddressInUse { address },
        _ => Error::os(format!("listen on {address}"), &error),
    })
}

/// Listens on free ports of the usable addresses. A new IPv6 address is unusable until the kernel
/// has checked that no other host has it.
pub(crate) fn listen_on(addresses: &[Address]) -> Result<Vec<Socket>, Error> {
    let mut listeners = Vec::new();
    let mut failure = None;
    for address in addresses {
        match listen(address.with_port(0)) {
            Ok(listener) => listeners.push(listener),
            Err(error) => {
                spark_ccl_log::warn!("an address is left out: {error}");
                failure = Some(error);
            }
        }
    }
    match failure {
        Some(error) if listeners.is_empty() => Err(error),
        _ => Ok(listeners),
    }
}

/// Listeners of single interfaces, at the ports of `listeners`, where interfaces share a subnet.
pub(crate) fn listen_on_devices(addresses: &[Address], listeners: &[Socket]) -> Vec<Socket> {
    let of = |listener: &Socket| {
        let at = listener.local_addr().ok()?.as_socket()?.ip();
        let address = *addresses.iter().find(|one| one.ip == at)?;
        let device = address.device?;
        let bound = net::listen_on_device(listener, address);
        bound
            .inspect_err(|error| {
                spark_ccl_log::warn!("{at}: no listener of interface {device}: {error}");
            })
            .ok()
    };
    listeners.iter().filter_map(of).collect()
}

/// Listens at the well-known port of a rendezvous: on those of `addresses` that this host has, or
/// on all of this host's if none are given.
pub(crate) fn listen_for(addresses: &[SocketAddr], port: u16) -> Result<Vec<Socket>, Error> {
    if addresses.is_empty() {
        let any = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port);
        let listener = match listen(any) {
            // This host has no IPv6.
            Err(Error::Os { .. }) => listen(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port)),
            other => other,
        };
        return Ok(vec![listener?]);
    }
    let mut listeners = Vec::new();
    let mut failure = None;
    for &address in addresses {
        match listen(address) {
            Ok(listener) => listeners.push(listener),
            Err(error @ Error::AddressInUse { .. }) => return Err(error),
            // "localhost" may have an IPv6 address on a host without IPv6.
            Err(error) => failure = Some(error),
        }
    }
    match failure {
        Some(error) if listeners.is_empty() => Err(error),
        _ => Ok(listeners),
    }
}
