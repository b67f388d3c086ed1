//! Settings that name what a host does not have: in NCCL's files, in the environment, in a file
//! for jobs.

use spark_ccl_config::{Env, Pattern, Rdma, Settings};
use spark_ccl_topology::rdma::{Gid, Port, Roce};
use spark_ccl_topology::{Host, PortState};

use crate::finding::{Finding, Fix, Problem};

const ID: &str = "settings.pinned";

/// Settings that jobs will have, and where they are from.
#[derive(Debug, Clone)]
pub(crate) struct Pinned {
    /// A file, or the environment.
    pub(crate) from: String,
    /// Names and values.
    pub(crate) settings: Vec<(String, String)>,
}

/// Checks the host's own files, and what is pinned for all hosts.
pub(super) fn checks(host: &Host, pinned: &[Pinned]) -> Vec<Finding> {
    let files = host.software.conf.iter().map(|file| Pinned {
        from: file.path.clone(),
        settings: file
            .settings
            .iter()
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect(),
    });
    let all = files.chain(pinned.iter().cloned());
    all.flat_map(|one| check(host, &one)).collect()
}

fn check(host: &Host, pinned: &Pinned) -> Vec<Finding> {
    let mut env = Env::default();
    for (name, value) in &pinned.settings {
        env.set(name, value, &pinned.from);
    }
    let settings = match Settings::from_env(&env) {
        Ok(settings) => settings,
        Err(error) => {
            let wanted = "a value that the library takes";
            return vec![finding(host, pinned, error.to_string(), wanted)];
        }
    };
    let from = &pinned.from;
    let devices = devices(host, &settings.rdma);
    let index = gid_index(host, &settings.rdma);
    let interfaces = interfaces(host, &settings);
    let found = [
        devices.map(|seen| {
            (
                format!("{from}: {seen}"),
                "names of this host's devices, or none",
            )
        }),
        index.map(|seen| {
            (
                seen,
                "no index: it changes when an interface loses its address",
            )
        }),
        interfaces.map(|seen| (format!("{from}: {seen}"), "names of this host's interfaces")),
    ];
    let found = found.into_iter().flatten();
    found
        .map(|(seen, wanted)| finding(host, pinned, seen, wanted))
        .collect()
}

fn finding(host: &Host, pinned: &Pinned, seen: String, wanted: &str) -> Finding {
    let problem = Problem::new(
        seen,
        wanted,
        "ranks of this host fail, or take another way than the other hosts'",
        Fix::look(format!(
            "whether the setting may go from {}; spark-perf env prints those that fit the hosts",
            pinned.from
        )),
    );
    Finding::fail(ID, &[&host.name], problem)
}

/// A filter that leaves no device.
fn devices(host: &Host, rdma: &Rdma) -> Option<String> {
    let mut ports = host.ports();
    if host.rdma.is_empty()
        || ports.any(|(device, port)| rdma.hcas.allows(&device.name, port.number))
    {
        return None;
    }
    let names: Vec<_> = host
        .rdma
        .iter()
        .map(|device| device.name.as_str())
        .collect();
    Some(format!(
        "{} is none of this host's devices, which are {}",
        rdma.hcas,
        names.join(", ")
    ))
}

/// An index at which the table of a port in use has nothing, or another kind of address than it
/// has elsewhere.
fn gid_index(host: &Host, rdma: &Rdma) -> Option<String> {
    let only = rdma.gid_index.as_ref()?;
    let active = host.ports().filter(|(device, port)| {
        port.state == PortState::Active && rdma.hcas.allows(&device.name, port.number)
    });
    let mut ports = active.map(|(device, port)| host.described(device, port));
    ports.find_map(|port: Port| {
        let best = *port.preferred()?;
        let pinned = port.gids.iter().find(|gid| gid.index == only.index);
        let entry = match pinned {
            Some(gid) if kind(gid) == kind(&best) => return None,
            Some(gid) => format!("is {gid}"),
            None => "is empty".to_owned(),
        };
        let (index, device) = (only.index, &port.device);
        Some(format!(
            "{only} is {index}, and entry {index} of {device} {entry}; its entry for {best} is {}",
            best.index
        ))
    })
}

/// Peers reach each other by addresses of one kind only.
fn kind(gid: &Gid) -> (Roce, bool, bool) {
    (gid.roce, gid.ip().is_ipv4(), gid.is_link_local())
}

/// A filter that leaves no interface but loopback.
fn interfaces(host: &Host, settings: &Settings) -> Option<String> {
    let choice = settings.socket_ifname.as_ref()?;
    let pattern = Pattern::parse(&choice.pattern);
    let others = host
        .network
        .netdevs
        .iter()
        .filter(|netdev| !netdev.loopback);
    let names: Vec<_> = others.map(|netdev| netdev.name.as_str()).collect();
    if names.iter().any(|name| pattern.position(name).is_some()) {
        return None;
    }
    Some(format!(
        "{}={} is none of this host's interfaces, which are {}",
        choice.variable,
        choice.pattern,
        names.join(", ")
    ))
}
