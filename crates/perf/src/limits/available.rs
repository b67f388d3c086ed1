//! The memory that is available: to the machine, and to this process's control group.

use std::fs;
use std::path::{Path, PathBuf};

use super::MemoryLimit;

/// The memory limits of this process. A limit that cannot be read is omitted.
pub(crate) fn here() -> Vec<MemoryLimit> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let boot = boot.trim();
    let host = fs::read_to_string("/proc/meminfo")
        .ok()
        .as_deref()
        .and_then(mem_available);
    let host = host.map(|bytes| MemoryLimit {
        name: format!("machine {boot}"),
        bytes,
    });
    let group = cgroup_limit().map(|(path, bytes)| MemoryLimit {
        name: format!("control group {} of {boot}", path.display()),
        bytes,
    });
    host.into_iter().chain(group).collect()
}

fn mem_available(meminfo: &str) -> Option<u64> {
    field(meminfo, "MemAvailable:").map(|kib| kib * 1024)
}

/// The number after a name at the start of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        line.strip_prefix(name)?
            .split_whitespace()
            .next()?
            .parse()
            .ok()
    })
}

/// The peak resident memory of this process.
pub(crate) fn peak_resident() -> Option<u64> {
    field(&fs::read_to_string("/proc/self/status").ok()?, "VmHWM:").map(|kib| kib * 1024)
}

/// The control group with the least memory available, among this process's group and its ancestors.
fn cgroup_limit() -> Option<(PathBuf, u64)> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let (root, path, names) = memory_group(&groups)?;
    let own = root.join(path.trim_start_matches('/'));
    // In a container, the path may be the host's, while the mount shows the container's group
    // itself.
    let own = if own.exists() { own } else { root.clone() };
    own.ancestors()
        .take_while(|group| group.starts_with(&root))
        .filter_map(|group| Some((group.to_path_buf(), limit_of(group, &names)?)))
        .min_by_key(|(_, bytes)| *bytes)
}

/// The names of a control group's files for limit and usage, and of the statistic for cache that
/// can be dropped.
struct Names {
    limit: &'static str,
    used: &'static str,
    cache: &'static str,
}

fn memory_group(groups: &str) -> Option<(PathBuf, String, Names)> {
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        if controllers.split(',').any(|name| name == "memory") {
            let names = Names {
                limit: "memory.limit_in_bytes",
                used: "memory.usage_in_bytes",
                cache: "total_inactive_file",
            };
            return Some((
                PathBuf::from("/sys/fs/cgroup/memory"),
                path.to_owned(),
                names,
            ));
        }
    }
    let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let names = Names {
        limit: "memory.max",
        used: "memory.current",
        cache: "inactive_file",
    };
    Some((PathBuf::from("/sys/fs/cgroup"), path.to_owned(), names))
}

fn limit_of(group: &Path, names: &Names) -> Option<u64> {
    let number = |name: &str| {
        fs::read_to_string(group.join(name))
            .ok()?
            .trim()
            .parse::<u64>()
            .ok()
    };
    // "max", which means no limit, does not parse; the filter removes the old interface's number
    // for no limit.
    let limit = number(names.limit).filter(|&limit| limit < 1 << 60)?;
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let cache = field(&stat, &format!("{} ", names.cache)).unwrap_or(0);
    Some(limit.saturating_sub(number(names.used)?.saturating_sub(cache)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_files() {
        assert_eq!(
            mem_available("MemTotal: 10 kB\nMemAvailable:   2048 kB\n"),
            Some(2 << 20)
        );
        assert!(here().iter().any(|limit| limit.bytes > 0));
        let (root, path, _) = memory_group("0::/user.slice/x\n").unwrap();
        assert_eq!(
            (root.as_path(), path.as_str()),
            (Path::new("/sys/fs/cgroup"), "/user.slice/x")
        );
        let (root, path, _) = memory_group("5:cpu:/\n4:memory:/docker/y\n0::/\n").unwrap();
        assert_eq!(
            (root.as_path(), path.as_str()),
            (Path::new("/sys/fs/cgroup/memory"), "/docker/y")
        );
        assert!(memory_group("").is_none());
    }
}
