//! Device memory by way of the host, over RDMA. The GPUs are fakes: threads in each rank's process
//! play their kernels. The code that passes pieces between slots and links is the same as with
//! GPUs.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command};

use super::{ends, fake_gpus, finish, right, start_both};

const SETTINGS: [(&str, &str); 3] = [
    ("SPARK_CCL_SHARE_GPU", "1"),
    ("SPARK_CCL_GPU_PROTOCOL", "proxy"),
    // As in the suite's tests of RDMA: a rail is dropped after 4 s without progress.
    ("NCCL_IB_TIMEOUT", "16"),
];

/// Starts both ranks on device memory; `None` where there are no cables.
fn start(args: &str, more: &[(&'static str, &str)]) -> Option<[Child; 2]> {
    let ends = ends()?;
    let mut settings = fake_gpus()?;
    let more = SETTINGS.iter().chain(more);
    settings.extend(more.map(|&(name, value)| (name, value.to_owned())));
    let args = format!("{args} --backend engine -w 0");
    Some(start_both(ends, &args, &settings))
}

fn rails(arguments: &[&str]) -> String {
    let ended = Command::new("rails").args(arguments).output().unwrap();
    assert!(ended.status.success(), "rails {arguments:?}: {ended:?}");
    String::from_utf8(ended.stdout).unwrap()
}

/// Impairs the sending of these ports until it is dropped.
struct Impaired(&'static [&'static str]);

impl Impaired {
    fn new(ports: &'static [&'static str], how: &str) -> Self {
        for port in ports {
            rails(&["impair", port, "loss", how]);
        }
        Self(ports)
    }

    /// How many packets they have lost so far.
    fn lost(&self) -> u64 {
        let lost = |port| rails(&["lost", port]).trim().parse::<u64>().unwrap();
        self.0.iter().map(|port| lost(port)).sum()
    }
}

impl Drop for Impaired {
    fn drop(&mut self) {
        for port in self.0 {
            rails(&["impair", port]);
        }
    }
}

#[test]
fn collectives_of_device_memory() {
    const ALL: [&str; 7] = [
        "all_gather",
        "all_reduce",
        "sendrecv",
        "reduce_scatter",
        "broadcast",
        "alltoall",
        "alltoallv",
    ];
    const BY_DEVICES: [&str; 2] = ["RDMA devices write slots", "zero-copy between devices"];
    // The last ones have memory that is the host's: collectives are not staged, but would be on
    // other memory.
    for (path, pinned, collectives, by_devices) in [
        ("auto", "0", &ALL[..], [true, false]),
        ("safe", "1", &ALL[..2], [false, false]),
        ("zero-copy", "1", &ALL[..2], [true, true]),
    ] {
        for collective in collectives {
            let args = format!("{collective} -b 4 -e 600004 -f 150001 -n 2");
            let settings = [("SPARK_CCL_PATH", path), ("SPARK_CCL_GPU_PINNED", pinned)];
            let Some(ranks) = start(&args, &settings) else {
                return;
            };
            let run = right(finish(ranks), &args);
            let way = match path {
                "zero-copy" => {
                    "memory from alloc_device is the host's, and collectives on it are not staged"
                }
                _ => "staged through the host",
            };
            assert!(run.stdout.contains(way), "{}", run.stdout);
            if *collective == "all_gather" {
                let are_said = BY_DEVICES.map(|text| run.stdout.contains(text));
                assert_eq!(are_said, by_devices, "{}", run.stdout);
            }
            for row in run.rows() {
                let wrong = [row[row.len() - 5], row[row.len() - 1]];
                assert_eq!(wrong, ["0", "0"], "{args}: {row:?}");
            }
        }
    }
}

#[test]
fn lost_packets_change_no_result_of_device_memory() {
    let args = "all_reduce -b 100003 -e 100003 -n 4 -N 5";
    // The slots are as small as in the suite's test of this, which has the reasons.
    let Some(ranks) = start(
        args,
        &[("SPARK_CCL_SLOT_BYTES", "32768"), ("NCCL_IB_TIMEOUT", "17")],
    ) else {
        return;
    };
    let impaired = Impaired::new(&["r0a", "r0b", "r1a", "r1b"], "1%");
    let run = right(finish(ranks), args);
    assert!(impaired.lost() > 0, "nothing was lost");
    assert!(!run.stderr.contains("is dropped"), "{}", run.stderr);
}

#[test]
fn a_cable_that_is_cut_changes_no_result_of_device_memory() {
    assert_a_cut_cable_changes_nothing("0");
}

#[test]
fn a_cable_that_is_cut_changes_no_result_of_memory_that_is_the_hosts() {
    assert_a_cut_cable_changes_nothing("1");
}

fn assert_a_cut_cable_changes_nothing(pinned: &str) {
    // All processes share a processor: it takes until some rows are there.
    let args = "all_gather -b 1M -e 1M -n 4 -N 12";
    let settings = [("SPARK_CCL_LOG", "info"), ("SPARK_CCL_GPU_PINNED", pinned)];
    let Some(mut ranks) = start(args, &settings) else {
        return;
    };
    let first = read_rows(&mut ranks[0], 1);
    let cut = Impaired::new(&["r0a", "r0b"], "100%");
    let runs = finish(ranks);
    drop(cut);
    for run in &runs {
        let (stdout, stderr) = (&run.stdout, &run.stderr);
        assert!(stderr.contains("is dropped, "), "{first}{stdout}\n{stderr}");
    }
    right(runs, args);
}

#[test]
fn a_rank_that_is_killed_is_named_to_those_of_device_memory() {
    for pinned in ["0", "1"] {
        let args = "all_reduce -b 64K -e 64K -n 4 -N 0";
        let Some(mut ranks) = start(args, &[("SPARK_CCL_GPU_PINNED", pinned)]) else {
            return;
        };
        read_rows(&mut ranks[0], 2);
        ranks[1].kill().unwrap();
        let [first, _] = finish(ranks);
        assert_eq!(first.code, Some(3), "{}", first.stderr);
        assert!(first.stderr.contains("rank 1 ("), "{}", first.stderr);
    }
}

/// Waits until a rank has printed this number of rows of its table. Returns what it has printed
/// until then, and drops the rest.
fn read_rows(rank: &mut Child, rows: usize) -> String {
    let mut lines = BufReader::new(rank.stdout.take().unwrap()).lines();
    let mut text = String::new();
    let mut seen = 0;
    while seen < rows {
        let line = lines.next().expect("it has ended").unwrap();
        seen += usize::from(!line.starts_with('#'));
        text += &line;
        text.push('\n');
    }
    std::thread::spawn(move || lines.for_each(drop));
    text
}
