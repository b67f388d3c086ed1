//! The identity of the host that this process runs on.

use std::fmt;
use std::os::linux::fs::MetadataExt;

use sha2::{Digest, Sha256};

/// Identifies a kernel and a network namespace: two ranks with equal ids reach each other through
/// abstract Unix sockets.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId {
    /// Identifies one boot of one kernel.
    pub(crate) boot: [u8; 16],
    /// The network namespace's inode.
    pub(crate) network: u64,
}

impl HostId {
    /// Whether both are of one machine, be it with networks of their own, as containers have.
    pub fn is_same_machine(&self, other: &Self) -> bool {
        self.boot == other.boot
    }

    /// The identity of this process's host. If the kernel does not provide a boot id, the host name
    /// is used.
    pub(crate) fn of_this_process() -> Self {
        let source = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .unwrap_or_else(|_| format!("host name {}", name()));
        let digest: [u8; 32] = Sha256::digest(source.trim().as_bytes()).into();
        let mut boot = [0; 16];
        boot.copy_from_slice(&digest[..16]);
        let network = std::fs::metadata("/proc/self/ns/net").map_or(0, |meta| meta.st_ino());
        HostId { boot, network }
    }
}

impl fmt::Debug for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in &self.boot[..4] {
            write!(f, "{byte:02x}")?;
        }
        write!(f, "/{}", self.network)
    }
}

/// This host's name.
pub(crate) fn name() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}
