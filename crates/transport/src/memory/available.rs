//! How much memory is still available.
//!
//! The kernel does not refuse a memory file that it has no memory for: it fills the file until it
//! has to kill processes, not necessarily this one. The caller therefore checks first.

use std::fs;
use std::path::Path;

use spark_ccl_topology::cgroup;

/// Bytes available without swapping on this machine and in each control group (so each container)
/// that contains this process; `None` if the system does not tell.
pub fn available_bytes() -> Option<u64> {
    #[cfg(test)]
    if let Some(pretended) = PRETENDED.get() {
        return Some(pretended);
    }
    let machine = fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| of_machine(&text));
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let groups = cgroup::folders(&groups, "memory")
        .into_iter()
        .filter_map(|folder| of_group(&folder));
    machine.into_iter().chain(groups).min()
}

#[cfg(test)]
thread_local! {
    static PRETENDED: std::cell::Cell<Option<u64>> = const { std::cell::Cell::new(None) };
}

/// Makes this thread see this many bytes as available, for tests.
#[cfg(test)]
pub(crate) fn pretend_available(bytes: Option<u64>) {
    PRETENDED.set(bytes);
}

fn of_machine(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

fn of_group(folder: &Path) -> Option<u64> {
    let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
    // The files of cgroup version 2, then those of version 1.
    let limit = read("memory.max").or_else(|| read("memory.limit_in_bytes"))?;
    let used = read("memory.current").or_else(|| read("memory.usage_in_bytes"))?;
    headroom(&limit, &used, &read("memory.stat").unwrap_or_default())
}

/// The bytes that are left of a group's limit, including page cache that the kernel can drop;
/// `None` if there is no limit.
fn headroom(limit: &str, used: &str, stat: &str) -> Option<u64> {
    let limit: u64 = limit.trim().parse().ok()?;
    let used: u64 = used.trim().parse().ok()?;
    let cached = ["total_inactive_file ", "inactive_file "]
        .iter()
        .find_map(|name| stat.lines().find_map(|line| line.strip_prefix(name)))
        .and_then(|value| value.trim().parse().ok())
        .unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(cached)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_text_of_the_system_is_read(
            meminfo in "(MemAvailable: {0,3}[0-9]{0,22} {0,2}(kB)?\\n|\\PC{0,20})",
            limit in "[0-9]{0,22}|max|\\PC{0,8}",
            used in "[0-9]{0,22}",
            stat in "(inactive_file |total_inactive_file |anon )?[0-9]{0,22}",
        ) {
            let _ = of_machine(&meminfo);
            if let Some(left) = headroom(&limit, &used, &stat) {
                prop_assert!(limit.trim().parse().is_ok_and(|limit: u64| left <= limit));
            }
        }
    }

    #[test]
    fn the_machine_says_what_it_has() {
        let text = "MemTotal:  24682348 kB\nMemFree: 1 kB\nMemAvailable:   23470824 kB\n";
        assert_eq!(of_machine(text), Some(23_470_824 * 1024));
        assert_eq!(of_machine("MemTotal: 7 kB\n"), None);
        assert_eq!(of_machine("MemAvailable: many kB\n"), None);
        assert!(available_bytes().is_some_and(|bytes| bytes > 0));
    }

    #[test]
    fn a_group_counts_its_page_cache_as_free() {
        assert_eq!(
            headroom("1000\n", "900\n", "anon 5\ninactive_file 300\n"),
            Some(400)
        );
        let version_1 = "inactive_file 1\ntotal_inactive_file 2\n";
        assert_eq!(headroom("1000", "900", version_1), Some(102));
        assert_eq!(headroom("1000", "2000", ""), Some(0));
        assert_eq!(headroom("max\n", "900\n", ""), None);
    }
}
