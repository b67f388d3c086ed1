//! Reads what libibverbs does not report about RDMA devices from sysfs.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{Gid, GidEntry, GidKind};

/// The directory of devices, `/sys/class/infiniband`.
#[derive(Debug)]
pub struct Sysfs {
    root: PathBuf,
}

impl Default for Sysfs {
    fn default() -> Self {
        Self {
            root: PathBuf::from("/sys/class/infiniband"),
        }
    }
}

impl Sysfs {
    /// The folder of another machine's devices, which were recorded.
    pub fn at(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
        }
    }

    /// The PCI address of a device, such as `0000:01:00.0`; `None` for a software device.
    pub fn pci_address(&self, device: &str) -> Option<String> {
        let target = fs::canonicalize(self.root.join(device).join("device")).ok()?;
        let name = target.file_name()?.to_str()?;
        Self::is_pci_address(name).then(|| name.to_owned())
    }

    /// The network interfaces of a device: those its GIDs belong to, those of its PCI function, and the parent
    /// interface of a software device. Sorted, without duplicates.
    pub fn netdevs(&self, device: &str) -> Vec<String> {
        let folder = self.root.join(device);
        let mut found = names(&folder.join("device/net"));
        found.extend(text(&folder.join("parent")));
        for port in names(&folder.join("ports")) {
            let netdevs = folder.join("ports").join(port).join("gid_attrs/ndevs");
            found.extend(
                names(&netdevs)
                    .iter()
                    .filter_map(|index| text(&netdevs.join(index))),
            );
        }
        found.sort();
        found.dedup();
        found
    }

    /// The GIDs of a port that are in use, by index.
    pub fn gids(&self, device: &str, port: u8) -> Vec<GidEntry> {
        let folder = self.root.join(device).join("ports").join(port.to_string());
        let mut entries: Vec<_> = names(&folder.join("gids"))
            .iter()
            .filter_map(|index| gid(&folder, port, index))
            .collect();
        entries.sort_by_key(|entry| entry.index);
        entries
    }

    /// Whether a name has the form `domain:bus:device.function`, such as `0000:01:00.0`.
    pub fn is_pci_address(name: &str) -> bool {
        let Some((address, function)) = name.rsplit_once('.') else {
            return false;
        };
        let parts: Vec<_> = address.split(':').collect();
        let hex =
            |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        parts.len() == 3 && parts.into_iter().all(hex) && hex(function)
    }
}

/// An entry of a port's GID table; `None` if it is not in use: its address is zero, or its type cannot be read.
fn gid(port_folder: &Path, port: u8, index: &str) -> Option<GidEntry> {
    let gid: Gid = text(&port_folder.join("gids").join(index))?.parse().ok()?;
    let attributes = port_folder.join("gid_attrs");
    let netdev = text(&attributes.join("ndevs").join(index));
    let kind = match text(&attributes.join("types").join(index))?.as_str() {
        "RoCE v2" => GidKind::RoceV2,
        // The kernel reports one type for InfiniBand and RoCE v1. Only RoCE has a network interface.
        _ if netdev.is_some() => GidKind::RoceV1,
        _ => GidKind::Ib,
    };
    let index = index.parse().ok()?;
    (!gid.is_zero()).then_some(GidEntry {
        gid,
        port,
        index,
        kind,
        netdev,
    })
}

/// The names in a directory; none if it does not exist.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

/// The single line of a file; `None` if the file is empty or cannot be read.
fn text(file: &Path) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.trim();
    (!line.is_empty()).then(|| line.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A PCI RoCE device with three GIDs, two of them in use, and a software device.
    fn tree() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let file = root.path().join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        let port = "class/rocep1s0f0/ports/1";
        write(
            &format!("{port}/gids/0"),
            "fe80:0000:0000:0000:0202:03ff:fe04:0506\n",
        );
        write(
            &format!("{port}/gids/10"),
            "0000:0000:0000:0000:0000:ffff:0a00:0001\n",
        );
        write(
            &format!("{port}/gids/2"),
            "0000:0000:0000:0000:0000:0000:0000:0000\n",
        );
        write(&format!("{port}/gid_attrs/types/0"), "IB/RoCE v1\n");
        write(&format!("{port}/gid_attrs/types/10"), "RoCE v2\n");
        write(&format!("{port}/gid_attrs/ndevs/0"), "enp1s0f0np0\n");
        write(&format!("{port}/gid_attrs/ndevs/10"), "vlan7\n");
        write("pci/0000:01:00.0/net/enp1s0f0np0/mtu", "9000\n");
        write("class/rxe0/parent", "eth0\n");
        std::os::unix::fs::symlink(
            root.path().join("pci/0000:01:00.0"),
            root.path().join("class/rocep1s0f0/device"),
        )
        .unwrap();
        root
    }

    #[test]
    fn a_device_has_a_pci_address_and_interfaces() {
        let root = tree();
        let sysfs = Sysfs::at(&root.path().join("class"));
        assert_eq!(
            sysfs.pci_address("rocep1s0f0").as_deref(),
            Some("0000:01:00.0")
        );
        assert_eq!(sysfs.netdevs("rocep1s0f0"), ["enp1s0f0np0", "vlan7"]);
        assert_eq!(sysfs.pci_address("rxe0"), None);
        assert_eq!(sysfs.netdevs("rxe0"), ["eth0"]);
        assert!(sysfs.netdevs("absent").is_empty());
    }

    #[test]
    fn gids_in_use_are_listed_by_index() {
        let root = tree();
        let gids = Sysfs::at(&root.path().join("class")).gids("rocep1s0f0", 1);
        let seen: Vec<_> = gids
            .iter()
            .map(|entry| {
                (
                    entry.index,
                    entry.kind,
                    entry.gid.to_string(),
                    entry.netdev.as_deref(),
                )
            })
            .collect();
        assert_eq!(
            seen,
            [
                (
                    0,
                    GidKind::RoceV1,
                    "fe80::202:3ff:fe04:506".into(),
                    Some("enp1s0f0np0")
                ),
                (10, GidKind::RoceV2, "::ffff:10.0.0.1".into(), Some("vlan7")),
            ]
        );
    }

    #[test]
    fn only_pci_addresses_are_taken_for_such() {
        assert!(Sysfs::is_pci_address("000f:01:00.1"));
        for other in [
            "virtual",
            "01:00.0",
            "0000:01:00",
            "0000:zz:00.0",
            "0000:01:00.",
            "",
        ] {
            assert!(!Sysfs::is_pci_address(other), "{other}");
        }
    }
}
