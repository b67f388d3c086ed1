//! The value of each setting, and the probe that decides it. A pure function of the hosts.

use std::collections::BTreeSet;

use spark_ccl_topology::netif::network;
use spark_ccl_topology::{Cluster, CudaDevice, Host, cages};

use super::Mode;
use super::devices::devices;
use super::interfaces::interfaces;
use super::setting::{Setting, Values};

/// The settings of all hosts.
///
/// # Errors
/// A mode that these hosts do not have, and the probe that says so.
pub(super) fn values(cluster: &Cluster<'_>, mode: Mode) -> Result<Values, String> {
    let mut values = Values::default();
    values.add("NCCL_IB_HCA", devices(cluster));
    values.add("NCCL_SOCKET_IFNAME", interfaces(cluster));
    values.settings.extend(routing(cluster));
    values.settings.extend(merging(cluster));
    values.settings.extend(memory(cluster, mode)?);
    Ok(values)
}

/// NCCL tries pairs of devices that do not reach each other, unless it is told to look at subnets.
fn routing(cluster: &Cluster<'_>) -> Option<Setting> {
    let subnets: BTreeSet<_> = cluster
        .rails
        .iter()
        .filter(|rail| rail.rdma)
        .map(|rail| {
            network(
                rail.ends[0].gid.ip(),
                rail.ends[0].gid.prefix.unwrap_or(128),
            )
        })
        .collect();
    (subnets.len() > 1).then(|| Setting {
        name: "NCCL_IB_SUBNET_AWARE_ROUTING",
        value: "1".to_owned(),
        probe: format!(
            "the rails are in {} subnets, and only devices of one subnet reach each other",
            subnets.len()
        ),
    })
}

/// NCCL takes the functions of one PCI device for one card with two ports, although they lead to
/// different cages.
fn merging(cluster: &Cluster<'_>) -> Option<Setting> {
    let found = cluster.hosts.iter().find_map(|host| {
        let cages = cages(host);
        let cabled = cages.iter().filter(|cage| cage.is_cabled());
        let mut seen: Vec<(&str, &str)> = Vec::new();
        for (name, pci) in cabled.flat_map(|cage| {
            let ends = cage.ends.iter().filter(|end| end.is_active());
            ends.filter_map(|end| Some((cage.name.as_str(), end.device.pci.as_deref()?)))
        }) {
            let (slot, _) = pci.split_once('.')?;
            if seen
                .iter()
                .any(|(other, known)| *known == slot && *other != name)
            {
                return Some((host, slot.to_owned()));
            }
            seen.push((name, slot));
        }
        None
    });
    let (host, slot) = found?;
    Some(Setting {
        name: "NCCL_IB_MERGE_NICS",
        value: "0".to_owned(),
        probe: format!(
            "the functions of {slot} on {} lead to different cages, and merged they would be taken \
             for one way",
            host.name
        ),
    })
}

/// Whether network cards reach device memory.
fn memory(cluster: &Cluster<'_>, mode: Mode) -> Result<Vec<Setting>, String> {
    let all: Vec<(&Host, &CudaDevice)> = cluster
        .hosts
        .iter()
        .flat_map(|host| {
            host.gpus
                .iter()
                .filter_map(move |gpu| Some((host, gpu.cuda.as_ref()?)))
        })
        .collect();
    let Some((_, any)) = all.first() else {
        return match mode {
            Mode::Dmabuf => Err("--mode dmabuf: CUDA lists no GPU on these hosts".to_owned()),
            Mode::Safe | Mode::Auto => Ok(Vec::new()),
        };
    };
    let of = |(host, device): &(&Host, &CudaDevice)| format!("{} of {}", device.name, host.name);
    let shared = all.iter().find(|(_, device)| device.integrated);
    let shared = shared.map(|one| format!("CU_DEVICE_ATTRIBUTE_INTEGRATED is 1 for {}", of(one)));
    let cannot = all.iter().find(|(_, device)| !device.dma_buf);
    let cannot =
        cannot.map(|one| format!("CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED is 0 for {}", of(one)));
    match (mode, shared, cannot) {
        (Mode::Dmabuf, Some(no), _) | (Mode::Dmabuf, None, Some(no)) => {
            Err(format!("--mode dmabuf: {no}; use --mode safe"))
        }
        (Mode::Dmabuf, None, None) => Ok(vec![Setting {
            name: "NCCL_DMABUF_ENABLE",
            value: "1".to_owned(),
            probe: format!(
                "CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED is 1 for all GPUs ({})",
                any.name
            ),
        }]),
        (Mode::Auto | Mode::Safe, Some(shared), _) => Ok(staged(&shared)),
        (Mode::Safe, None, _) => Ok(staged("--mode safe")),
        // The driver's claims do not prove what works, and nvidia_peermem may work where dma-buf
        // does not.
        (Mode::Auto, None, _) => Ok(Vec::new()),
    }
}

fn staged(probe: &str) -> Vec<Setting> {
    let value = |name, value: &str| Setting {
        name,
        value: value.to_owned(),
        probe: probe.to_owned(),
    };
    vec![
        value("NCCL_DMABUF_ENABLE", "0"),
        value("NCCL_NET_GDR_LEVEL", "LOC"),
    ]
}

#[cfg(test)]
mod tests {
    use spark_ccl_topology::testing::{self, Recorded};
    use spark_ccl_topology::{Address, PortState};

    use super::*;

    fn found(recorded: &[Recorded], mode: Mode) -> Result<Vec<(&'static str, String)>, String> {
        let hosts = testing::hosts(recorded);
        let values = values(&Cluster::of(&hosts), mode)?.settings.into_iter();
        Ok(values.map(|one| (one.name, one.value)).collect())
    }

    fn is(value: &str, name: &'static str) -> (&'static str, String) {
        (name, value.to_owned())
    }

    #[test]
    fn a_pair() {
        let devices = "=roceP2p1s0f0,rocep1s0f0";
        let expected = vec![
            is(devices, "SPARK_CCL_IB_HCA"),
            is(devices, "NCCL_IB_HCA"),
            is("=enp1s0f0np0", "SPARK_CCL_SOCKET_IFNAME"),
            is("=enp1s0f0np0", "NCCL_SOCKET_IFNAME"),
            is("1", "NCCL_IB_SUBNET_AWARE_ROUTING"),
            is("0", "NCCL_DMABUF_ENABLE"),
            is("LOC", "NCCL_NET_GDR_LEVEL"),
        ];
        assert_eq!(found(&testing::pair(), Mode::Auto), Ok(expected));
    }

    #[test]
    fn a_ring_meets_in_the_local_network_and_merges_nothing() {
        let expected = vec![
            is("=enP7s7", "SPARK_CCL_SOCKET_IFNAME"),
            is("=enP7s7", "NCCL_SOCKET_IFNAME"),
            is("1", "NCCL_IB_SUBNET_AWARE_ROUTING"),
            is("0", "NCCL_IB_MERGE_NICS"),
            is("0", "NCCL_DMABUF_ENABLE"),
            is("LOC", "NCCL_NET_GDR_LEVEL"),
        ];
        assert_eq!(found(&testing::ring(), Mode::Safe), Ok(expected));
    }

    #[test]
    fn a_cable_to_another_host_is_not_named() {
        let mut hosts = testing::hosts(&testing::pair());
        let other = hosts[1].netdev_mut("enp1s0f1np1");
        other.running = true;
        other.addresses.push(Address {
            ip: "10.9.9.2".parse().unwrap(),
            prefix: 24,
            label: None,
        });
        hosts[1].port_mut("rocep1s0f1").state = PortState::Active;
        let found = values(&Cluster::of(&hosts), Mode::Auto).unwrap();
        let mut found = found
            .settings
            .iter()
            .filter(|one| one.name == "NCCL_IB_HCA");
        assert_eq!(found.next().unwrap().value, "=roceP2p1s0f0,rocep1s0f0");
        // The second host's other cage joins the two, where the first host's leads elsewhere.
        let mut hosts = testing::hosts(&testing::ring())[..2].to_vec();
        let found = values(&Cluster::of(&hosts), Mode::Auto).unwrap();
        let why = found.left_out.iter().find(|one| one.name == "NCCL_IB_HCA");
        assert!(
            why.unwrap().why.contains("leads to none of these"),
            "{why:?}"
        );
        hosts.pop();
        let found = values(&Cluster::of(&hosts), Mode::Auto).unwrap();
        assert_eq!(found.left_out, []);
    }

    #[test]
    fn a_mode_that_the_gpus_lack_is_refused() {
        let error = found(&testing::pair(), Mode::Dmabuf).unwrap_err();
        assert_eq!(
            error,
            "--mode dmabuf: CU_DEVICE_ATTRIBUTE_INTEGRATED is 1 for NVIDIA GB10 of spark-1; use \
             --mode safe"
        );
        let server = [testing::nvlink_server("h200")];
        let expected = vec![is("1", "NCCL_DMABUF_ENABLE")];
        assert_eq!(found(&server, Mode::Dmabuf), Ok(expected));
        // A claim alone sets nothing, and neither does its absence: nvidia_peermem may be there.
        assert_eq!(found(&server, Mode::Auto), Ok(Vec::new()));
        let mut without = server;
        for device in &mut without[0].cuda.devices {
            device.dma_buf = false;
        }
        assert_eq!(found(&without, Mode::Auto), Ok(Vec::new()));
        let staged = vec![
            is("0", "NCCL_DMABUF_ENABLE"),
            is("LOC", "NCCL_NET_GDR_LEVEL"),
        ];
        assert_eq!(found(&without, Mode::Safe), Ok(staged));
        // Memory that is shared is staged whatever the driver claims.
        let mut claims = testing::spark("a", 1);
        claims.cuda.devices[0].dma_buf = true;
        let of = |mode| found(std::slice::from_ref(&claims), mode);
        let values = of(Mode::Auto).unwrap();
        assert!(
            values.contains(&is("0", "NCCL_DMABUF_ENABLE")),
            "{values:?}"
        );
        assert!(of(Mode::Dmabuf).is_err());
        let mut bare = testing::nvlink_server("bare");
        bare.cuda.devices.clear();
        assert!(found(&[bare.clone()], Mode::Dmabuf).is_err());
        assert_eq!(found(&[bare], Mode::Auto), Ok(Vec::new()));
    }
}
