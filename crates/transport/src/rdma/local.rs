//! The RDMA ports of this machine.

use spark_ccl_config::{Hcas, Rdma};
use spark_ccl_topology::netif::{self, Interface};
use spark_ccl_verbs::{
    AddressVector, Context, Device, Error, GidEntry, Library, Mtu, Peer, PortState,
};

use super::{Gid, Port, Rail};

/// A port of this machine, with its device open.
#[derive(Debug, Clone)]
pub struct LocalPort {
    /// The device.
    pub context: Context,
    /// The port's attributes and state when it was queried.
    pub port: spark_ccl_verbs::Port,
    /// Its GID table.
    pub gids: Vec<GidEntry>,
    /// The port as described to peers, provided that they can use it.
    pub description: Port,
}

/// A device of this machine, and its ports or why they are unknown.
pub type LocalDevice = (Device, Result<Vec<LocalPort>, Error>);

/// Opens libibverbs, as the settings name it.
///
/// # Errors
/// When it, or a function of it, is missing.
pub fn library(settings: &Rdma) -> Result<Library, Error> {
    match settings.library.as_deref() {
        // SAFETY: the user who sets `SPARK_CCL_IBVERBS_LIBRARY` names libibverbs by it, and so
        // vouches for its initialisers and its functions.
        Some(path) => unsafe { Library::open_at(path) },
        None => Library::open(),
    }
}

/// All devices of this machine with their ports.
///
/// # Errors
/// When the devices cannot be listed.
pub fn devices(library: Library) -> Result<Vec<LocalDevice>, Error> {
    // Without interfaces, the subnets are unknown, and probes decide.
    let interfaces = netif::list().unwrap_or_default();
    let devices = library.devices()?.into_iter();
    Ok(devices
        .map(|device| {
            let ports = ports(&device, &interfaces);
            (device, ports)
        })
        .collect())
}

/// Why this machine has no device, as far as the settings and libibverbs tell.
pub fn no_device(settings: &Rdma) -> String {
    let ask = "is its driver loaded (mlx5_ib), and is /dev/infiniband visible here?";
    if settings.hcas == Hcas::default() {
        return format!("libibverbs lists no device; {ask}");
    }
    let filter = &settings.hcas;
    format!("libibverbs lists no device, so none of {filter} is there; {ask}")
}

impl LocalPort {
    /// Whether the port is active.
    pub fn is_active(&self) -> bool {
        self.port.state == PortState::Active
    }

    /// Queries the port again.
    ///
    /// # Errors
    /// When the device is gone.
    pub fn renewed(&self) -> Result<Self, Error> {
        let number = self.port.number;
        Ok(Self {
            port: self.context.port(number)?,
            gids: self.context.gids(number)?,
            ..self.clone()
        })
    }

    /// The path along a rail, which starts at this port, to a queue pair of the peer, whose port
    /// has this MTU.
    ///
    /// # Errors
    /// When the rail's ends do not match, or have changed.
    pub fn way(
        &self,
        rail: &Rail,
        peer_mtu: u32,
        qp_num: u32,
        settings: &Rdma,
    ) -> Result<AddressVector, Box<dyn std::error::Error>> {
        let (own, peer) = (&rail.own.gid, &rail.peer.gid);
        let is_own = |entry: &&GidEntry| {
            entry.gid.0 == own.address.octets() && entry.kind == own.roce.kind()
        };
        let entry = self.gids.iter().find(is_own);
        let entry = entry.ok_or("its address is gone")?;
        let mtu = Mtu::from_bytes(peer_mtu.min(self.port.active_mtu.bytes()));
        let mtu = mtu.ok_or_else(|| format!("an MTU of {peer_mtu} is none of RDMA's"))?;
        let peer = Peer {
            gid: spark_ccl_verbs::Gid(peer.address.octets()),
            kind: peer.roce.kind(),
            qp_num,
        };
        Ok(
            AddressVector::new(&self.port, entry, &peer, mtu)?
                .traffic_class(settings.traffic_class),
        )
    }
}

fn ports(device: &Device, interfaces: &[Interface]) -> Result<Vec<LocalPort>, Error> {
    let context = device.open()?;
    let last = context.limits()?.ports;
    (1..=last)
        .map(|number| port(device, &context, number, interfaces))
        .collect()
}

fn port(
    device: &Device,
    context: &Context,
    number: u8,
    interfaces: &[Interface],
) -> Result<LocalPort, Error> {
    let port = context.port(number)?;
    let gids = context.gids(number)?;
    let own = gids.iter().find_map(|gid| gid.netdev.clone());
    let mut description = Port {
        device: device.name().to_owned(),
        number,
        pci: device.pci_address(),
        netdev: own.or_else(|| device.netdevs().into_iter().next()),
        mtu: port.active_mtu.bytes(),
        speed: port.gbits.map(|gbits| (gbits * 1000.0) as u32),
        gids: gids.iter().filter_map(Gid::of_entry).collect(),
    };
    description.set_prefixes(interfaces);
    Ok(LocalPort {
        context: context.clone(),
        port,
        gids,
        description,
    })
}

#[cfg(test)]
mod tests {
    use spark_ccl_config::{Env, Settings};

    use super::*;

    #[test]
    fn a_machine_without_devices_is_told_from_one_whose_filter_leaves_none() {
        let text = |variables: &[(&str, &str)]| {
            let env = Env::from_pairs(variables.iter().copied());
            no_device(&Settings::from_env(&env).unwrap().rdma)
        };
        let ask = "is its driver loaded (mlx5_ib), and is /dev/infiniband visible here?";
        assert_eq!(text(&[]), format!("libibverbs lists no device; {ask}"));
        let filtered = text(&[("NCCL_IB_HCA", "rocep1s0f0,roceP2p1s0f0")]);
        let none = "libibverbs lists no device, so none of NCCL_IB_HCA=rocep1s0f0,roceP2p1s0f0 is";
        assert!(filtered.starts_with(none), "{filtered}");
    }
}
