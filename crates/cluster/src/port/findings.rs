//! The findings from the attempts to connect.

use std::collections::BTreeSet;
use std::net::IpAddr;

use spark_ccl_topology::Cluster;

use super::{Hello, ID, Outcome, Tried, meeting_address};
use crate::finding::{Finding, Fix, Problem};

/// The system's words where it has no route.
const UNREACHABLE: &str = "Network is unreachable";

/// One finding for each way from a host to another that all went well, and one for each attempt
/// that did not.
pub(super) fn of(cluster: &Cluster<'_>, hellos: &[Option<Hello>], tried: &[Tried]) -> Vec<Finding> {
    let name = |host: usize| cluster.hosts[host].name.as_str();
    let ways: BTreeSet<_> = tried.iter().map(|one| (one.from, one.to)).collect();
    let mut found = Vec::new();
    for (host, hello) in hellos.iter().enumerate() {
        if hello.is_none() {
            let look = "whether spark-perf there is of this version: it has to listen at a port";
            found.push(Finding::unknown(
                ID,
                &[name(host)],
                "no port was opened",
                look,
            ));
        }
    }
    for (from, to) in ways {
        let own = tried.iter().filter(|one| (one.from, one.to) == (from, to));
        let (reached, blocked): (Vec<_>, Vec<_>) =
            own.partition(|one| one.outcome == Outcome::Reached);
        found.extend(
            blocked
                .into_iter()
                .map(|one| unreached(cluster, hellos, one)),
        );
        if !reached.is_empty() {
            let targets: Vec<_> = reached
                .iter()
                .map(|one| one.attempt.target.to_string())
                .collect();
            let seen = format!("a new port answers at {}", targets.join(", "));
            found.push(Finding::ok(ID, &[name(from), name(to)], seen));
        }
    }
    found
}

/// A host did not try, or does not report the outcome.
pub(super) fn untried(cluster: &Cluster<'_>, from: usize, why: String) -> Finding {
    let look = "whether spark-perf there is of this version: it has to connect to ports of the other hosts";
    Finding::unknown(ID, &[&cluster.hosts[from].name], why, look)
}

fn unreached(cluster: &Cluster<'_>, hellos: &[Option<Hello>], one: &Tried) -> Finding {
    let [from, to] = [one.from, one.to].map(|host| cluster.hosts[host].name.as_str());
    let target = one.attempt.target;
    let (what, why) = match &one.outcome {
        Outcome::TimedOut(seconds) => (
            format!("no answer for {seconds} s"),
            "a firewall drops what arrives, or no route leads back: ranks wait for each other \
             until they time out",
        ),
        Outcome::Refused => (
            "refused, though a program listens".to_owned(),
            "a firewall rejects what arrives: ranks cannot meet",
        ),
        Outcome::Stranger => (
            "another program answers".to_owned(),
            "another host has this address, or something translates it",
        ),
        Outcome::Failed(words) if words.contains(UNREACHABLE) => {
            (words.clone(), "no route leads there: nothing is sent")
        }
        Outcome::Failed(words) => (
            words.clone(),
            "a firewall rejects what arrives, or no way leads there",
        ),
        Outcome::Reached => ("reached".to_owned(), ""),
    };
    let source = one.attempt.source;
    let via = source.map_or_else(String::new, |source| format!(" from {source}"));
    let seen = format!("{target} port {}{via}: {what}", one.attempt.port);
    let problem = Problem::new(seen, "a connection", why, fix(cluster, hellos, one));
    Finding::fail(ID, &[from, to], problem)
}

/// The fix that opens the firewall of the host that was not reached.
fn fix(cluster: &Cluster<'_>, hellos: &[Option<Hello>], one: &Tried) -> Fix {
    let target = one.attempt.target;
    if matches!(&one.outcome, Outcome::Failed(words) if words.contains(UNREACHABLE)) {
        let from = &cluster.hosts[one.from].name;
        return Fix::look(format!(
            "on {from}: ip route get {target}; pair.route above names a route that is gone"
        ));
    }
    let source = one
        .attempt
        .source
        .or_else(|| meeting_address(hellos, one.from))
        .filter(|source| source.is_ipv4() == target.is_ipv4());
    let Some(source) = source.filter(|_| one.outcome != Outcome::Stranger) else {
        return Fix::look(format!(
            "ip route get {target} on both hosts, and which has that address"
        ));
    };
    // The other host lets in the answers to what it has sent, so its firewall is not opened.
    if let Some(fix) = opened(cluster, hellos, (one.to, target), source) {
        return fix;
    }
    let name = &cluster.hosts[one.to].name;
    let iptables = if target.is_ipv4() {
        "iptables"
    } else {
        "ip6tables"
    };
    Fix::look(format!(
        "on {name}: sudo nft list ruleset; what sets these rules must let in {source} at {target}, \
         as does, for a trial, sudo {iptables} -I INPUT -s {source} -d {target} -j ACCEPT"
    ))
}

/// The command that lets in a peer at an address of a host, if that is known.
fn opened(
    cluster: &Cluster<'_>,
    hellos: &[Option<Hello>],
    (host, own): (usize, IpAddr),
    peer: IpAddr,
) -> Option<Fix> {
    let firewall = &hellos[host].as_ref()?.firewall;
    let host = &cluster.hosts[host];
    let mut netdevs = host.network.netdevs.iter();
    let netdev = netdevs.find(|netdev| netdev.addresses.iter().any(|it| it.ip == own))?;
    let command = firewall.opened(&netdev.name, peer)?;
    let lasts = !command.contains("nft insert");
    let fix = Fix::run(&host.name, command);
    Some(if lasts {
        fix
    } else {
        fix.then("put the rule into /etc/nftables.conf: what nft sets is lost at the next start")
    })
}
