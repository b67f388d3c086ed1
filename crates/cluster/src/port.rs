//! Whether a host accepts connections of others: they try one to a port that was just opened.
//!
//! An agent on each host ([`agent`]) listens, and another one tries.

pub(crate) mod agent;
mod findings;
mod firewall;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::time::Duration;

use firewall::Firewall;
use serde::{Deserialize, Serialize};
use spark_ccl_topology::Cluster;
use spark_ccl_topology::cluster::Evidence;
use spark_ccl_topology::netif::is_link_local;

use crate::finding::Finding;
use crate::remote::{self, Listening, Remote, listen_on_all, run_on_all};

/// The name of these findings.
pub(crate) const ID: &str = "pair.port";
/// The time limit of all attempts of a host together, with ssh.
const LIMIT: Duration = Duration::from_secs(40);

/// The first message of an agent that listens.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Hello {
    port: u16,
    /// The word that it sends to a peer that connects.
    token: String,
    firewall: Firewall,
    /// The addresses of the two ends of the ssh connection, this host's last.
    ssh: Option<[IpAddr; 2]>,
}

/// A connection to try.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Attempt {
    /// The address to come from; `None` leaves that to the kernel.
    source: Option<IpAddr>,
    target: IpAddr,
    port: u16,
    token: String,
}

/// The outcome of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Outcome {
    Reached,
    /// Something has answered that nobody listens.
    Refused,
    /// Nothing has answered for this long, in seconds.
    TimedOut(u64),
    /// Something else listens there.
    Stranger,
    /// The system's words.
    Failed(String),
}

/// A connection to be tried from a host to another one, by their indices.
type Planned = (usize, usize, Attempt);

/// A connection that was tried from a host to another one, by their indices.
#[derive(Debug, Clone)]
struct Tried {
    from: usize,
    to: usize,
    attempt: Attempt,
    outcome: Outcome,
}

/// Tries the addresses of all rails, and those that ssh uses, both ways; `hosts` are those of the
/// cluster.
pub(crate) fn examine(
    remote: &Remote,
    hosts: &[remote::Host],
    cluster: &Cluster<'_>,
) -> Vec<Finding> {
    let listening = listen_on_all(remote, hosts, &["port-agent", "listen"], LIMIT);
    let hello = |one: &Listening| serde_json::from_slice(&one.said).ok();
    let hellos: Vec<Option<Hello>> = listening
        .iter()
        .map(|one| one.as_ref().ok().and_then(hello))
        .collect();
    let all = attempts(cluster, &hellos);
    let input = |from: usize| {
        let own = all.iter().filter(|one| one.0 == from);
        let own: Vec<_> = own.map(|one| &one.2).collect();
        // Cannot fail: JSON can represent every field.
        serde_json::to_vec(&own).unwrap_or_default()
    };
    let answers = run_on_all(remote, hosts, &["port-agent", "connect"], input, LIMIT);
    drop(listening);
    let mut tried = Vec::new();
    let mut found = Vec::new();
    for (from, answer) in answers.into_iter().enumerate() {
        let own = all.iter().filter(|one| one.0 == from).cloned().collect();
        let said = answer
            .map(|it| it.json().to_vec())
            .map_err(|error| error.to_string());
        match paired(own, said) {
            Ok(own) => tried.extend(own),
            Err(why) => found.push(findings::untried(cluster, from, why)),
        }
    }
    found.extend(findings::of(cluster, &hellos, &tried));
    found
}

/// A host's attempts with their outcomes; it has to report each.
fn paired(own: Vec<Planned>, said: Result<Vec<u8>, String>) -> Result<Vec<Tried>, String> {
    if own.is_empty() {
        return Ok(Vec::new());
    }
    let outcomes: Vec<Outcome> =
        serde_json::from_slice(&said?).map_err(|error| format!("its answer is none: {error}"))?;
    if outcomes.len() != own.len() {
        let (said, asked) = (outcomes.len(), own.len());
        return Err(format!("it tells of {said} attempts instead of {asked}"));
    }
    let tried = |((from, to, attempt), outcome)| Tried {
        from,
        to,
        attempt,
        outcome,
    };
    Ok(own.into_iter().zip(outcomes).map(tried).collect())
}

/// Plans the attempts of each host: at the rails on which something was heard, and the addresses
/// by which ssh reached the hosts.
fn attempts(cluster: &Cluster<'_>, hellos: &[Option<Hello>]) -> Vec<Planned> {
    let mut found = Vec::new();
    let mut add = |from: usize, to: usize, source: Option<IpAddr>, target: IpAddr| {
        let Some(hello) = &hellos[to] else { return };
        let attempt = Attempt {
            source,
            target,
            port: hello.port,
            token: hello.token.clone(),
        };
        found.push((from, to, attempt));
    };
    for rail in &cluster.rails {
        let [a, b] = &rail.ends;
        // Other findings say where nothing answers at all, and that a link-local address is no
        // good: it means nothing without its interface.
        if rail.evidence == Evidence::Silent || [a, b].iter().any(|end| is_link_local(end.gid.ip()))
        {
            continue;
        }
        add(a.host, b.host, Some(a.gid.ip()), b.gid.ip());
        add(b.host, a.host, Some(b.gid.ip()), a.gid.ip());
    }
    for to in 0..cluster.hosts.len() {
        let Some(target) = meeting_address(hellos, to) else {
            continue;
        };
        let has = |one: &spark_ccl_topology::Netdev| one.addresses.iter().any(|it| it.ip == target);
        let is_rail = cluster
            .rails
            .iter()
            .flat_map(|rail| &rail.ends)
            .any(|end| end.gid.ip() == target);
        // Behind a jump host, it is none of the host's own.
        if is_rail || !cluster.hosts[to].network.netdevs.iter().any(has) {
            continue;
        }
        for from in (0..cluster.hosts.len()).filter(|from| *from != to) {
            add(from, to, None, target);
        }
    }
    found
}

/// The address by which ssh reaches a host; of this one, that from which it reaches others. Ranks
/// that launch starts meet there.
fn meeting_address(hellos: &[Option<Hello>], host: usize) -> Option<IpAddr> {
    let own = hellos[host].as_ref()?;
    let others = || hellos.iter().flatten().find_map(|one| one.ssh);
    let address = match own.ssh {
        Some([_, own]) => Some(own),
        None => others().map(|[launcher, _]| launcher),
    };
    address.filter(|one| !one.is_loopback())
}
