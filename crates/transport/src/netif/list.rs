//! Lists the interfaces that the operating system reports.

use std::net::IpAddr;

use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::{InterfaceFlags, if_nametoindex};
use nix::sys::socket::SockaddrStorage;

use spark_ccl_config::Pattern;

use super::{Interface, NetifError};

/// Every IP address of every interface that is up and has a carrier, in the system's order.
///
/// # Errors
/// When the operating system refuses.
pub fn list() -> Result<Vec<Interface>, NetifError> {
    let all = getifaddrs().map_err(|error| NetifError::List(error.to_string()))?;
    Ok(all.filter_map(|one| interface(&one)).collect())
}

fn interface(one: &InterfaceAddress) -> Option<Interface> {
    if !one
        .flags
        .contains(InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING)
    {
        return None;
    }
    let addr = ip(one.address.as_ref()?)?;
    let device = Pattern::device(&one.interface_name);
    Some(Interface {
        // An interface may disappear between the two calls.
        index: if_nametoindex(device).ok()?,
        addr,
        prefix: one.netmask.as_ref().and_then(ip).map_or(full(addr), ones),
        speed: speed(device),
        loopback: one.flags.contains(InterfaceFlags::IFF_LOOPBACK),
        name: one.interface_name.clone(),
    })
}

fn ip(addr: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = addr.as_sockaddr_in().map(|addr| IpAddr::V4(addr.ip()));
    v4.or_else(|| addr.as_sockaddr_in6().map(|addr| IpAddr::V6(addr.ip())))
}

fn full(addr: IpAddr) -> u8 {
    if addr.is_ipv4() { 32 } else { 128 }
}

fn ones(mask: IpAddr) -> u8 {
    let ones = match mask {
        IpAddr::V4(mask) => mask.to_bits().leading_ones(),
        IpAddr::V6(mask) => mask.to_bits().leading_ones(),
    };
    ones as u8
}

/// Speed in Mbit/s. Virtual interfaces report nothing or -1.
fn speed(device: &str) -> Option<u32> {
    let text = std::fs::read_to_string(format!("/sys/class/net/{device}/speed")).ok()?;
    text.trim()
        .parse()
        .ok()
        .filter(|&speed| speed > 0 && speed < u32::MAX)
}
