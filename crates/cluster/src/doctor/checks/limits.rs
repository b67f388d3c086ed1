//! Limits of processes and sockets.

use spark_ccl_console::notation::size::human;
use spark_ccl_topology::{Host, Limit};

use crate::finding::{Finding, Fix, Problem};

/// The registered memory of a few links. With less, not even small operations get their slots.
const LEAST_LOCKED: u64 = 64 << 20;
/// Sockets between the ranks of a few hosts, libraries, and files.
const LEAST_FILES: u64 = 1024;
/// The kernel's own default for sockets' buffers.
const LEAST_BUFFER: u64 = 212_992;

pub(super) fn checks(host: &Host) -> Vec<Finding> {
    let mut found = vec![files(host), buffers(host)];
    if !host.rdma.is_empty() {
        found.insert(0, memlock(host));
    }
    found
}

fn memlock(host: &Host) -> Finding {
    const ID: &str = "limits.memlock";
    let name = [host.name.as_str()];
    let limits = &host.limits;
    let most = match limits.memlock {
        Limit::Most(most) if !limits.ipc_lock => most,
        Limit::Most(_) => return Finding::ok(ID, &name, "unlimited, by CAP_IPC_LOCK"),
        Limit::Unlimited => return Finding::ok(ID, &name, "unlimited"),
        Limit::Unknown => return Finding::unknown(ID, &name, "not told", "ulimit -l"),
    };
    let fix = if host.system.container.is_some() {
        Fix::look("the command that started the container: it needs --ulimit memlock=-1")
    } else {
        // A name that no package has: tee writes over what is there.
        let file = "/etc/security/limits.d/95-spark-ccl-memlock.conf";
        let command = format!("printf '* - memlock unlimited\\n' | sudo tee {file}");
        Fix::run(&host.name, command).then("log in anew; services have LimitMEMLOCK instead")
    };
    let why =
        "memory that RDMA devices reach is locked: registering more than this fails with ENOMEM";
    let problem = Problem::new(human(most), "unlimited", why, fix);
    if most < LEAST_LOCKED {
        Finding::fail(ID, &name, problem)
    } else {
        Finding::warn(ID, &name, problem)
    }
}

fn files(host: &Host) -> Finding {
    const ID: &str = "limits.files";
    let name = [host.name.as_str()];
    match host.limits.files {
        Limit::Most(most) if most < LEAST_FILES => Finding::warn(
            ID,
            &name,
            Problem::new(
                most.to_string(),
                format!("at least {LEAST_FILES}"),
                "ranks run out of sockets",
                Fix::look("ulimit -Hn: up to that, ulimit -n allows more in the shell of the job"),
            ),
        ),
        Limit::Most(most) => Finding::ok(ID, &name, most.to_string()),
        Limit::Unlimited => Finding::ok(ID, &name, "unlimited"),
        Limit::Unknown => Finding::unknown(ID, &name, "not told", "ulimit -n"),
    }
}

fn buffers(host: &Host) -> Finding {
    const ID: &str = "limits.buffers";
    let name = [host.name.as_str()];
    let sides = [host.limits.receive_buffer, host.limits.send_buffer];
    if sides.iter().all(Option::is_none) {
        return Finding::unknown(ID, &name, "not told", "sysctl net.core.rmem_max");
    }
    let seen = sides.map(|side| side.map_or_else(|| "unknown".to_owned(), human));
    let seen = format!("sockets receive {}, send {}", seen[0], seen[1]);
    if sides.into_iter().flatten().all(|most| most >= LEAST_BUFFER) {
        return Finding::ok(ID, &name, seen);
    }
    Finding::warn(
        ID,
        &name,
        Problem::new(
            seen,
            format!("at least {}", human(LEAST_BUFFER)),
            "TCP between hosts waits for acknowledgements instead of filling the cable",
            Fix::run(
                &host.name,
                "sudo sysctl -w net/core/rmem_max=16777216 net/core/wmem_max=16777216",
            ),
        ),
    )
}
