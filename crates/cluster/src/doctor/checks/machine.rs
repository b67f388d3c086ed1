//! Kernel, memory, processors.

use spark_ccl_console::notation::size::human;
use spark_ccl_topology::{Disk, Host};

use super::kind::shares_memory;
use crate::finding::{Finding, Fix, Problem};

/// A kernel whose settings take away the memory that network cards need for registration.
const HANDOVER: &str = "7.0.0-1019-nvidia";
/// The kernel parameter that turns this off.
const KHO: &str = "GRUB_CMDLINE_LINUX in /etc/default/grub: kho=off there helps, after sudo update-grub and the next start";
/// The memory that a GPU must leave if it shares the host's. Below the first number, the machine
/// freezes before anything is killed.
const FROZEN: u64 = 3 << 30;
const TIGHT: u64 = 5 << 30;
/// The memory that a GPU of other machines must leave.
const LITTLE: u64 = 1 << 30;
/// Drivers whose governor of this name adapts to the load.
const ADAPTIVE: [&str; 2] = ["intel_pstate", "amd-pstate-epp"];

/// The space that a file system must have left. Below the first number, small files cannot be
/// written, either.
const FULL: u64 = 16 << 20;
const NEARLY_FULL: u64 = 1 << 30;
/// The memory that NCCL's processes on a host share. A container of docker has 64 MiB of it by
/// default.
const SHARED: &str = "/dev/shm";
const LITTLE_SHARED: u64 = 128 << 20;

pub(super) fn checks(host: &Host) -> Vec<Finding> {
    let mut found = vec![kernel(host), memory(host), governor(host)];
    found.extend(host.disks.iter().map(|one| disk(host, one)));
    found.extend(compaction(host));
    found
}

fn kernel(host: &Host) -> Finding {
    const ID: &str = "host.kernel";
    let name = [host.name.as_str()];
    let system = &host.system;
    let seen = format!("Linux {}", system.kernel);
    let handed_over = system.boot.iter().any(|word| word == "kho=off");
    if system.kernel.starts_with(HANDOVER) && !handed_over {
        return Finding::fail(
            ID,
            &name,
            Problem::new(
                format!("{seen} without kho=off"),
                "another kernel, or kho=off on its command line",
                "it hands its memory area over, and ibv_reg_mr fails with ENOMEM",
                Fix::look(KHO),
            ),
        );
    }
    if let Some((total, free)) = host.memory.cma
        && free > total
    {
        return Finding::fail(
            ID,
            &name,
            Problem::new(
                format!(
                    "{seen}; CmaFree {} of CmaTotal {}",
                    human(free),
                    human(total)
                ),
                "CmaFree at most CmaTotal",
                "the kernel's count of contiguous memory is wrong, and ibv_reg_mr fails with \
                 ENOMEM",
                Fix::look(KHO),
            ),
        );
    }
    let pages = system
        .page_bytes
        .map_or_else(String::new, |bytes| format!(", pages of {}", human(bytes)));
    Finding::ok(ID, &name, format!("{seen}{pages}"))
}

fn memory(host: &Host) -> Finding {
    const ID: &str = "host.memory";
    let name = [host.name.as_str()];
    let shared = shares_memory(host);
    let free = host.memory.available;
    let seen = format!("{} of {} available", human(free), human(host.memory.total));
    let least = if shared { TIGHT } else { LITTLE };
    if free >= least {
        return Finding::ok(ID, &name, seen);
    }
    let why = if shared {
        "the GPU shares this memory, and when it runs out the machine freezes before anything is \
         killed"
    } else {
        "ranks are killed when it runs out"
    };
    let wanted = format!("at least {}", human(least));
    let look = "what takes it: ps -eo rss,pid,comm --sort=-rss | head";
    let problem = Problem::new(seen, wanted, why, Fix::look(look));
    if shared && free < FROZEN {
        Finding::fail(ID, &name, problem)
    } else {
        Finding::warn(ID, &name, problem)
    }
}

fn governor(host: &Host) -> Finding {
    const ID: &str = "host.governor";
    let name = [host.name.as_str()];
    let slow = host.cpus.iter().find(|class| {
        let adapts = class
            .scaling
            .as_deref()
            .is_some_and(|driver| ADAPTIVE.contains(&driver));
        class.governor.as_deref() == Some("powersave") && !adapts
    });
    if let Some(class) = slow {
        return Finding::warn(
            ID,
            &name,
            Problem::new(
                format!("powersave on processors {}", class.cpus),
                "performance",
                "the processors stay at their lowest frequency, and latency doubles",
                Fix::run(
                    &host.name,
                    "echo performance | sudo tee \
                     /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
                ),
            ),
        );
    }
    let mut governors: Vec<_> = host
        .cpus
        .iter()
        .filter_map(|class| class.governor.clone())
        .collect();
    governors.dedup();
    let seen = if governors.is_empty() {
        "the system does not choose frequencies".to_owned()
    } else {
        governors.join(", ")
    };
    Finding::ok(ID, &name, seen)
}

fn disk(host: &Host, disk: &Disk) -> Finding {
    const ID: &str = "host.disk";
    let name = [host.name.as_str()];
    let Disk {
        path,
        total,
        available,
    } = disk;
    let seen = format!(
        "{path}: {} of {} available",
        human(*available),
        human(*total)
    );
    let is_shared = path == SHARED;
    let least = if is_shared {
        LITTLE_SHARED
    } else {
        NEARLY_FULL
    };
    if *available >= least {
        return Finding::ok(ID, &name, seen);
    }
    let (why, look) = match (is_shared, host.system.container.is_some()) {
        (true, true) => (
            "NCCL's ranks of one host share memory there, and fail where it is full",
            "the command that started the container: --shm-size=1g or --ipc=host gives more",
        ),
        (true, false) => (
            "NCCL's ranks of one host share memory there, and fail where it is full",
            "what was left there: ls -l /dev/shm",
        ),
        (false, _) => (
            "logs, records and compiled kernels cannot be written where it is full",
            "what takes it: df -h, du -xh --max-depth=1",
        ),
    };
    let problem = Problem::new(
        seen,
        format!("at least {}", human(least)),
        why,
        Fix::look(look),
    );
    if *available < FULL {
        Finding::fail(ID, &name, problem)
    } else {
        Finding::warn(ID, &name, problem)
    }
}

/// Whether the kernel moves pages while a GPU uses them. That concerns only a GPU that shares the
/// host's memory.
fn compaction(host: &Host) -> Option<Finding> {
    const ID: &str = "host.compaction";
    const SETTING: &str = "vm.compaction_proactiveness";
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
