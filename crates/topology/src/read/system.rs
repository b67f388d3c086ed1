//! Kernel, memory and limits, read from procfs.

use super::Tree;
use crate::model::{HostMemory, Limit, Limits, System};

/// The beginnings of the relevant parameters of the kernel's command line.
const PARAMETERS: &[&str] = &[
    "amd_iommu",
    "arm-smmu",
    "cma",
    "default_hugepagesz",
    "hugepages",
    "hugepagesz",
    "intel_iommu",
    "iommu",
    "kho",
    "pci",
    "pcie_",
];

/// The number of the capability to lock memory without a limit.
const CAP_IPC_LOCK: u32 = 14;

pub(super) fn system(tree: &Tree) -> System {
    let boot = tree.text("proc/cmdline").unwrap_or_default();
    let matters = |word: &&str| PARAMETERS.iter().any(|name| word.starts_with(name));
    let boot = boot.split_whitespace().filter(matters);
    let kernel = tree.text("proc/sys/kernel/osrelease").unwrap_or_default();
    System {
        // Available since kernel 6.1.
        arch: tree
            .text("proc/sys/kernel/arch")
            .unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
        product: tree.text("sys/class/dmi/id/product_name"),
        boot: boot.map(str::to_owned).collect(),
        page_bytes: tree
            .file("proc/self/smaps")
            .and_then(|text| kibibytes(&text, "KernelPageSize")),
        compaction: tree.number("proc/sys/vm/compaction_proactiveness"),
        smmu_sva: tree
            .file(&format!("boot/config-{kernel}"))
            .map(|text| text.lines().any(|line| line == "CONFIG_ARM_SMMU_V3_SVA=y")),
        kernel,
        container: container(tree),
        rdma_files: tree.has("dev").then(|| {
            let files = tree.names("dev/infiniband");
            files.iter().any(|name| name.starts_with("uverbs"))
        }),
    }
}

pub(super) fn memory(tree: &Tree) -> HostMemory {
    let text = tree.file("proc/meminfo").unwrap_or_default();
    let bytes = |name| kibibytes(&text, name);
    HostMemory {
        total: bytes("MemTotal").unwrap_or(0),
        available: bytes("MemAvailable").unwrap_or(0),
        cma: bytes("CmaTotal").zip(bytes("CmaFree")),
    }
}

pub(super) fn limits(tree: &Tree) -> Limits {
    let limits = tree.file("proc/self/limits").unwrap_or_default();
    let status = tree.file("proc/self/status").unwrap_or_default();
    let capabilities = field(&status, "CapEff").and_then(|text| u64::from_str_radix(text, 16).ok());
    Limits {
        memlock: soft_limit(&limits, "Max locked memory"),
        files: soft_limit(&limits, "Max open files"),
        ipc_lock: is_initial(tree) && capabilities.is_some_and(|all| all >> CAP_IPC_LOCK & 1 == 1),
        receive_buffer: tree.number("proc/sys/net/core/rmem_max"),
        send_buffer: tree.number("proc/sys/net/core/wmem_max"),
    }
}

/// Whether this process is in the initial user namespace: the kernel heeds the capability only
/// there, and not in a rootless container.
fn is_initial(tree: &Tree) -> bool {
    let map = tree.text("proc/self/uid_map");
    map.is_none_or(|map| map.split_whitespace().eq(["0", "0", "4294967295"]))
}

/// The container around this process, by the marks of container programs.
fn container(tree: &Tree) -> Option<String> {
    let groups = tree.file("proc/self/cgroup").unwrap_or_default();
    let known = if tree.has("var/run/secrets/kubernetes.io") || groups.contains("kubepods") {
        "kubernetes"
    } else if tree.has("run/.containerenv") {
        "podman"
    } else if tree.has(".dockerenv") || groups.contains("docker") {
        "docker"
    } else if groups.contains("/lxc") {
        "lxc"
    } else {
        return None;
    };
    Some(known.to_owned())
}

/// The value of a line such as `MemTotal:   1024 kB`, in bytes.
pub(super) fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let value = field(text, name)?.strip_suffix("kB")?.trim();
    value.parse::<u64>().ok()?.checked_mul(1024)
}

/// The text after the name and a colon, in the first line that begins with these.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = text.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.map(str::trim)
}

/// The soft limit in a line of `/proc/self/limits`: a name, the soft limit, the hard limit, the
/// unit.
fn soft_limit(text: &str, name: &str) -> Limit {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    match line.and_then(|line| line.split_whitespace().next()) {
        Some("unlimited") => Limit::Unlimited,
        Some(number) => number.parse().map_or(Limit::Unknown, Limit::Most),
        None => Limit::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capability_counts_in_the_first_user_namespace_only() {
        let mut recorded = crate::testing::spark("a", 1);
        recorded.set("proc/self/status", "CapEff:\t0000000000004000");
        assert!(recorded.host().limits.ipc_lock);
        recorded.set("proc/self/uid_map", "0 0 4294967295");
        assert!(recorded.host().limits.ipc_lock);
        recorded.set("proc/self/uid_map", "0 1000 1\n1 100000 65536");
        assert!(!recorded.host().limits.ipc_lock);
    }

    #[test]
    fn the_configuration_is_that_of_the_running_kernel() {
        let mut recorded = crate::testing::spark("a", 1);
        let read = |recorded: &crate::testing::Recorded| recorded.host().system.smmu_sva;
        recorded.remove("boot");
        recorded.set("boot/config-6.1.0-1-arm64", "CONFIG_ARM_SMMU_V3_SVA=y");
        assert_eq!(read(&recorded), None);
        let path = format!("boot/config-{}", recorded.host().system.kernel);
        recorded.set(
            &path,
            "CONFIG_ARM_SMMU_V3=y\n# CONFIG_ARM_SMMU_V3_SVA is not set",
        );
        assert_eq!(read(&recorded), Some(false));
        recorded.set(&path, "CONFIG_ARM_SMMU_V3=y\nCONFIG_ARM_SMMU_V3_SVA=y");
        assert_eq!(read(&recorded), Some(true));
    }

    #[test]
    fn rdma_needs_files() {
        let mut recorded = crate::testing::spark("a", 1);
        assert_eq!(recorded.host().system.rdma_files, None);
        recorded.set("dev/null", "");
        assert_eq!(recorded.host().system.rdma_files, Some(false));
        recorded.set("dev/infiniband/uverbs0", "");
        assert_eq!(recorded.host().system.rdma_files, Some(true));
    }

    #[test]
    fn lines_of_procfs() {
        assert_eq!(
            kibibytes("A: 1 kB\nCmaFree:  12 kB\n", "CmaFree"),
            Some(12288)
        );
        assert_eq!(kibibytes("CmaFree: 12\n", "CmaFree"), None);
        assert_eq!(kibibytes("CmaFreeX: 12 kB\n", "CmaFree"), None);
        let limits = "Limit  Soft Limit  Hard Limit  Units\nMax locked memory  8388608  unlimited  bytes\n\
                      Max open files   unlimited  unlimited files\n";
        assert_eq!(
            soft_limit(limits, "Max locked memory"),
            Limit::Most(8_388_608)
        );
        assert_eq!(soft_limit(limits, "Max open files"), Limit::Unlimited);
        assert_eq!(soft_limit(limits, "Max cpu time"), Limit::Unknown);
    }
}
