//! Driver, NCCL, configuration files.

use spark_ccl_topology::{BUILT_WITHOUT_CUDA, Host, Library};

use super::kind::is_spark;
use crate::finding::{Finding, Fix, Problem};

/// The first version of NCCL that is not reported to hang on aarch64. Earlier ones do not repeat a
/// compare-and-exchange that may fail for no reason, so that a proxy loses an entry.
const MENDED: (u32, u32, u32) = (2, 29, 3);

pub(super) fn checks(host: &Host) -> Vec<Finding> {
    let mut found = Vec::new();
    if !host.gpus.is_empty() {
        found.push(driver(host));
    }
    if !host.gpus.is_empty() || !host.software.nccl.is_empty() {
        found.push(nccl(host));
    }
    found.push(conf(host));
    found
}

fn driver(host: &Host) -> Finding {
    const ID: &str = "gpu.driver";
    let name = [host.name.as_str()];
    let software = &host.software;
    let Some(driver) = &software.driver else {
        let problem = Problem::new(
            format!("{} GPUs, no driver loaded", host.gpus.len()),
            "NVIDIA's driver",
            "no program can use the GPUs",
            Fix::look(
                "whether it is installed: modinfo nvidia; sudo modprobe nvidia then loads it",
            ),
        );
        return Finding::fail(ID, &name, problem);
    };
    let cuda = software.cuda.as_deref().unwrap_or("unknown");
    match software.cuda_problem.as_deref() {
        None => Finding::ok(ID, &name, format!("driver {driver}, for CUDA {cuda}")),
        Some(problem) if problem == BUILT_WITHOUT_CUDA => {
            let seen = format!("driver {driver}; CUDA was not asked: {problem}");
            Finding::unknown(ID, &name, seen, "nvidia-smi")
        }
        Some(problem) => {
            let seen = format!("driver {driver}, but {problem}");
            if let Some(problem) = without_sva(host, &seen) {
                return Finding::fail(ID, &name, problem);
            }
            let look = if host.system.container.is_some() {
                "whether the container was started with --gpus=all"
            } else {
                "nvidia-smi; after an upgrade of the driver it asks for a restart of the machine"
            };
            let problem = Problem::new(
                seen,
                "CUDA's driver that answers",
                "collectives of device memory need it",
                Fix::look(look),
            );
            Finding::fail(ID, &name, problem)
        }
    }
}

/// A Spark's GPU uses the page tables of processes. On a kernel without support for that, cuInit
/// fails, and no log says why.
fn without_sva(host: &Host, seen: &str) -> Option<Problem> {
    const OPTION: &str = "CONFIG_ARM_SMMU_V3_SVA";
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

fn nccl(host: &Host) -> Finding {
    const ID: &str = "nccl.version";
    let name = [host.name.as_str()];
    let libraries = &host.software.nccl;
    if libraries.is_empty() {
        // PyTorch's packages have one of their own, in an environment of Python.
        return Finding::unknown(
            ID,
            &name,
            "no library where the system has its own",
            "python3 -c 'import torch; print(torch.cuda.nccl.version())', as the jobs run it",
        );
    }
    let may_hang = libraries.iter().find(|one| {
        let version = one.version.as_deref().and_then(number);
        host.system.arch == "aarch64" && version.is_some_and(|version| version < MENDED)
    });
    if let Some(library) = may_hang {
        let look = format!(
            "what brought {}, a package (dpkg -S) or one of Python (nvidia-nccl), and whether it \
             has a newer version",
            library.path
        );
        let problem = Problem::new(
            described(library),
            "NCCL 2.29.3 or newer on aarch64",
            "reports say that older ones may lose a proxy's entry on Arm processors, and hang \
             without a message",
            Fix::look(look),
        );
        return Finding::warn(ID, &name, problem);
    }
    let list: Vec<_> = libraries.iter().map(described).collect();
    if libraries
        .iter()
        .any(|one| one.version != libraries[0].version)
    {
        let problem = Problem::new(
            list.join(", "),
            "one version",
            "which one a program loads depends on how it was started; ranks with different ones \
             may fail with 'message truncated'",
            Fix::look(
                "which one the jobs are meant to use: SPARK_CCL_NCCL_LIBRARY names it to this \
                 library",
            ),
        );
        return Finding::warn(ID, &name, problem);
    }
    if libraries.iter().all(|one| one.version.is_none()) {
        return Finding::unknown(
            ID,
            &name,
            list.join(", "),
            "the line that NCCL_DEBUG=VERSION prints",
        );
    }
    Finding::ok(ID, &name, list.join(", "))
}

fn conf(host: &Host) -> Finding {
    const ID: &str = "nccl.conf";
    let name = [host.name.as_str()];
    let files = host
        .software
        .conf
        .iter()
        .filter(|file| !file.settings.is_empty());
    let files: Vec<_> = files
        .map(|file| {
            let settings = file.settings.iter();
            let settings: Vec<_> = settings
                .map(|(name, value)| format!("{name}={value}"))
                .collect();
            format!("{}: {}", file.path, settings.join(" "))
        })
        .collect();
    if files.is_empty() {
        return Finding::ok(ID, &name, "no configuration file sets anything");
    }
    let problem = Problem::new(
        files.join("; "),
        "settings in the environment of the job",
        "a file changes every program that uses NCCL, and nothing says so",
        Fix::look("whether these settings are meant for all programs"),
    );
    Finding::warn(ID, &name, problem)
}

fn described(library: &Library) -> String {
    let version = library.version.as_deref().unwrap_or("unknown version");
    format!("{version} ({})", library.path)
}

/// `2.28.9` as numbers.
pub(super) fn number(version: &str) -> Option<(u32, u32, u32)> {
    let mut parts = version.split('.').map(str::parse);
    let mut next = || parts.next()?.ok();
    Some((next()?, next()?, next()?))
}
