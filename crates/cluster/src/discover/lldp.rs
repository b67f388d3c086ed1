//! Hosts that announce themselves by LLDP.

mod frame;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use frame::{ETHER_TYPE, Frame, Mac};
use socket2::{Domain, Protocol, Socket, Type};
use spark_ccl_transport::netif;

use super::found::{Found, MOST};
use super::is_pause;

/// The longest frame, which is one of Ethernet without jumbo frames.
const LONGEST: usize = 2048;

/// This host, whose own frames may come back to it.
#[derive(Debug, Default)]
struct Own {
    macs: BTreeSet<Mac>,
    addresses: BTreeSet<IpAddr>,
}

/// Hosts by chassis and port ID.
type Heard = BTreeMap<(Vec<u8>, Vec<u8>), Found>;

/// The hosts that are heard of within this time, on any interface.
pub(super) fn listen(time: Duration) -> Result<Vec<Found>, String> {
    let socket = open().map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => {
            format!("{error}; it takes root (sudo), or the capability CAP_NET_RAW")
        }
        _ => error.to_string(),
    })?;
    let own = Own::read();
    let heard = collect(&socket, &own, time).map_err(|error| error.to_string())?;
    Ok(heard.into_values().collect())
}

/// A socket that gets the frames of LLDP of all interfaces.
fn open() -> io::Result<Socket> {
    let ether_type = Protocol::from(i32::from(ETHER_TYPE.to_be()));
    Socket::new(Domain::PACKET, Type::RAW, Some(ether_type))
}

fn collect(mut socket: &Socket, own: &Own, time: Duration) -> io::Result<Heard> {
    let deadline = Instant::now() + time;
    let mut heard = Heard::new();
    let mut buffer = [0; LONGEST];
    while let Some(left) = deadline.checked_duration_since(Instant::now()) {
        socket.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        match socket.read(&mut buffer) {
            Ok(len) => hear(&buffer[..len], own, &mut heard),
            Err(error) if is_pause(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(heard)
}

/// Records a frame's sender; a TTL of 0 removes it.
fn hear(bytes: &[u8], own: &Own, heard: &mut Heard) {
    let Some(frame) = Frame::parse(bytes) else {
        return;
    };
    if frame.is_of(&own.macs) {
        return;
    }
    let port = (frame.chassis.clone(), frame.port.clone());
    if frame.ttl == 0 {
        heard.remove(&port);
    } else if let Some(found) = sighting(frame, own)
        && (heard.len() < MOST || heard.contains_key(&port))
    {
        heard.insert(port, found);
    }
}

/// `None` for a host without a usable address. Addresses that this host has too are left out:
/// container networks repeat them.
fn sighting(frame: Frame, own: &Own) -> Option<Found> {
    let foreign = frame.addresses.difference(&own.addresses);
    let addresses: BTreeSet<String> = foreign.map(IpAddr::to_string).collect();
    (!addresses.is_empty()).then(|| Found {
        description: frame.description,
        ..Found::seen(frame.name, addresses, "LLDP")
    })
}

impl Own {
    /// Properties that cannot be read stay empty: then a frame of this host counts as another's.
    fn read() -> Self {
        let interfaces = std::fs::read_dir("/sys/class/net").into_iter().flatten();
        let macs = interfaces.flatten().filter_map(|interface| {
            let text = std::fs::read_to_string(interface.path().join("address")).ok()?;
            mac(text.trim())
        });
        let addresses = netif::list().unwrap_or_default();
        Self {
            macs: macs.collect(),
            addresses: addresses.into_iter().map(|one| one.addr).collect(),
        }
    }
}

fn mac(text: &str) -> Option<Mac> {
    let bytes: Result<Vec<u8>, _> = text
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16))
        .collect();
    bytes.ok()?.try_into().ok()
}

/// A fuzz target: whatever is heard is fit to be printed on a line.
#[cfg(test)]
pub(crate) fn any_frame_is_heard(bytes: &[u8]) {
    let mut heard = Heard::new();
    hear(bytes, &Own::default(), &mut heard);
    for found in heard.into_values() {
        let about = found.about();
        assert!(about.chars().all(|c| c.is_ascii_graphic() || c == ' '));
        assert!(about.len() < 64 * LONGEST && !found.addresses.is_empty());
    }
}
