//! The messages in which ranks describe themselves: the hello to the rendezvous, and its table of
//! all ranks.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use crate::host::HostId;
use crate::options::MAX_ADDRESSES;
use crate::wire::{Reader, WireError, Writer};

/// The most ranks of a world.
pub const MAX_RANKS: u32 = 65_536;
/// The longest note of rank 0; longer ones are truncated.
pub const MAX_NOTE: usize = 48 * 1024;
/// The longest hello.
pub(crate) const MAX_HELLO: usize = 8 * 1024 + MAX_NOTE;
/// The longest entry of the table. The limit for a table follows from it and the number of ranks.
pub(crate) const MAX_ENTRY: usize = 1024;

const MAX_HOST: usize = 255;
const MAX_BUILD: usize = 256;
const MAX_SUMMARY: usize = 4096;
const MAX_UNIX_NAME: usize = 64;

/// A rank as the others see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerInfo {
    /// Its rank.
    pub rank: u32,
    /// The name of its host, for messages only.
    pub host: String,
    /// The identity of its host.
    pub host_id: HostId,
    /// Its process id, in its own namespace.
    pub pid: u32,
    /// Where it listens, the best address first. Empty for ranks that are threads of one process.
    pub addresses: Vec<Endpoint>,
    /// The number of RDMA ports that it can use; none for ranks that are threads of one process.
    pub rdma_ports: u8,
    /// The name of its abstract Unix listener; empty if it has none.
    pub(crate) unix_name: String,
}

/// An address at which a rank listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoint {
    /// The address. The scope of a link-local IPv6 address is that of the rank's host.
    pub address: SocketAddr,
    /// The index of its interface on the rank's host; 0 if it is not known.
    pub interface: u32,
    /// The speed of its interface in Mbit/s; 0 if it is not known.
    pub speed: u32,
}

impl From<SocketAddr> for Endpoint {
    fn from(address: SocketAddr) -> Self {
        Endpoint {
            address,
            interface: 0,
            speed: 0,
        }
    }
}

impl Endpoint {
    fn encode(&self, to: &mut Writer) {
        to.address(&self.address)
            .u32(self.interface)
            .u32(self.speed);
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Endpoint {
            address: from.address()?,
            interface: from.u32()?,
            speed: from.u32()?,
        })
    }
}

impl fmt::Display for PeerInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} ({}, pid {})", self.rank, self.host, self.pid)
    }
}

impl PeerInfo {
    fn encode(&self, to: &mut Writer) {
        to.u32(self.rank)
            .text(&self.host, MAX_HOST)
            .bytes(&self.host_id.boot);
        to.u64(self.host_id.network)
            .u32(self.pid)
            .text(&self.unix_name, MAX_UNIX_NAME);
        let addresses = &self.addresses[..self.addresses.len().min(MAX_ADDRESSES)];
        to.u8(self.rdma_ports).u8(addresses.len() as u8);
        for address in addresses {
            address.encode(to);
        }
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, WireError> {
        let rank = from.u32()?;
        let host = from.text(MAX_HOST)?;
        let host_id = HostId {
            boot: from.array()?,
            network: from.u64()?,
        };
        let pid = from.u32()?;
        let unix_name = from.text(MAX_UNIX_NAME)?;
        let rdma_ports = from.u8()?;
        let count = usize::from(from.u8()?);
        if count > MAX_ADDRESSES {
            return Err(WireError::Field("number of addresses"));
        }
        let addresses = (0..count)
            .map(|_| Endpoint::decode(from))
            .collect::<Result<_, _>>()?;
        Ok(PeerInfo {
            rank,
            host,
            host_id,
            pid,
            addresses,
            rdma_ports,
            unix_name,
        })
    }
}

/// A rank's message to the rendezvous.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) peer: PeerInfo,
    pub(crate) size: u32,
    pub(crate) build: String,
    pub(crate) wire_hash: u64,
    pub(crate) wire_summary: String,
    /// How long the rank will wait for the others.
    pub(crate) time_left: Duration,
    /// Rank 0's note to all ranks.
    pub(crate) note: String,
}

impl Hello {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        self.peer.encode(&mut to);
        to.u32(self.size)
            .text(&self.build, MAX_BUILD)
            .u64(self.wire_hash);
        to.text(&self.wire_summary, MAX_SUMMARY)
            .u64(millis(self.time_left))
            .text(&self.note, MAX_NOTE);
        to.finish()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut from = Reader::new(bytes);
        let hello = Hello {
            peer: PeerInfo::decode(&mut from)?,
            size: from.u32()?,
            build: from.text(MAX_BUILD)?,
            wire_hash: from.u64()?,
            wire_summary: from.text(MAX_SUMMARY)?,
            time_left: Duration::from_millis(from.u64()?),
            note: from.text(MAX_NOTE)?,
        };
        from.end()?;
        Ok(hello)
    }
}

/// The message of the rendezvous to every rank: the ranks and their addresses, and a nonce. The
/// nonce distinguishes this world from every other one with the same secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) nonce: [u8; 32],
    /// By rank.
    pub(crate) peers: Vec<PeerInfo>,
    /// Rank 0's note.
    pub(crate) note: String,
}

impl Table {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        to.bytes(&self.nonce).u32(self.peers.len() as u32);
        for peer in &self.peers {
            peer.encode(&mut to);
        }
        to.text(&self.note, MAX_NOTE);
        to.finish()
    }

    /// Reads the table of a world of `size` ranks.
    pub(crate) fn decode(bytes: &[u8], size: u32) -> Result<Self, WireError> {
        let mut from = Reader::new(bytes);
        let nonce = from.array()?;
        if from.u32()? != size {
            return Err(WireError::Field("number of ranks"));
        }
        let mut peers = Vec::new();
        for rank in 0..size {
            let peer = PeerInfo::decode(&mut from)?;
            if peer.rank != rank {
                return Err(WireError::Field("rank"));
            }
            peers.push(peer);
        }
        let note = from.text(MAX_NOTE)?;
        from.end()?;
        Ok(Table { nonce, peers, note })
    }

    /// The longest table of a world of `size` ranks.
    pub(crate) fn limit(size: u32) -> usize {
        64 + size as usize * MAX_ENTRY + MAX_NOTE
    }
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn hello(rank: u32, size: u32) -> Hello {
        Hello {
            peer: PeerInfo {
                rank,
                host: format!("host{rank}"),
                host_id: HostId {
                    boot: [7; 16],
                    network: 5,
                },
                pid: 100 + rank,
                addresses: ["10.0.0.1:80", "[fe80::2]:81"]
                    .map(|text| Endpoint {
                        address: text.parse().unwrap(),
                        interface: 3,
                        speed: 200_000,
                    })
                    .to_vec(),
                rdma_ports: 2,
                unix_name: "spark-ccl-x".to_owned(),
            },
            size,
            build: "0.1.0".to_owned(),
            wire_hash: 1,
            wire_summary: "slots=8 path=auto".to_owned(),
            time_left: Duration::from_secs(60),
            note: "a note".to_owned(),
        }
    }

    #[test]
    fn the_longest_hello_and_entry_keep_their_limits() {
        let mut hello = hello(0, 1);
        hello.peer.host = "h".repeat(10_000);
        hello.peer.unix_name = "u".repeat(10_000);
        hello.peer.addresses = vec![hello.peer.addresses[1]; 1000];
        let table = Table {
            nonce: [0; 32],
            peers: vec![hello.peer.clone()],
            note: "n".repeat(100_000),
        };
        assert!(table.encode().len() <= Table::limit(1));
        hello.build = "b".repeat(10_000);
        hello.wire_summary = "w".repeat(10_000);
        hello.note = "n".repeat(100_000);
        let bytes = hello.encode();
        assert!(bytes.len() < MAX_HELLO);
        assert_eq!(
            Hello::decode(&bytes).unwrap().peer.addresses.len(),
            MAX_ADDRESSES
        );
    }

    #[test]
    fn a_table_of_another_size_or_order_is_refused() {
        let peers: Vec<PeerInfo> = (0..3).map(|rank| hello(rank, 3).peer).collect();
        let table = Table {
            nonce: [1; 32],
            peers,
            note: "a note".to_owned(),
        };
        let bytes = table.encode();
        assert_eq!(Table::decode(&bytes, 3), Ok(table.clone()));
        assert!(Table::decode(&bytes, 4).is_err());
        let swapped = Table {
            peers: table.peers.into_iter().rev().collect(),
            ..table
        };
        assert_eq!(
            Table::decode(&swapped.encode(), 3),
            Err(WireError::Field("rank"))
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes: Vec<u8>, size in 0u32..10) {
            let _ = Hello::decode(&bytes);
            let _ = Table::decode(&bytes, size);
        }

        #[test]
        fn a_damaged_hello_is_read_without_panic(at in 0usize..150, with: u8) {
            let mut bytes = hello(1, 2).encode();
            if let Some(byte) = bytes.get_mut(at) { *byte = with; }
            if let Ok(hello) = Hello::decode(&bytes) {
                prop_assert_eq!(hello.encode(), bytes);
            }
        }

        #[test]
        fn a_damaged_table_is_refused_or_another(at: prop::sample::Index, with: u8, cut: prop::sample::Index) {
            let peers = (0..3).map(|rank| hello(rank, 3).peer).collect();
            let mut bytes = Table { nonce: [1; 32], peers, note: "a note".to_owned() }.encode();
            prop_assert!(Table::decode(&bytes[..cut.index(bytes.len())], 3).is_err());
            let at = at.index(bytes.len());
            bytes[at] = with;
            if let Ok(table) = Table::decode(&bytes, 3) {
                prop_assert_eq!(table.encode(), &bytes[..]);
            }
        }

        #[test]
        fn hellos_survive(rank: u32, size: u32, host in ".{0,40}", summary in ".{0,99}", hash: u64) {
            let mut hello = hello(rank, size);
            hello.peer.host = host;
            hello.wire_summary = summary;
            hello.wire_hash = hash;
            prop_assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
        }
    }
}
