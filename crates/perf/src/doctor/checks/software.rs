//! Driver, NCCL, configuration files.

use spark_ccl_topology::{Host, Library};

use crate::doctor::finding::{Finding, Problem};

/// The builds of NCCL that hang on aarch64: a compare-and-exchange that may fail for no reason is not repeated, so that a
/// proxy loses an entry. The first, and the first without it.
const HANG: [(u32, u32, u32); 2] = [(2, 28, 9), (2, 29, 3)];

pub(super) fn checks(host: &Host) -> Vec<Finding> {
    let mut found = Vec::new();
    if !host.gpus.is_empty() {
        found.push(driver(host));
    }
    if !host.software.nccl.is_empty() {
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
        return Finding::fail(
            ID,
            &name,
            Problem {
                seen: format!("{} GPUs, no driver loaded", host.gpus.len()),
                wanted: "NVIDIA's driver".to_owned(),
                why: "no program can use the GPUs".to_owned(),
                fix: "sudo modprobe nvidia || { sudo ubuntu-drivers install && sudo reboot; }"
                    .to_owned(),
            },
        );
    };
    match (&software.cuda, &software.cuda_problem) {
        (_, Some(problem)) => Finding::fail(
            ID,
            &name,
            Problem {
                seen: format!("driver {driver}, but {problem}"),
                wanted: "CUDA's driver that answers".to_owned(),
                why: "collectives of device memory need it".to_owned(),
                fix: "nvidia-smi; after an upgrade of the driver: sudo reboot".to_owned(),
            },
        ),
        (cuda, None) => {
            let cuda = cuda.as_deref().unwrap_or("unknown");
            Finding::ok(ID, &name, format!("driver {driver}, for CUDA {cuda}"))
        }
    }
}

fn nccl(host: &Host) -> Finding {
    const ID: &str = "nccl.version";
    let name = [host.name.as_str()];
    let libraries = &host.software.nccl;
    let list: Vec<_> = libraries.iter().map(described).collect();
    let hangs = libraries.iter().find(|one| {
        let version = one.version.as_deref().and_then(number);
        host.system.arch == "aarch64"
            && version.is_some_and(|version| (HANG[0]..HANG[1]).contains(&version))
    });
    if let Some(library) = hangs {
        return Finding::fail(
            ID,
            &name,
            Problem {
                seen: described(library),
                wanted: "NCCL 2.29.3 or newer on aarch64".to_owned(),
                why: "from 2.28.9 to 2.29.2 it loses a proxy's entry on Arm processors, and hangs without a message"
                    .to_owned(),
                fix: "sudo apt-get update && sudo apt-get install --only-upgrade libnccl2 libnccl-dev".to_owned(),
            },
        );
    }
    let mut versions: Vec<_> = libraries.iter().map(|one| &one.version).collect();
    versions.sort();
    versions.dedup();
    if versions.len() > 1 {
        return Finding::warn(
            ID,
            &name,
            Problem {
                seen: list.join(", "),
                wanted: "one version".to_owned(),
                why: "which one a program loads depends on how it was started; ranks with different ones fail with \
                      'message truncated'"
                    .to_owned(),
                fix: format!("export SPARK_CCL_NCCL_LIBRARY={}", libraries[0].path),
            },
        );
    }
    Finding::ok(ID, &name, list.join(", "))
}

fn conf(host: &Host) -> Finding {
    const ID: &str = "nccl.conf";
    let name = [host.name.as_str()];
    let mut files = host.software.conf.iter();
    let Some(file) = files.find(|file| !file.settings.is_empty()) else {
        return Finding::ok(ID, &name, "no configuration file sets anything");
    };
    let settings = file.settings.iter();
    let settings: Vec<_> = settings
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    Finding::warn(
        ID,
        &name,
        Problem {
            seen: format!("{}: {}", file.path, settings.join(" ")),
            wanted: "settings in the environment of the job".to_owned(),
            why: "the file changes every program that uses NCCL, and nothing says so".to_owned(),
            fix: format!("sudo mv {0} {0}.off", file.path),
        },
    )
}

fn described(library: &Library) -> String {
    let version = library.version.as_deref().unwrap_or("unknown version");
    format!("{version} ({})", library.path)
}

/// `2.28.9` as numbers.
fn number(version: &str) -> Option<(u32, u32, u32)> {
    let mut parts = version.split('.').map(str::parse);
    let mut next = || parts.next()?.ok();
    Some((next()?, next()?, next()?))
}
