//! Control groups of this process: which folders may limit it.

use std::path::{Path, PathBuf};

/// The folders of a controller that may limit this process, from the text of `/proc/self/cgroup`:
/// its group and all enclosing groups, of version 2 or 1. Within a container some of them may not
/// be visible.
pub fn folders(groups: &str, controller: &str) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        let all = Path::new("/sys/fs/cgroup");
        let root = if controllers.is_empty() {
            all.to_owned()
        } else if controllers.split(',').any(|name| name == controller) {
            all.join(controller)
        } else {
            continue;
        };
        let group = root.join(path.trim_start_matches('/'));
        let enclosing = group.ancestors().take_while(|at| at.starts_with(&root));
        folders.extend(enclosing.map(PathBuf::from));
    }
    folders
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_text_leads_elsewhere(groups in "([0-9:/a-z.,=]{0,20}\\n){0,4}") {
            for folder in folders(&groups, "memory") {
                prop_assert!(folder.starts_with("/sys/fs/cgroup"));
            }
        }
    }

    #[test]
    fn all_groups_around_the_process_count() {
        let folders = |text, controller| {
            let folders = folders(text, controller).into_iter();
            let texts = folders.map(|folder| folder.display().to_string());
            texts.collect::<Vec<_>>()
        };
        assert_eq!(
            folders("0::/user.slice/job\n", "cpu"),
            [
                "/sys/fs/cgroup/user.slice/job",
                "/sys/fs/cgroup/user.slice",
                "/sys/fs/cgroup"
            ]
        );
        let version_1 = "9:name=systemd:/\n4:hugetlb,memory:/box\n1:cpu,cpuacct:/a\ngarbage\n";
        for (controller, group) in [("memory", "memory/box"), ("cpu", "cpu/a")] {
            let expected = [group, controller].map(|name| format!("/sys/fs/cgroup/{name}"));
            assert_eq!(folders(version_1, controller), expected);
        }
    }
}
