//! The opened RDMA ports of this machine.

use std::sync::Arc;

use spark_ccl_config::Rdma;
use spark_ccl_verbs::{AddressVector, Error, Library, ProtectionDomain};

use super::super::{LocalPort, Port, Rail, Registry, devices, library, no_device};

/// The RDMA ports of this machine that may be used.
#[derive(Debug, Default)]
pub struct Nics {
    ports: Vec<(LocalPort, ProtectionDomain)>,
    /// The same ports, as described to peers.
    descriptions: Vec<Port>,
    registry: Arc<Registry>,
    /// Why there are no ports, for messages.
    pub none_because: Option<String>,
}

impl Nics {
    /// Opens the devices. If that fails, there are no ports.
    pub fn open(settings: &Rdma) -> Self {
        let opened = library(settings).and_then(|library| Self::of(library, settings));
        opened.unwrap_or_else(|error| Self {
            none_because: Some(error.to_string()),
            ..Self::default()
        })
    }

    /// Opens the devices of a library.
    ///
    /// # Errors
    /// When the devices cannot be listed.
    pub fn of(library: Library, settings: &Rdma) -> Result<Self, Error> {
        let mut nics = Self::default();
        let mut problems = Vec::new();
        let devices = devices(library)?;
        if devices.is_empty() {
            nics.none_because = Some(no_device(settings));
            return Ok(nics);
        }
        for (device, ports) in devices {
            // A device that cannot be used does not exclude the others.
            let ports = ports.unwrap_or_else(|error| {
                problems.push(format!("{}: {error}", device.name()));
                Vec::new()
            });
            for local in ports {
                match usable(&local, settings) {
                    Ok((description, domain)) => {
                        nics.descriptions.push(description);
                        nics.ports.push((local, domain));
                    }
                    Err(problem) => problems.push(format!("{}: {problem}", device.name())),
                }
            }
        }
        if nics.ports.is_empty() {
            problems.insert(0, "no RDMA port can be used".to_owned());
            nics.none_because = Some(problems.join("; "));
        }
        let domains = nics.ports.iter().map(|(_, domain)| domain.clone());
        nics.registry = Arc::new(Registry::new(domains.collect()));
        Ok(nics)
    }

    /// The ports, in the order of their descriptions, each with a domain.
    pub fn ports(&self) -> &[(LocalPort, ProtectionDomain)] {
        &self.ports
    }

    /// The ports as described to peers.
    pub fn descriptions(&self) -> &[Port] {
        &self.descriptions
    }

    /// The registered memory of this process, other than slots.
    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// The path along a rail to a queue pair of the peer, whose ports are `theirs`.
    ///
    /// # Errors
    /// When the rail's ends do not match, or have changed.
    pub fn way(
        &self,
        rail: &Rail,
        theirs: &[Port],
        qp_num: u32,
        settings: &Rdma,
    ) -> Result<AddressVector, Box<dyn std::error::Error>> {
        let (local, _) = &self.ports[rail.own.port];
        let peer_mtu = theirs.get(rail.peer.port).map_or(0, |port| port.mtu);
        local.way(rail, peer_mtu, qp_num, settings)
    }
}

/// The description for peers and the protection domain of a usable port.
fn usable(
    local: &LocalPort,
    settings: &Rdma,
) -> Result<(Port, ProtectionDomain), Box<dyn std::error::Error>> {
    let description = local.description.usable(settings)?;
    if !local.is_active() {
        return Err(format!("port {} is not active", description.number).into());
    }
    Ok((description, local.context.protection_domain()?))
}
