//! Reads from sysfs the facts about RDMA devices that libibverbs does not report.

use std::fs;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::{Gid, GidEntry, GidKind};

/// The folder of devices, below a root.
const DEVICES: &str = "sys/class/infiniband";
/// The longest file that is read, in bytes; those of sysfs have at most a page.
const LONGEST: u64 = 64 << 10;

/// The facts about RDMA devices below `sys`. Reads only folders and regular files below the root: a
/// recorded tree may have pipes, and links to devices.
#[derive(Debug)]
pub struct Sysfs {
    /// Free of links.
    root: PathBuf,
}

impl Default for Sysfs {
    fn default() -> Self {
        Self::at(Path::new("/"))
    }
}

impl Sysfs {
    /// The devices below this folder, which contains `sys`: `/`, or the recorded tree of another
    /// machine.
    pub fn at(root: &Path) -> Self {
        Self {
            root: fs::canonicalize(root).unwrap_or_else(|_| root.to_owned()),
        }
    }

    /// The PCI address of a device, such as `0000:01:00.0`; `None` for a software device.
    pub fn pci_address(&self, device: &str) -> Option<String> {
        let target = self.folder(device, "device")?;
        let name = target.file_name()?.to_str()?;
        Self::is_pci_address(name).then(|| name.to_owned())
    }

    /// The network interfaces of a device: those its GIDs belong to, those of its PCI function, and
    /// the parent interface of a software device. Sorted, without duplicates.
    pub fn netdevs(&self, device: &str) -> Vec<String> {
        let mut found = names(self.folder(device, "device/net").as_deref());
        let own = self.folder(device, "");
        found.extend(own.and_then(|folder| text(&folder, "parent")));
        for port in names(self.folder(device, "ports").as_deref()) {
            let netdevs = self.folder(device, &format!("ports/{port}/gid_attrs/ndevs"));
            let Some(netdevs) = netdevs else { continue };
            let indexes = names(Some(&netdevs)).into_iter();
            found.extend(indexes.filter_map(|index| text(&netdevs, &index)));
        }
        found.sort();
        found.dedup();
        found
    }

    /// The GIDs of a port that are in use, by index.
    pub fn gids(&self, device: &str, port: u8) -> Vec<GidEntry> {
        let folder = |name| self.folder(device, &format!("ports/{port}/{name}"));
        let (Some(gids), Some(types)) = (folder("gids"), folder("gid_attrs/types")) else {
            return Vec::new();
        };
        let netdevs = folder("gid_attrs/ndevs");
        let entry = |index: String| {
            let gid: Gid = text(&gids, &index)?.parse().ok()?;
            // Tables have hundreds of entries, few of them in use.
            if gid.is_zero() {
                return None;
            }
            let netdev = netdevs.as_ref().and_then(|folder| text(folder, &index));
            Some(GidEntry {
                gid,
                port,
                index: index.parse().ok()?,
                kind: kind(&text(&types, &index)?, netdev.is_some()),
                netdev,
            })
        };
        let mut entries: Vec<_> = names(Some(&gids)).into_iter().filter_map(entry).collect();
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

    /// A folder of a device, links resolved; `None` if there is none or it is outside the root.
    fn folder(&self, device: &str, name: &str) -> Option<PathBuf> {
        let path = self.root.join(DEVICES).join(device).join(name);
        let path = fs::canonicalize(path).ok()?;
        (path.starts_with(&self.root) && path.is_dir()).then_some(path)
    }
}

/// The kernel reports one type for InfiniBand and RoCE v1. Only RoCE has a network interface.
fn kind(text: &str, has_netdev: bool) -> GidKind {
    match text {
        "RoCE v2" => GidKind::RoceV2,
        _ if has_netdev => GidKind::RoceV1,
        _ => GidKind::Ib,
    }
}

/// The names in a folder; none if there is no folder.
fn names(folder: Option<&Path>) -> Vec<String> {
    let entries = folder.and_then(|folder| fs::read_dir(folder).ok());
    let entries = entries.into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

/// The single line of a regular file in a folder; `None` if it is empty, very long or unreadable.
fn text(folder: &Path, name: &str) -> Option<String> {
    // A link may lead out of the root, opening a pipe may wait, and a device may have no end.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let path = folder.join(name);
    let file = fs::File::options()
        .read(true)
        .custom_flags(flags)
        .open(path)
        .ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut text = String::new();
    file.take(LONGEST + 1).read_to_string(&mut text).ok()?;
    let line = text.trim();
    (!line.is_empty() && text.len() as u64 <= LONGEST).then(|| line.to_owned())
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
        let port = "sys/class/infiniband/rocep1s0f0/ports/1";
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
        write("sys/class/infiniband/rxe0/parent", "eth0\n");
        std::os::unix::fs::symlink(
            root.path().join("pci/0000:01:00.0"),
            root.path().join("sys/class/infiniband/rocep1s0f0/device"),
        )
        .unwrap();
        root
    }

    #[test]
    fn a_device_has_a_pci_address_and_interfaces() {
        let root = tree();
        let sysfs = Sysfs::at(root.path());
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
        let gids = Sysfs::at(root.path()).gids("rocep1s0f0", 1);
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
