//! `launch`: ranks on hosts that are reached over real ssh.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command};

use rustix::process::{Pid, Signal, kill_process};
use spark_ccl_testing::{Need, has};

use crate::cluster::Cluster;
use crate::program::{Run, command};

/// The lines of a rank, without the rank.
fn of(run: &Run, rank: usize) -> Vec<&str> {
    let prefix = format!("[{rank}] ");
    run.stdout
        .lines()
        .filter_map(|line| line.strip_prefix(&prefix))
        .collect()
}

fn ok(run: &Run) {
    assert_eq!(run.code, Some(0), "{}\n{}", run.stdout, run.stderr);
}

/// Prints what a rank knows of its place, and on how many command lines the secret is.
const TELL_PLACE: &str = "\
    echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $NODE_RANK/$GROUP_WORLD_SIZE; \
    echo $MASTER_ADDR $MASTER_PORT $SPARK_CCL_COMM_ID $(echo $SPARK_CCL_SECRET | cksum) ${#SPARK_CCL_SECRET}; \
    echo $GLOO_SOCKET_IFNAME $ASKED $NCCL_DEBUG $SPARK_CCL_UNIQUE_ID $PWD; \
    ip -br address show cable | awk '{ print $3 }'; \
    cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | \
        awk 'index($0, ENVIRON[\"SPARK_CCL_SECRET\"]) { n++ } END { print n + 0 }'";

#[test]
fn each_rank_of_four_hosts_knows_its_place() {
    let Some(cluster) = Cluster::new(4) else {
        return;
    };
    let ssh = cluster.ssh();
    let args = [
        "launch",
        "--ssh",
        &ssh,
        "-H",
        "node1:2,node2",
        "-H",
        "node3:2,node4",
        "-x",
        "ASKED=yes it is",
        "--chdir",
        "/tmp",
        "sh",
        "-c",
        TELL_PLACE,
    ];
    let mut launch = cluster.command(&args);
    launch
        .env("NCCL_DEBUG", "WARN")
        .env("SPARK_CCL_UNIQUE_ID", "of another job");
    let run = Run::from(launch.output().unwrap());
    ok(&run);
    let meeting = of(&run, 0)[1];
    let words: Vec<_> = meeting.split_whitespace().collect();
    assert_eq!((words[0], words[5]), ("10.88.0.1", "64"), "{meeting}");
    assert!(
        words[2].starts_with("10.88.0.1:") && !words[2].ends_with(words[1]),
        "{meeting}"
    );
    for (rank, (local, node)) in [
        ("0/2", 1),
        ("1/2", 1),
        ("0/1", 2),
        ("0/2", 3),
        ("1/2", 3),
        ("0/1", 4),
    ]
    .iter()
    .enumerate()
    {
        let lines = of(&run, rank);
        assert_eq!(lines[0], format!("{rank}/6 {local} {}/4", node - 1));
        assert_eq!(lines[1], meeting);
        assert_eq!(lines[2], "cable yes it is WARN /tmp");
        assert_eq!(lines[3], format!("10.88.0.{node}/24"));
        assert_eq!(lines[4], "0", "the secret is on a command line");
    }
    cluster.until_clean();
}

#[test]
fn hosts_reduce_with_no_setting() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let perf = env!("CARGO_BIN_EXE_spark-perf");
    let measure = [
        perf,
        "all_reduce",
        "-b",
        "8",
        "-e",
        "64K",
        "-f",
        "16",
        "-n",
        "2",
        "--backend",
        "host",
    ];
    let run = cluster.launch("-H node1,node2:2", &measure);
    ok(&run);
    let lines = of(&run, 0);
    assert!(
        lines
            .iter()
            .any(|line| line.starts_with("# Out of bounds values : 0 OK")),
        "{lines:?}"
    );
    assert_eq!(
        lines
            .iter()
            .filter(|line| line.starts_with("#  Rank "))
            .count(),
        3
    );
    cluster.until_clean();
}

/// The ranks' tensors have values of their own, and each looks at every value of its result.
const PROGRAM: &str = "
import torch, torch.distributed as dist
dist.init_process_group('gloo')
rank, size = dist.get_rank(), dist.get_world_size()
mine = torch.arange(1000) * (rank + 1) + rank
dist.all_reduce(mine)
assert mine.equal(torch.arange(1000) * (size * (size + 1) // 2) + size * (size - 1) // 2), mine
print('reduced', rank, size, flush=True)
dist.destroy_process_group()
";

#[test]
fn pytorch_runs_unchanged() {
    if !has(Need::Torch) {
        return;
    }
    let Some(cluster) = Cluster::new(4) else {
        return;
    };
    let python = std::env::var("SPARK_CCL_TEST_TORCH").unwrap();
    let run = cluster.launch("-H node1,node2:2,node3,node4", &[&python, "-c", PROGRAM]);
    ok(&run);
    for rank in 0..5 {
        assert!(
            of(&run, rank).contains(&&*format!("reduced {rank} 5")),
            "{}",
            run.stdout
        );
    }
    cluster.until_clean();
}

#[test]
fn lines_are_whole_and_named() {
    let script = "for i in 1 2 3; do printf begin$i; sleep 0.02; echo end$i; done; printf err >&2; printf last";
    let run = Run::from(command_of(&["--local", "3"], script).output().unwrap());
    ok(&run);
    for rank in 0..3 {
        assert_eq!(
            of(&run, rank),
            ["begin1end1", "begin2end2", "begin3end3", "last"]
        );
        assert!(
            run.stderr.contains(&format!("[{rank}] err\n")),
            "{}",
            run.stderr
        );
    }
    assert_eq!(run.stdout.lines().count(), 12, "{}", run.stdout);
    let output = command_of(&["--local", "1", "--no-prefix"], "echo; printf '\\377'").output();
    assert_eq!(output.unwrap().stdout, b"\n\xff\n");
}

/// `launch` on this host, of a script.
pub(crate) fn command_of(words: &[&str], script: &str) -> Command {
    let mut launch = command(&[&["launch"], words, &["--", "sh", "-c", script]].concat());
    launch.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    launch
}

#[test]
fn the_first_failure_is_the_outcome_and_ends_all() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    for (failure, code, words) in [
        ("exit 7", 7, "rank 2 on node2 ended with exit code 7"),
        ("kill -9 $$", 137, "rank 2 on node2 was killed by signal 9"),
    ] {
        // The others would sleep on, and one does not listen.
        let script = format!(
            "[ $RANK = 2 ] && {failure}; [ $RANK = 1 ] && trap '' TERM; sleep 1000 & sleep 1000"
        );
        let run = cluster.launch("-H node1:2,node2:2 --grace 0.2", &["sh", "-c", &script]);
        assert_eq!(run.code, Some(code), "{}", run.stderr);
        assert!(run.stderr.contains(words), "{}", run.stderr);
        // Besides, it may say that a busy machine takes its time to start agents.
        let waits = "spark-perf: waiting for ";
        let rest = run.stderr.lines().filter(|line| !line.starts_with(waits));
        assert_eq!(rest.count(), 1, "{}", run.stderr);
        cluster.until_clean();
    }
    // Only a name is looked for on the PATH.
    for (program, on_path) in [
        ("/nonexistent/program", false),
        ("nonexistent-program", true),
    ] {
        let run = cluster.launch("-H node1,node2", &[program]);
        assert_eq!(run.code, Some(127), "{}", run.stderr);
        let words = format!("{program}: No such file");
        assert!(run.stderr.contains(&words), "{}", run.stderr);
        assert_eq!(run.stderr.contains("-x PATH"), on_path, "{}", run.stderr);
    }
    let run = cluster.launch("-H node1 --chdir /nonexistent", &["true"]);
    assert!(
        run.code == Some(127) && run.stderr.contains("--chdir"),
        "{}",
        run.stderr
    );
}

#[test]
fn what_a_rank_leaves_in_the_background_ends_with_the_job() {
    let Some(cluster) = Cluster::new(1) else {
        return;
    };
    let run = cluster.launch(
        "-H node1",
        &["sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & echo done"],
    );
    ok(&run);
    assert_eq!(of(&run, 0), ["done"]);
    // A session of ssh may be ending.
    let left = cluster.left();
    assert!(left.iter().all(|line| line.contains("sshd: ")), "{left:?}");
    cluster.until_clean();
}

/// A job of four ranks on two hosts, with processes in groups of their own, all of which have
/// started.
struct Endless {
    launcher: Child,
    ranks: Vec<Pid>,
}

impl Endless {
    fn start(cluster: &Cluster, ssh: &str, words: &str) -> Self {
        let script = "setsid sleep 1000 & sleep 1000 & echo up $$; wait";
        let mut args = vec![
            "launch",
            "--ssh",
            ssh,
            "-H",
            "node1:2,node2:2",
            "--grace",
            "1",
        ];
        args.extend(words.split_whitespace());
        args.extend(["/bin/sh", "-c", script]);
        let mut launcher = cluster.command(&args).spawn().unwrap();
        let lines = BufReader::new(launcher.stdout.as_mut().unwrap()).lines();
        let up = lines.filter_map(|line| {
            let (_, pid) = line.as_ref().unwrap().split_once("] up ")?;
            Pid::from_raw(pid.parse().unwrap())
        });
        let ranks: Vec<Pid> = up.take(4).collect();
        if ranks.len() < 4 {
            let run = Run::from(launcher.wait_with_output().unwrap());
            panic!("{} ranks: {:?}, {}", ranks.len(), run.code, run.stderr);
        }
        Self { launcher, ranks }
    }

    fn launcher(&self) -> Pid {
        Pid::from_raw(self.launcher.id().cast_signed()).unwrap()
    }

    fn end(self) -> Run {
        self.launcher.wait_with_output().unwrap().into()
    }
}

#[test]
fn nothing_outlives_the_job_however_it_ends() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    for round in 0..20 {
        let job = Endless::start(&cluster, &cluster.ssh(), "");
        let way = round % 6;
        let asked = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT][round / 6];
        let (victim, signal, code) = match way {
            0 => (job.launcher(), asked, Some(128 + asked.as_raw())),
            1 => (job.launcher(), Signal::KILL, None),
            2 => (job.ranks[round % 4], Signal::KILL, Some(137)),
            3 => (process(&cluster, "ssh -F"), Signal::KILL, Some(2)),
            4 => (
                process(&cluster, "launch-agent --inner"),
                Signal::KILL,
                Some(2),
            ),
            _ => (
                process(&cluster, "spark-perf launch-agent"),
                Signal::KILL,
                Some(143),
            ),
        };
        kill_process(victim, signal).unwrap();
        let run = job.end();
        assert_eq!(run.code, code, "{}", run.stderr);
        if matches!(way, 0 | 2) {
            // The launcher has waited for the end of everything; a session of ssh may be ending.
            let left = cluster.left();
            assert!(left.iter().all(|line| line.contains("sshd: ")), "{left:?}");
        }
        cluster.until_clean();
    }
}

#[test]
fn a_launcher_that_is_stopped_is_missed() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let mut job = Endless::start(&cluster, &cluster.ssh(), "--lost-after 4");
    kill_process(job.launcher(), Signal::STOP).unwrap();
    // The launcher's own processes are all that is left.
    let is_ranks = |line: &String| line.contains("sleep 1000") && !line.contains("launch");
    cluster.until(|left| !left.iter().any(is_ranks));
    job.launcher.kill().unwrap();
    job.launcher.wait().unwrap();
    cluster.until_clean();
}

/// A process whose command line begins, or ends, with this.
fn process(cluster: &Cluster, words: &str) -> Pid {
    let all = cluster.left();
    let mut lines = all
        .iter()
        .filter_map(|line| line.trim_end().split_once(' '));
    let found = lines.find(|(_, line)| line.starts_with(words) || line.ends_with(words));
    let (pid, _) = found.unwrap_or_else(|| panic!("{words}: {all:?}"));
    Pid::from_raw(pid.parse().unwrap()).unwrap()
}

#[test]
fn a_host_that_vanishes_is_named_and_ends_its_ranks() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let ssh = format!("{} -o ServerAliveInterval=1", cluster.ssh());
    let job = Endless::start(&cluster, &ssh, "--lost-after 4");
    cluster.cut(2);
    let run = job.end();
    assert_eq!(run.code, Some(2), "{}", run.stderr);
    assert!(
        run.stderr.contains("node2: ssh: ") && run.stderr.contains("has vanished"),
        "{}",
        run.stderr
    );
    // The ssh server itself keeps the session of a client that may come back.
    cluster.until(|left| left.iter().all(|line| line.contains(" sshd: ")));
}

#[test]
fn hosts_that_cannot_be_reached_are_named_with_what_to_do() {
    let Some(cluster) = Cluster::new(1) else {
        return;
    };
    let run = cluster.launch(
        "-H node1,refusing,nowhere.invalid,absent,stranger,unknown",
        &["echo", "started"],
    );
    assert_eq!(run.code, Some(2), "{}", run.stderr);
    assert_eq!(run.stdout, "");
    for (host, words) in [
        ("refusing", "sudo systemctl enable --now ssh"),
        ("nowhere.invalid", "try nowhere.invalid.local"),
        ("absent", "is the host on"),
        ("stranger", "ssh-copy-id stranger"),
        ("unknown", "ssh unknown true"),
    ] {
        let start = format!("spark-perf: {host}: ssh: ");
        let line = run.stderr.lines().find(|line| line.starts_with(&start));
        assert!(
            line.is_some_and(|line| line.contains(words)),
            "{host}\n{}",
            run.stderr
        );
    }
    let run = cluster.launch("-H node1 --remote-program /nonexistent/perf", &["true"]);
    assert!(
        run.code == Some(2) && run.stderr.contains("scp "),
        "{}",
        run.stderr
    );
    cluster.until_clean();
}

#[test]
fn each_node_starts_its_own_ranks() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let args = [
        "launch",
        "--node-of",
        "10.88.0.1:2,10.88.0.2",
        "sh",
        "-c",
        "echo $RANK/$WORLD_SIZE $LOCAL_RANK $MASTER_ADDR:$MASTER_PORT",
    ];
    for (number, expected) in [(1, &["0/3 0", "1/3 1"][..]), (2, &["2/3 0"])] {
        let run = Run::from(cluster.command_on(number, &args).output().unwrap());
        ok(&run);
        let mut lines: Vec<_> = run.stdout.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines.len(), expected.len());
        for (line, expected) in lines.iter().zip(expected) {
            let rank = &expected[..1];
            assert_eq!(*line, format!("[{rank}] {expected} 10.88.0.1:29500"));
        }
    }
    let run = Run::from(cluster.command(&args).output().unwrap());
    assert!(
        run.code == Some(6) && run.stderr.contains("none of these"),
        "{}",
        run.stderr
    );
}

#[test]
fn mistakes_are_refused() {
    for (args, word) in [
        ("launch true", "no hosts"),
        ("launch --local 0 true", "slots"),
        ("launch --local 2", "COMMAND"),
        ("launch -H a,,b true", "no host"),
        ("launch -H=-a true", "no host"),
        ("launch --hostfile /nonexistent true", "nonexistent"),
        ("launch --local 1 -x RANK=1 true", "RANK"),
        ("launch --local 1 -H a true", "--local"),
        ("launch --local 1 --grace -1 true", "-1"),
        ("launch -H localhost,127.0.0.1 true", "are both this host"),
        (
            "launch -H me@localhost,localhost:2 true",
            "are both this host",
        ),
        ("launch --kubernetes true", "--image"),
        ("launch --kubernetes --image a --nodes 0 true", "--nodes 0"),
        (
            "launch --kubernetes --image a --nodes 2 --ssh x true",
            "--ssh",
        ),
        (
            "launch --kubernetes --image a --nodes 2 --remote-program x true",
            "--remote-program",
        ),
    ] {
        let args: Vec<_> = args.split_whitespace().collect();
        let run = Run::from(command(&args).output().unwrap());
        assert_eq!(run.code, Some(6), "{args:?}: {}", run.stderr);
        assert!(run.stderr.contains(word), "{args:?}: {}", run.stderr);
    }
}
