//! Whether a host is the one that this process runs on.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use spark_ccl_fork::lookup;

/// The time limit of the lookup of a name.
const LOOKUP: Duration = Duration::from_secs(10);

/// Whether this name, or address, is of this host. A name with a user is not: that user need not be
/// who runs this.
pub(super) fn is_here(host: &str) -> bool {
    let own = rustix::system::uname();
    let own = own.nodename().to_string_lossy();
    if host == "localhost" || is_name_of(host, &own) {
        return true;
    }
    // A name that only ssh knows is of another host.
    let addresses = lookup(host, 0, Instant::now() + LOOKUP);
    addresses.is_ok_and(|addresses| addresses.iter().any(|address| is_own(address.ip())))
}

/// Whether this is the whole name of the host that calls itself `own`, or that without its domain.
fn is_name_of(host: &str, own: &str) -> bool {
    let first = own.split('.').next().unwrap_or_default();
    host.eq_ignore_ascii_case(own) || host.eq_ignore_ascii_case(first)
}

fn is_own(address: IpAddr) -> bool {
    let interfaces = spark_ccl_transport::netif::list().unwrap_or_default();
    address.is_loopback() || interfaces.iter().any(|one| one.addr == address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_names_and_addresses_are_here() {
        let own = rustix::system::uname();
        let own = own.nodename().to_str().unwrap();
        for host in ["localhost", "127.0.0.1", "::1", own, &own.to_uppercase()] {
            assert!(is_here(host), "{host}");
        }
        // Addresses reserved for documentation, and a name that does not exist.
        for host in [
            "192.0.2.1",
            "2001:db8::1",
            "nowhere.invalid",
            "root@localhost",
        ] {
            assert!(!is_here(host), "{host}");
        }
    }

    #[test]
    fn a_domain_may_be_left_out_but_not_added() {
        assert!(is_name_of("spark-a", "spark-a.lab"));
        assert!(is_name_of("Spark-A.lab", "spark-a.lab"));
        for host in ["spark-a.office", "spark", "spark-a.lab.example"] {
            assert!(!is_name_of(host, "spark-a.lab"), "{host}");
        }
        assert!(!is_name_of("spark-a.lab", "spark-a"));
    }
}
