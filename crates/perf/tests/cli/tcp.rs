//! TCP between two ranks, by pairs of interfaces.

use std::path::Path;
use std::process::Command;

use spark_ccl_testing::{Need, free_port, has};

use crate::cluster::Cluster;
use crate::fake_gpus::{build, libraries};
use crate::program::{Run, command, run};

#[test]
fn each_rail_alone_and_all_together() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    cluster.rails();
    let words = "-H node1,node2 --no-prefix";
    let measure = |args: &str| {
        let mut program = vec!["/proc/self/exe", "tcp_bw"];
        program.extend(args.split_whitespace());
        let run = cluster.launch(words, &program);
        assert_eq!(run.code, Some(0), "{args}: {}\n{}", run.stdout, run.stderr);
        run
    };
    let run = measure("--rails each -b 100 -e 40000 -f 400 -n 50 -w 5 --sockets 2 --bidirectional");
    assert!(
        run.stdout
            .contains("rail 1: rail1 (10.91.0.1) to rail1 (10.91.0.2), round trip"),
        "{}",
        run.stdout
    );
    let seen: Vec<_> = run
        .rows()
        .iter()
        .map(|row| [row[0], row[1], row[2], row[7]].join(" "))
        .collect();
    let expected = [
        "100 1 100 0",
        "40000 1 100 0",
        "100 1 100 0",
        "40000 1 100 0",
        "100 2 100 0",
        "40000 2 100 0",
    ];
    assert_eq!(seen, expected);

    let run = measure("--json -b 1M -e 1M -n 30");
    let printed: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    let row = &printed["rows"][0];
    assert_eq!(
        (&row["bytes"], &row["wrong"]),
        (&(1 << 20).into(), &0.into())
    );
    let carried = row["carried"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it.as_u64().unwrap());
    assert_eq!((carried.len(), carried.sum::<u64>()), (2, 30));
    assert_eq!(measure("--rails one -b 8 -e 8 -n 10").rows()[0][1], "1");

    // The time is over before the requests are.
    let run = measure("--rails one -b 8 -e 8 -n 1000000000 --seconds 1 -w 0");
    assert!(run.rows()[0][2].parse::<u64>().unwrap() < 1_000_000_000);
}

/// Two cables whose interfaces are all in one subnet, as NVIDIA's link-local set-up has them: the
/// n-th of the first host leads to this one of the second.
fn in_one_subnet(ends: [usize; 2]) -> Option<Cluster> {
    let cluster = Cluster::new(2)?;
    for host in 1..=2 {
        cluster.on(
            host,
            "ip link set cable down; ip link set cable name docker0; ip link set docker0 up",
        );
    }
    for (own, end) in ends.into_iter().enumerate() {
        cluster.cable([(1, &format!("rail{own}")), (2, &format!("rail{end}"))]);
    }
    for (host, rail) in [(1, 0), (1, 1), (2, 0), (2, 1)] {
        let address = format!("ip address add 169.254.{host}.{rail}/16 dev rail{rail}");
        cluster.on(host, &address);
    }
    Some(cluster)
}

#[test]
fn a_rail_is_measured_over_its_own_cable() {
    for ends in [[0, 1], [1, 0]] {
        let Some(cluster) = in_one_subnet(ends) else {
            return;
        };
        let sent = |rail: usize| -> u64 {
            let counter = format!("cat /sys/class/net/rail{rail}/statistics/tx_bytes");
            cluster.on(1, &counter).trim().parse().unwrap()
        };
        let before = [0, 1].map(sent);
        let program = "/proc/self/exe tcp_bw --rails each -b 1M -e 1M -n 20 -w 0";
        let program: Vec<_> = program.split(' ').collect();
        let run = cluster.launch("-H node1,node2 --no-prefix", &program);
        assert_eq!(run.code, Some(0), "{}\n{}", run.stdout, run.stderr);
        for (own, end) in ends.into_iter().enumerate() {
            let title =
                format!("rail {own}: rail{own} (169.254.1.{own}) to rail{end} (169.254.2.{end}), ");
            assert!(run.stdout.contains(&title), "{}", run.stdout);
            let carried = sent(own) - before[own];
            assert!(carried >= 20 << 20, "{carried} over rail{own}");
        }
        assert!(!run.stdout.contains("not bound"), "{}", run.stdout);
    }
}

/// The kernel drops packets from another interface than its own route would take.
#[test]
fn a_rail_that_cannot_be_bound_to_its_interfaces_is_told() {
    let Some(cluster) = in_one_subnet([0, 1]) else {
        return;
    };
    cluster.on(2, "echo 1 > /proc/sys/net/ipv4/conf/all/rp_filter");
    let program = "/proc/self/exe tcp_bw -b 1M -e 1M -n 20 -w 0";
    let program: Vec<_> = program.split(' ').collect();
    let run = cluster.launch("-H node1,node2 --no-prefix", &program);
    assert_eq!(run.code, Some(0), "{}\n{}", run.stdout, run.stderr);
    let told: Vec<_> = run
        .stdout
        .lines()
        .filter(|line| line.contains("not bound"))
        .collect();
    let [told] = told[..] else {
        panic!("{}", run.stdout);
    };
    assert!(
        told.starts_with("# rail 1: rail1 (169.254.1.1) to rail1"),
        "{told}"
    );
}

#[test]
fn what_makes_no_sense_is_refused() {
    for args in [
        "tcp_bw --procs 3",
        "tcp_bw -b 0",
        "tcp_bw -e 1G",
        "tcp_bw --sockets 0",
        "tcp_bw --rails two",
        "tcp_bw --memory device",
    ] {
        let run = run(args);
        assert_eq!(run.code, Some(6), "{args}: {}", run.stderr);
    }
    // Both ranks are on this host, which has no rail to itself.
    let output = command(&["tcp_bw"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("has a subnet in common"));
}

#[test]
fn memory_that_cuda_has_pinned() {
    let Some((cluster, libraries)) = Cluster::new(2).zip(libraries()) else {
        return;
    };
    cluster.rails();
    let words = format!(
        "-H node1,node2 --no-prefix -x FAKE_GPUS=1 -x LD_LIBRARY_PATH={}",
        libraries.display()
    );
    let measure = |args: &str| {
        let mut program = vec!["/proc/self/exe", "tcp_bw", "--memory", "pinned"];
        program.extend(args.split_whitespace());
        let run = cluster.launch(&words, &program);
        assert_eq!(run.code, Some(0), "{args}: {}\n{}", run.stdout, run.stderr);
        run
    };
    let run = measure("-b 1 -e 40001 -f 200 -n 20 -w 3 --sockets 2 --bidirectional");
    let header = "# TCP, both ways, 2 sockets on a rail, pinned memory\n";
    assert!(run.stdout.starts_with(header), "{}", run.stdout);
    let seen: Vec<_> = run
        .rows()
        .iter()
        .map(|row| [row[0], row[7]].join(" "))
        .collect();
    assert_eq!(seen, ["1 0", "200 0", "40000 0"]);

    let run = measure("--json -b 1M -e 1M -n 5");
    let printed: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(printed["memory"], "pinned");
    assert_eq!(printed["rows"][0]["wrong"], 0);
}

#[test]
fn a_machine_without_pinned_memory_says_so() {
    if has(Need::NoGpus) {
        let run = run("tcp_bw --memory pinned");
        assert_lacks_pinned_memory(&run, "CUDA's driver");
    }
    if has(Need::CppCompiler) {
        let old = build("global: *; local: cuMemHostAlloc;");
        let run: Run = on_fakes(
            &mut command(&["tcp_bw", "--memory", "pinned"]),
            old.path(),
            "1",
        )
        .output()
        .unwrap()
        .into();
        assert_lacks_pinned_memory(&run, "has no function cuMemHostAlloc");
    }
}

fn assert_lacks_pinned_memory(run: &Run, reason: &str) {
    assert_eq!(run.code, Some(2), "{}", run.stderr);
    for part in ["has no memory for --memory pinned: ", reason] {
        // Both ranks say so.
        assert_eq!(run.stderr.matches(part).count(), 2, "{}", run.stderr);
    }
    assert!(!run.stderr.contains("panicked"), "{}", run.stderr);
}

#[test]
fn both_ranks_hear_which_has_no_pinned_memory() {
    let Some(libraries) = libraries() else { return };
    let port = free_port();
    let ranks = [("0", "1"), ("1", "0")].map(|(rank, gpus)| {
        let mut command = command(&["tcp_bw", "--memory", "pinned"]);
        command
            .env("SPARK_CCL_RANK", rank)
            .env("SPARK_CCL_SIZE", "2")
            .env("SPARK_CCL_SECRET", "a secret of this test alone")
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", port.to_string());
        on_fakes(&mut command, libraries, gpus).spawn().unwrap()
    });
    for rank in ranks {
        let run: Run = rank.wait_with_output().unwrap().into();
        assert_eq!(run.code, Some(2), "{}", run.stderr);
        let said = "has no memory for --memory pinned: CUDA's driver finds no GPU";
        assert!(
            run.stderr.contains("rank 1, on ") && run.stderr.contains(said),
            "{}",
            run.stderr
        );
    }
}

/// Runs where the driver has this many fake GPUs.
fn on_fakes<'a>(command: &'a mut Command, libraries: &Path, gpus: &str) -> &'a mut Command {
    command
        .env("LD_LIBRARY_PATH", libraries)
        .env("FAKE_GPUS", gpus)
}
