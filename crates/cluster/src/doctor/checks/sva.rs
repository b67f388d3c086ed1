//! Kernels on which CUDA cannot start, although driver and GPU are there.

use spark_ccl_topology::Host;

use super::kind::is_spark;
use crate::finding::{Fix, Problem};

const OPTION: &str = "CONFIG_ARM_SMMU_V3_SVA";

/// A Spark's GPU uses the page tables of processes. Without the kernel's part in that cuInit fails,
/// and no log says why.
pub(super) fn problem(host: &Host, seen: &str) -> Option<Problem> {
    let lacks = host.system.smmu_sva == Some(false) && is_spark(host);
    lacks.then(|| {
        Problem::new(
            format!("{seen}; Linux {} has no {OPTION}", host.system.kernel),
            format!("a kernel with {OPTION}=y, such as those that Sparks come with"),
            "the GPU shares the page tables of processes, so without it no program can use CUDA",
            Fix::look(format!(
                "grep {OPTION} /boot/config-*: which kernels here have it"
            )),
        )
    })
}
