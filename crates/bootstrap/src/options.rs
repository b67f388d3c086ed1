//! The options of a rank's bootstrap. Callers set them: this crate reads no environment.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::address::Address;
use crate::{Cancel, Error, net};

/// The most addresses a rank listens on.
pub(crate) const MAX_ADDRESSES: usize = 16;

/// Where a rank listens, how long it waits, and how it describes itself.
#[derive(Debug, Clone)]
pub struct Options {
    /// The addresses to listen on and to send to the other ranks, best first (at most 16).
    pub addresses: Vec<Address>,
    /// How long the rendezvous may take.
    pub init_timeout: Duration,
    /// When this rank started towards the rendezvous; [`init_timeout`](Self::init_timeout) counts
    /// from then. `None` means when it joins.
    pub since: Option<Instant>,
    /// The build of the library; all ranks must have the same.
    pub build: String,
    /// A hash over all settings that must be the same on every rank.
    pub wire_hash: u64,
    /// The same settings as text, `name=value` separated by spaces, for errors that name the ones
    /// that differ.
    pub wire_summary: String,
    /// This host's name, for messages only.
    pub host: String,
    /// How many RDMA ports this rank can use.
    pub rdma_ports: u8,
    /// Rank 0's note to all ranks, at most [`MAX_NOTE`](crate::MAX_NOTE) bytes. Other ranks' notes
    /// are ignored.
    pub note: String,
    /// The setting that says where the ranks meet, such as `MASTER_ADDR=spark-1`, for messages
    /// only. Empty if a unique id says it.
    pub rendezvous_setting: String,
    /// Why the other ranks may not find rank 0 there; empty if they should.
    pub doubt: String,
    /// Ends the way to the other ranks before they are connected.
    pub cancel: Cancel,
}

impl Default for Options {
    /// Loopback only, two minutes, no settings to compare.
    fn default() -> Self {
        Options {
            addresses: vec![Address::LOOPBACK],
            init_timeout: Duration::from_secs(120),
            since: None,
            build: env!("CARGO_PKG_VERSION").to_owned(),
            wire_hash: 0,
            wire_summary: String::new(),
            host: crate::host::name(),
            rdma_ports: 0,
            note: String::new(),
            rendezvous_setting: String::new(),
            doubt: String::new(),
            cancel: Cancel::new(),
        }
    }
}

impl Options {
    /// The addresses to listen on.
    ///
    /// # Errors
    /// There are none, or too many.
    pub(crate) fn listen_addresses(&self) -> Result<&[Address], Error> {
        match self.addresses.len() {
            0 => Err(Error::Argument(
                "no network address to listen on: name at least one interface that is up, or use \
                 loopback"
                    .to_owned(),
            )),
            1..=MAX_ADDRESSES => Ok(&self.addresses),
            more => Err(Error::Argument(format!(
                "{more} network addresses to listen on, where at most {MAX_ADDRESSES} are possible"
            ))),
        }
    }

    /// The same options, for a rendezvous at the host that `setting` names. `found` has the
    /// addresses of that host, as resolved here. Rank 0 doubts an address that its host does not
    /// have.
    #[must_use]
    pub fn rendezvous_at(
        self,
        setting: &str,
        found: &io::Result<Vec<SocketAddr>>,
        rank: u32,
    ) -> Options {
        let problem = match found {
            _ if rank != 0 => None,
            Ok(found) if found.iter().any(leads_here) => None,
            Ok(_) => {
                let own = self.addresses.iter().map(|own| own.ip.to_string());
                let own = own.collect::<Vec<_>>().join(", ");
                Some(format!("is no address of this host (it has {own})"))
            }
            Err(error) => Some(format!("is not known on this host ({error})")),
        };
        let doubt = problem.map(|problem| {
            format!(
                "rank 0 ({}): {setting} {problem}; set it, on all ranks, to an address of rank 0's \
                 host",
                self.host
            )
        });
        Options {
            rendezvous_setting: setting.to_owned(),
            doubt: doubt.unwrap_or_default(),
            ..self
        }
    }

    /// The same options, with loopback addresses only.
    pub(crate) fn on_loopback(&self) -> Options {
        let mut options = self.clone();
        options.addresses.retain(|address| address.ip.is_loopback());
        if options.addresses.is_empty() {
            options.addresses.push(Address::LOOPBACK);
        }
        options
    }
}

/// Whether the address is this host's.
fn leads_here(address: &SocketAddr) -> bool {
    address.ip().is_unspecified() || net::is_own(address.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_0_doubts_an_address_that_is_not_its_hosts() {
        let options = Options {
            host: "here".to_owned(),
            ..Options::default()
        };
        let doubt = |found: io::Result<&str>, rank| {
            let found = found.map(|address| vec![address.parse().unwrap()]);
            let options = options
                .clone()
                .rendezvous_at("MASTER_ADDR=there", &found, rank);
            assert_eq!(options.rendezvous_setting, "MASTER_ADDR=there");
            options.doubt
        };
        let elsewhere = doubt(Ok("192.0.2.1:5"), 0);
        let text =
            "rank 0 (here): MASTER_ADDR=there is no address of this host (it has 127.0.0.1); ";
        assert!(elsewhere.starts_with(text), "{elsewhere}");
        let unknown = doubt(Err(io::Error::other("no such name")), 0);
        assert!(
            unknown.contains("MASTER_ADDR=there is not known on this host (no such name)"),
            "{unknown}"
        );
        // Another rank's host need not have the address.
        assert_eq!(doubt(Ok("192.0.2.1:5"), 1), "");
        for own in ["127.0.0.1:5", "[::1]:5", "0.0.0.0:5"] {
            assert_eq!(doubt(Ok(own), 0), "", "{own}");
        }
    }
}
