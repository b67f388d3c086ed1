//! Hosts that announce their ssh server by multicast DNS.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use mdns_sd::{ResolvedService, ScopedIp, ServiceDaemon, ServiceEvent};

use super::found::{Found, scoped};

const SERVICE: &str = "_ssh._tcp.local.";

/// The hosts that are heard of within this time.
pub(super) fn listen(time: Duration) -> Result<Vec<Found>, String> {
    let failed = |error: mdns_sd::Error| error.to_string();
    let daemon = ServiceDaemon::new().map_err(failed)?;
    let events = daemon.browse(SERVICE).map_err(failed)?;
    let deadline = Instant::now() + time;
    let mut heard = Vec::new();
    while let Ok(event) = events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        if let ServiceEvent::ServiceResolved(service) = event {
            heard.extend(sighting(&service));
        }
    }
    // Its thread ends with this process otherwise.
    let _ = daemon.shutdown();
    Ok(heard)
}

/// `None` of this host.
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
    let addresses: BTreeSet<String> = service.addresses.iter().map(text).collect();
    let name = service.host.trim_end_matches('.').to_owned();
    Some(Found::seen(Some(name), addresses, "mDNS"))
}
