//! Hosts that announce their ssh server by multicast DNS.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use mdns_sd::{ResolvedService, ScopedIp, ServiceDaemon, ServiceEvent};

use super::found::{Found, MOST, scoped};
use super::names;
use crate::remote::parse_one;

const SERVICE: &str = "_ssh._tcp.local.";

/// The hosts that are heard of within this time.
pub(super) fn listen(time: Duration) -> Result<Vec<Found>, String> {
    let failed = |error: mdns_sd::Error| error.to_string();
    let daemon = ServiceDaemon::new().map_err(failed)?;
    let events = daemon.browse(SERVICE).map_err(failed)?;
    let deadline = Instant::now() + time;
    let mut heard = Vec::new();
    while heard.len() < MOST
        && let Ok(event) = events.recv_timeout(deadline.saturating_duration_since(Instant::now()))
    {
        if let ServiceEvent::ServiceResolved(service) = event {
            heard.extend(sighting(&service));
        }
    }
    // Its thread ends with this process otherwise.
    let _ = daemon.shutdown();
    Ok(heard)
}

/// `None` for this host, and for one without a usable address.
fn sighting(service: &ResolvedService) -> Option<Found> {
    let interfaces = spark_ccl_transport::netif::list().unwrap_or_default();
    let is_own = |address: &ScopedIp| {
        let address = address.to_ip_addr();
        address.is_loopback() || interfaces.iter().any(|one| one.addr == address)
    };
    if service.addresses.iter().any(is_own) {
        return None;
    }
    let text = |address: &ScopedIp| match (address, address.to_ip_addr()) {
        (ScopedIp::V6(scope), IpAddr::V6(ip)) if ip.is_unicast_link_local() => {
            scoped(ip, &scope.scope_id().name)
        }
        (_, ip) => ip.to_string(),
    };
    let texts = service.addresses.iter().map(text);
    let addresses: BTreeSet<String> = texts.filter(|text| parse_one(text).is_ok()).collect();
    let seen = |addresses| Found::seen(names::announced(&service.host), addresses, "mDNS");
    (!addresses.is_empty()).then(|| seen(addresses))
}
