//! Memory that devices cannot register, or may not.

use std::time::Duration;

use super::*;
use crate::processes::links_of;

/// Two ranks that may lock next to no memory. Each seems to be on a host of its own: hosts are
/// distinguished by the kernel's boot id.
fn limited(net: &str) -> Option<Vec<Rank>> {
    let ends = if has_two_ends()? {
        ["a", "b"]
    } else {
        ["", ""]
    };
    let ranks = ends.iter().zip(["one", "two"]).map(|(end, host)| {
        let boot = std::env::temp_dir().join(format!("boot-id-{host}"));
        std::fs::write(&boot, host).unwrap();
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c"]);
        command.arg(r#"mount -o bind "$0" /proc/sys/kernel/random/boot_id && exec "$@""#);
        command.arg(boot).arg(std::env::current_exe().unwrap());
        Rank::launch(
            command,
            &[
                ("SPARK_CCL_NET", net),
                ("SPARK_CCL_SOCKET_IFNAME", "lo"),
                ("SPARK_CCL_LOG", "warn"),
                ("SPARK_CCL_LOG_FILE", &log_of(host)),
                ("NCCL_IB_HCA", &format!("=rxe0{end}")),
            ],
        )
    });
    let mut ranks: Vec<Rank> = ranks.collect();
    assert_all_ok(&mut ranks, "lock-at-most 64");
    Some(ranks)
}

fn log_of(host: &str) -> String {
    format!("{}/log-{host}", std::env::temp_dir().display())
}

/// The warnings about the path of memory, of a rank whose log is `log_of("%p")`.
fn warnings_of(rank: &Rank) -> Vec<String> {
    // A thread of the rank writes the log a little later.
    std::thread::sleep(Duration::from_millis(200));
    let log = std::fs::read_to_string(log_of(&rank.pid().to_string())).unwrap();
    let lines = log.lines().filter(|line| line.contains("through slots"));
    lines.map(str::to_owned).collect()
}

#[test]
fn memory_that_cannot_be_registered_goes_through_slots() {
    let _place = place();
    if has_two_ends().is_none() {
        return;
    }
    let log = log_of("%p");
    let settings = [("SPARK_CCL_LOG", "warn"), ("SPARK_CCL_LOG_FILE", &log)];
    let mut ranks = started(2, 1, &settings);
    // Enough for the slots of a link, and for no more.
    assert_all_ok(&mut ranks, "lock-at-most 8192");
    join(&mut ranks);
    assert_contains(&links_of(&mut ranks, 0), &["rdma"]);
    // The model has three more elements behind each buffer.
    assert_all_ok(&mut ranks, "call registered f32 all_reduce sum 2000003");
    for rank in &ranks {
        let warnings = warnings_of(rank);
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        for warning in &warnings {
            assert_contains(
                warning,
                &["8000024 bytes", "ibv_reg_mr", "ENOMEM", "8192 KiB"],
            );
        }
    }
    assert_all_ok(&mut ranks, "finalize");
}

#[test]
fn a_dmabuf_goes_through_slots_where_the_driver_cannot_register_it() {
    let _place = place();
    if has_two_ends().is_none() {
        return;
    }
    if !has(Need::Udmabuf) {
        return;
    }
    let log = log_of("%p");
    let settings = [("SPARK_CCL_LOG", "warn"), ("SPARK_CCL_LOG_FILE", &log)];
    let mut ranks = ranks_with(2, 1, &settings);
    call_everything_on(&mut ranks, "dmabuf ", 100_003);
    for warnings in ranks.iter().map(warnings_of) {
        assert!(warnings.len() > 10, "{warnings:?}");
        for warning in warnings {
            assert_contains(&warning, &["ibv_reg_dmabuf_mr", "EOPNOTSUPP"]);
        }
    }
    assert_all_ok(&mut ranks, "finalize");
    let mut ranks = ranks_with(2, 1, &[("SPARK_CCL_PATH", "zero-copy")]);
    for answer in all(&mut ranks, "call dmabuf f32 all_reduce sum 1003") {
        assert_contains(&answer, &["not registered with this rank's RDMA devices"]);
    }
}

/// The parts of the error for a user who may not lock memory.
const MEMORY: [&str; 4] = [
    "ibv_reg_mr",
    "ENOMEM",
    "limit of locked memory, which is 64 KiB here",
    "ulimit -l unlimited",
];

#[test]
fn memory_that_may_not_be_locked_leaves_tcp() {
    let _place = place();
    let Some(mut ranks) = limited("auto") else {
        return;
    };
    join(&mut ranks);
    assert_contains(&links_of(&mut ranks, 0), &["tcp"]);
    call_everything(&mut ranks, 1003);
    assert_all_ok(&mut ranks, "finalize");
    for host in ["one", "two"] {
        let log = std::fs::read_to_string(log_of(host)).unwrap();
        let lines: Vec<&str> = log.lines().filter(|line| line.contains("TCP to")).collect();
        assert_eq!(lines.len(), 1, "{log}");
        assert_contains(lines[0], &MEMORY);
    }
}

#[test]
fn memory_that_may_not_be_locked_ends_what_demands_rdma() {
    let _place = place();
    let Some(mut ranks) = limited("rdma") else {
        return;
    };
    join(&mut ranks);
    for answer in all(&mut ranks, "call barrier") {
        assert_contains(&answer, &["error", "SPARK_CCL_NET=tcp"]);
        assert_contains(&answer, &MEMORY);
    }
}
