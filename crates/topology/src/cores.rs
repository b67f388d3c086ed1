//! How many cores a rank has to itself: what its affinity mask and the quota of its control groups
//! leave, where other ranks of the host have the same.

use std::path::Path;
use std::{fmt, fs};

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::cgroup;

/// The cores of a rank, and who shares them. As text: what bounds them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cores {
    /// The affinity mask of the thread that asked; `None` if the kernel does not tell.
    set: Option<CpuSet>,
    /// How many that are.
    mask: usize,
    /// Ranks of this host, this one among them, whose masks have cores of this mask.
    sharers: usize,
    /// The limit of this process's control groups, in cores.
    quota: Option<f64>,
    /// Ranks that share this limit: those of this host that are in no other container.
    ranks: usize,
}

impl Cores {
    /// The cores of this thread's rank, of as many ranks of this host as there are ids of
    /// processes. Without an id, or with one that is unknown here, a rank counts as one that shares
    /// the mask. Without an id, it does not share the quota: it is in another container, which has
    /// its own. An id must be of this process's namespace: else it may be that of another process
    /// here, whose mask would count.
    pub fn of(processes: &[Option<u32>]) -> Self {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let folders = cgroup::folders(&groups, "cpu").into_iter();
        let quotas = folders.filter_map(|folder| quota_of(&folder));
        let own = sched_getaffinity(None).ok();
        let masks = processes.iter().map(|&process| mask_of(process?));
        Self {
            set: own,
            mask: own.map_or(1, |own| own.count() as usize),
            sharers: masks
                .filter(|mask| share(own.as_ref(), mask.as_ref()))
                .count(),
            quota: quotas.min_by(f64::total_cmp),
            ranks: processes.iter().flatten().count(),
        }
    }

    /// Lets this thread run on all of them that this process still has, or on all that it has now
    /// if it has lost them all, whatever core the thread that started it was bound to. The thread
    /// stays where it is if the kernel refuses.
    pub fn settle(&self) {
        let Some(set) = &self.set else {
            return;
        };
        // Not the mask of the first thread, which programs often bind to a core.
        let now = of_threads().unwrap_or(*set);
        let left = cpu_set(|cpu| set.is_set(cpu) && now.is_set(cpu));
        let _ = sched_setaffinity(None, if left.count() > 0 { &left } else { &now });
    }

    /// How many cores this rank could use besides the one it runs on.
    pub fn spare(&self) -> usize {
        let by_mask = self.mask / self.sharers.max(1);
        let by_quota = self
            .quota
            .map(|cores| (cores / self.ranks.max(1) as f64) as usize);
        by_quota.unwrap_or(by_mask).min(by_mask).saturating_sub(1)
    }
}

impl fmt::Display for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mask, sharers) = (self.mask, self.sharers.max(1));
        let plural = |count| if count == 1 { "" } else { "s" };
        let (cores, ranks) = (plural(mask), plural(sharers));
        write!(
            f,
            "{mask} core{cores} in the affinity mask of {sharers} rank{ranks}"
        )?;
        match self.quota {
            None => f.write_str(", no quota"),
            Some(quota) => {
                let ranks = plural(self.ranks);
                write!(
                    f,
                    ", a quota of {quota:.1} cores for {} rank{ranks}",
                    self.ranks
                )
            }
        }
    }
}

/// The cores with this property.
fn cpu_set(has: impl Fn(usize) -> bool) -> CpuSet {
    let mut set = CpuSet::new();
    for cpu in (0..CpuSet::MAX_CPU).filter(|&cpu| has(cpu)) {
        set.set(cpu);
    }
    set
}

/// The cores on which some thread of this process may run; `None` if that is not known.
fn of_threads() -> Option<CpuSet> {
    let threads = fs::read_dir("/proc/self/task").ok()?;
    let masks = threads.filter_map(|thread| {
        let id = thread.ok()?.file_name().to_str()?.parse().ok()?;
        sched_getaffinity(Pid::from_raw(id)).ok()
    });
    let masks = masks.collect::<Vec<_>>();
    (!masks.is_empty()).then(|| cpu_set(|cpu| masks.iter().any(|mask| mask.is_set(cpu))))
}

fn mask_of(process: u32) -> Option<CpuSet> {
    if process == std::process::id() {
        return sched_getaffinity(None).ok();
    }
    let process = Pid::from_raw(i32::try_from(process).ok()?)?;
    sched_getaffinity(Some(process)).ok()
}

/// Whether two masks have a core in common, as far as they are known.
fn share(own: Option<&CpuSet>, other: Option<&CpuSet>) -> bool {
    let (Some(own), Some(other)) = (own, other) else {
        return true;
    };
    (0..CpuSet::MAX_CPU).any(|cpu| own.is_set(cpu) && other.is_set(cpu))
}

/// The quota of a group, by the files of version 2, or those of version 1.
fn quota_of(folder: &Path) -> Option<f64> {
    let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let text = read("cpu.max").or_else(|| {
        let [quota, period] = ["cpu.cfs_quota_us", "cpu.cfs_period_us"].map(read);
        Some(format!("{} {}", quota?.trim(), period?.trim()))
    });
    parse(&text?)
}

/// The cores that `QUOTA PERIOD` allows, in microseconds each; `None` where nothing is limited.
fn parse(text: &str) -> Option<f64> {
    let mut fields = text.split_whitespace();
    let mut next = || fields.next()?.parse::<u64>().ok();
    let (quota, period) = (next()?, next()?);
    (period > 0).then(|| quota as f64 / period as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_of_both_versions_of_control_groups() {
        assert_eq!(parse("max 100000\n"), None);
        assert_eq!(parse("250000 100000\n"), Some(2.5));
        assert_eq!(parse("-1 100000"), None);
        assert_eq!(parse("50000 100000"), Some(0.5));
        for text in ["", "7", "7 0", "a b", "18446744073709551616 1"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn the_files_of_a_group() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        assert_eq!(quota_of(folder.path()), None);
        write("cpu.cfs_quota_us", "300000\n");
        assert_eq!(quota_of(folder.path()), None);
        write("cpu.cfs_period_us", "100000\n");
        assert_eq!(quota_of(folder.path()), Some(3.0));
        write("cpu.max", "150000 100000\n");
        assert_eq!(quota_of(folder.path()), Some(1.5));
    }

    #[test]
    fn a_core_of_its_own_is_not_spare() {
        for (mask, sharers, quota, ranks, spare) in [
            (1, 1, None, 1, 0),
            (2, 2, None, 2, 0),
            (8, 1, None, 2, 7),
            (32, 8, None, 8, 3),
            (32, 32, None, 32, 0),
            (8, 16, None, 16, 0),
            (8, 1, Some(4.0), 1, 3),
            (8, 1, Some(4.0), 2, 1),
            (8, 1, Some(0.5), 1, 0),
            (8, 1, Some(64.0), 2, 7),
        ] {
            let cores = Cores {
                set: None,
                mask,
                sharers,
                quota,
                ranks,
            };
            assert_eq!(cores.spare(), spare, "{cores:?}");
        }
    }

    #[test]
    fn the_text_says_what_bounds_them() {
        let cores = Cores {
            set: None,
            mask: 8,
            sharers: 1,
            quota: Some(4.0),
            ranks: 2,
        };
        let text = "8 cores in the affinity mask of 1 rank, a quota of 4.0 cores for 2 ranks";
        assert_eq!(cores.to_string(), text);
        let cores = Cores {
            quota: None,
            sharers: 3,
            ..cores
        };
        let text = "8 cores in the affinity mask of 3 ranks, no quota";
        assert_eq!(cores.to_string(), text);
    }

    #[test]
    fn masks_are_shared_where_they_have_a_core_in_common() {
        let mask = |cpus: &[usize]| cpu_set(|cpu| cpus.contains(&cpu));
        let (own, other) = (mask(&[0, 1]), mask(&[2, 3]));
        assert!(!share(Some(&own), Some(&other)));
        assert!(share(Some(&own), Some(&mask(&[1, 2]))));
        assert!(share(Some(&own), None) && share(None, Some(&other)));
    }

    #[test]
    fn this_process_shares_its_mask_with_itself_and_with_whom_it_does_not_know() {
        let own = std::process::id();
        assert_eq!(Cores::of(&[Some(own)]).sharers, 1);
        let ids = [Some(own), Some(own), Some(u32::MAX), Some(0), None];
        assert_eq!(Cores::of(&ids).sharers, 5);
    }

    #[test]
    fn ranks_of_other_containers_have_quotas_of_their_own() {
        let own = std::process::id();
        assert_eq!(Cores::of(&[Some(own), Some(own), None, None]).ranks, 2);
    }

    #[test]
    fn a_thread_settles_on_all_cores_though_it_was_started_on_one() {
        std::thread::spawn(|| {
            let cores = Cores::of(&[Some(std::process::id())]);
            let all = sched_getaffinity(None).unwrap();
            let first = (0..CpuSet::MAX_CPU).find(|&cpu| all.is_set(cpu)).unwrap();
            let one = cpu_set(|cpu| cpu == first);
            sched_setaffinity(None, &one).unwrap();
            let settled = std::thread::spawn(move || {
                assert_eq!(sched_getaffinity(None).unwrap(), one);
                cores.settle();
                sched_getaffinity(None).unwrap()
            });
            assert_eq!(settled.join().unwrap(), all);
        })
        .join()
        .unwrap();
    }

    /// Runs in a process of its own, whose threads all lose a core.
    #[test]
    fn a_thread_settles_on_no_core_that_its_process_has_lost() {
        const ALONE: &str = "SPARK_CCL_TEST_ALONE";
        const NAME: &str = "cores::tests::a_thread_settles_on_no_core_that_its_process_has_lost";
        if std::env::var_os(ALONE).is_none() {
            let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
            let output = alone.args(["--exact", NAME]).env(ALONE, "1").output();
            let output = output.unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            let has_passed = output.status.success() && text.contains("1 passed");
            return assert!(has_passed, "{text}");
        }
        let cores = Cores::of(&[Some(std::process::id())]);
        let all = sched_getaffinity(None).unwrap();
        let first = (0..CpuSet::MAX_CPU).find(|&cpu| all.is_set(cpu)).unwrap();
        let one = cpu_set(|cpu| cpu == first);
        for thread in fs::read_dir("/proc/self/task").unwrap() {
            let id = thread.unwrap().file_name().into_string().unwrap();
            sched_setaffinity(Pid::from_raw(id.parse().unwrap()), &one).unwrap();
        }
        cores.settle();
        assert_eq!(sched_getaffinity(None).unwrap(), one);
    }
}
