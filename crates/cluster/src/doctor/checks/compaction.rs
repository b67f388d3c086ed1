//! Pages that the kernel moves while a GPU uses them.

use spark_ccl_topology::Host;

use super::kind::shares_memory;
use crate::finding::{Finding, Fix, Problem};

const SETTING: &str = "vm.compaction_proactiveness";

/// Only a GPU that shares the host's memory works on pages that are moved.
pub(super) fn check(host: &Host) -> Option<Finding> {
    const ID: &str = "host.compaction";
    let name = [host.name.as_str()];
    let level = host.system.compaction.filter(|_| shares_memory(host))?;
    let seen = format!("{SETTING} is {level}");
    if level == 0 {
        return Some(Finding::ok(ID, &name, seen));
    }
    let problem = Problem::new(
        seen,
        "0",
        "the kernel moves pages that the GPU works on: reports say that a rank then stalls for \
         130 ms, and all others wait for it",
        Fix::run(&host.name, format!("sudo sysctl -w {SETTING}=0")).then(format!(
            "a line {SETTING}=0 in a file of /etc/sysctl.d keeps it"
        )),
    );
    Some(Finding::warn(ID, &name, problem))
}
