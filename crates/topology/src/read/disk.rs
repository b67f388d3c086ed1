//! The file systems that programs write to.

use crate::model::Disk;

/// The places of packages, logs, users' and temporary files, and of the memory shared by NCCL's
/// processes.
const PATHS: [&str; 5] = ["/", "/var", "/home", "/tmp", "/dev/shm"];

pub(super) fn disks() -> Vec<Disk> {
    let mut known = Vec::new();
    let disk = |path: &str| {
        let device = rustix::fs::stat(path).ok()?.st_dev;
        let about = rustix::fs::statvfs(path).ok()?;
        if known.contains(&device) {
            return None;
        }
        known.push(device);
        Some(Disk {
            path: path.to_owned(),
            total: about.f_blocks.saturating_mul(about.f_frsize),
            available: about.f_bavail.saturating_mul(about.f_frsize),
        })
    };
    PATHS.into_iter().filter_map(disk).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_a_disk() {
        let all = disks();
        let root = &all[0];
        assert_eq!(root.path, "/");
        assert!(root.total > 0 && root.available <= root.total, "{root:?}");
        let about = nix::sys::statvfs::statvfs("/").unwrap();
        assert_eq!(
            root.total,
            about.blocks() as u64 * about.fragment_size() as u64
        );
    }
}
