//! Gives each rank cores of its own, as MPI's launchers do. The scheduler may start two processes
//! on one core and take milliseconds to separate them; meanwhile a call of 8 bytes takes ten times
//! as long.

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Binds the process of a rank to its share of the cores that this process may use. Where ranks
/// outnumber cores, the system distributes them.
pub(super) fn bind(process: Pid, rank: usize, size: usize) {
    let Ok(allowed) = sched_getaffinity(None) else {
        return;
    };
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU)
        .filter(|&core| allowed.is_set(core))
        .collect();
    let mut share = CpuSet::new();
    for &core in share_of(&cores, rank, size) {
        share.set(core);
    }
    if share.count() > 0 {
        // Fails if the process has ended or a sandbox forbids it; an unbound rank works just as
        // well.
        let _ = sched_setaffinity(Some(process), &share);
    }
}

/// Neighbouring cores, as many for each rank; none if there are too few.
fn share_of(cores: &[usize], rank: usize, size: usize) -> &[usize] {
    let each = cores.len() / size;
    &cores[rank * each..(rank + 1) * each]
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn ranks_share_no_core() {
        let cores = [1, 2, 5, 7, 8];
        let shares = [0, 1].map(|rank| share_of(&cores, rank, 2));
        assert_eq!(shares, [&[1, 2], &[5, 7]]);
        assert!(share_of(&cores, 3, 6).is_empty());
    }

    #[test]
    fn a_process_is_bound_to_its_share() {
        let own = sched_getaffinity(None).unwrap();
        let first = (0..CpuSet::MAX_CPU).find(|&core| own.is_set(core)).unwrap();
        let ranks = usize::try_from(own.count()).unwrap();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_child(&child);
        bind(pid, 0, ranks);
        let bound = sched_getaffinity(Some(pid)).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(bound.count() == 1 && bound.is_set(first), "{bound:?}");
    }
}
