//! Observing ranks that are real processes: through NCCL's RAS protocol, and through files.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;
use spark_ccl_status::ras::{Communicator, Report};
use spark_ccl_testing::free_port;

use crate::processes::{Rank, WATCHDOG, all, assert_all_ok, assert_contains, place, world};

/// A free address of this host.
fn free_address() -> String {
    format!("127.0.0.1:{}", free_port())
}

/// Sends text to one of the processes, and reads until it hangs up. A stopped process does not
/// answer: then another one is tried, as by `ncclras`.
fn converse(address: &str, words: &str) -> String {
    let deadline = Instant::now() + WATCHDOG;
    loop {
        match try_to_converse(address, words) {
            Ok(text) => return text,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
    }
}

fn try_to_converse(address: &str, words: &str) -> io::Result<String> {
    let mut stream = BufReader::new(TcpStream::connect(address)?);
    stream
        .get_ref()
        .set_read_timeout(Some(Duration::from_secs(1)))?;
    stream.get_mut().write_all(b"CLIENT PROTOCOL 2\n")?;
    let mut greeting = String::new();
    stream.read_line(&mut greeting)?;
    assert_eq!(greeting, "SERVER PROTOCOL 2\n");
    stream.get_ref().set_read_timeout(Some(WATCHDOG))?;
    stream.get_mut().write_all(words.as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// The report on running communicators, in JSON.
fn report(address: &str) -> Report {
    let text = converse(address, "TIMEOUT 1\nSET FORMAT json\nSTATUS\n");
    Report::parse(text.strip_prefix("OK\nOK\n").expect(&text)).expect(&text)
}

/// The only communicator, once it looks as expected.
fn until(address: &str, looks_so: impl Fn(&Communicator) -> bool) -> Communicator {
    let deadline = Instant::now() + WATCHDOG;
    loop {
        let mut report = report(address);
        assert_eq!(report.communicators_count, 1, "{report:?}");
        let communicator = report.communicators.remove(0);
        if looks_so(&communicator) {
            return communicator;
        }
        assert!(Instant::now() < deadline, "{communicator:#?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Asks until the text has these parts: on a machine that has just stood still, no rank answers in
/// time.
fn until_text(address: &str, parts: &[&str]) {
    let deadline = Instant::now() + WATCHDOG;
    loop {
        let text = converse(address, "VERBOSE STATUS\n");
        if parts.iter().all(|part| text.contains(part)) {
            return;
        }
        assert!(Instant::now() < deadline, "{text}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Has all ranks make a call over and over.
fn repeat(ranks: &mut [Rank], order: &str) {
    for answer in all(ranks, order) {
        assert_eq!(answer, "running");
    }
    assert!(ranks.iter().all(|rank| rank.hear() == "ok"));
}

fn pids(ranks: &[Rank]) -> Vec<u32> {
    ranks.iter().map(Rank::pid).collect()
}

/// Checks for a barrier, three sums and a broadcast.
fn assert_has_made_five_calls(rank: &spark_ccl_status::ras::Rank) {
    let more = &rank.spark_ccl;
    assert_eq!((more.entered, more.finished), (5, 5));
    assert_eq!((more.waits.clone(), more.late_sec), (None, None));
    let counts = rank.collective_counts;
    assert_eq!(
        (counts.all_reduce, counts.broadcast, counts.all_gather),
        (3, 1, 0)
    );
    assert_eq!(more.calls["barrier"], 1);
}

#[test]
fn a_client_sees_all_ranks_and_who_is_late() {
    let _place = place();
    let address = free_address();
    let mut ranks = world(3, &[("SPARK_CCL_RAS", &address)]);
    assert_all_ok(&mut ranks, "call barrier");
    repeat(&mut ranks, "rounds 3 f32 all_reduce sum 10");
    assert_all_ok(&mut ranks, "call f32 broadcast 1 10");
    let idle = until(&address, |it| it.ranks.len() == 3);
    assert_eq!(
        idle.ranks.iter().map(|it| it.pid).collect::<Vec<_>>(),
        pids(&ranks)
    );
    for rank in &idle.ranks {
        assert_has_made_five_calls(rank);
    }

    ranks[1].order("sleep 6000");
    for rank in [0, 2] {
        ranks[rank].order("call f32 all_reduce sum 1000000");
    }
    let late = until(&address, |it| {
        let ranks = it.ranks.iter();
        ranks.filter(|rank| rank.spark_ccl.waits.is_some()).count() == 2
    });
    for rank in &late.ranks {
        let more = &rank.spark_ccl;
        let is_late = rank.rank == 1;
        assert_eq!(more.late_sec.is_some(), is_late, "{late:#?}");
        assert_eq!(more.entered, if is_late { 5 } else { 6 });
        assert_eq!(
            rank.collective_counts.all_reduce,
            if is_late { 3 } else { 4 }
        );
        if let Some(wait) = &more.waits {
            assert_eq!(wait.sequence, Some(6));
            assert_eq!(wait.call, "all_reduce(count 1000000, float, sum)");
        }
    }
    let place = format!("managed by process {} on node ", ranks[1].pid());
    let parts = [
        "Rank 1 is late by ",
        "its last call is #5 broadcast(",
        &place,
    ];
    until_text(&address, &parts);
    assert_eq!(ranks[1].hear(), "ok", "it has slept");
    assert_eq!(ranks[1].ask("call f32 all_reduce sum 1000000"), "ok");
    assert_eq!([ranks[0].hear(), ranks[2].hear()], ["ok", "ok"]);
    until(&address, |it| {
        it.ranks.iter().all(|rank| rank.spark_ccl.finished == 6)
    });
}

#[test]
fn a_client_sees_which_ranks_are_dead_stopped_or_gone() {
    let _place = place();
    let address = free_address();
    let mut ranks = world(3, &[("SPARK_CCL_RAS", &address)]);
    assert_all_ok(&mut ranks, "call barrier");
    ranks[1].stop();
    let stopped = until(&address, |it| !it.missing_ranks.is_empty());
    let missing = &stopped.missing_ranks[0];
    assert_eq!((missing.rank, missing.pid), (1, ranks[1].pid()));
    assert!(missing.status.unresponsive && !missing.status.considered_dead);
    assert_eq!(stopped.spark_ccl.fault, None);

    ranks[1].signal(rustix::process::Signal::CONT);
    until(&address, |it| it.ranks.len() == 3);
    for rank in &mut ranks[..2] {
        rank.order("call barrier");
    }
    ranks[2].kill();
    let dead = until(&address, |it| it.spark_ccl.fault.is_some());
    assert_contains(
        dead.spark_ccl.fault.as_ref().unwrap(),
        &["rank 2 (", "died"],
    );
    let missing = &dead.missing_ranks[0];
    assert_eq!((missing.rank, missing.status.considered_dead), (2, true));
    assert!(dead.ranks.iter().all(|rank| rank.status.async_error == 6));

    // The other processes still listen there.
    drop(ranks);
    let mut ranks = world(2, &[("SPARK_CCL_RAS", &address)]);
    assert_eq!(ranks[1].ask("drop"), "ok");
    let left = until(&address, |it| !it.missing_ranks.is_empty());
    let status = left.missing_ranks[0].status;
    assert!(!status.unresponsive && !status.considered_dead);
}

#[test]
fn strangers_get_no_more_than_their_share() {
    let _place = place();
    let address = free_address();
    let mut ranks = world(2, &[("SPARK_CCL_RAS", &address)]);
    assert_all_ok(&mut ranks, "call barrier");
    let unknown = converse(&address, "TIMEOUT x\nMONITOR\nSTATUS\n");
    assert_contains(
        &unknown,
        &[
            "ERROR: Invalid timeout value x\n",
            "ERROR: Unknown command MONITOR\n",
            "Job summary",
        ],
    );
    // An endless line makes the process hang up.
    let mut endless = TcpStream::connect(&address).unwrap();
    endless.set_read_timeout(Some(WATCHDOG)).unwrap();
    let _ = endless.write_all(&[b'x'; 4096]);
    assert!(matches!(endless.read(&mut [0; 1]), Ok(0) | Err(_)));
    // More silent connections than are served at once hold up nobody.
    let silent: Vec<_> = (0..64)
        .map(|_| TcpStream::connect(&address).unwrap())
        .collect();
    assert_eq!(report(&address).communicators[0].ranks_count, 2);
    drop(silent);
    assert_all_ok(&mut ranks, "call f32 all_reduce sum 10");
}

#[test]
fn forked_children_tell_nothing_and_harm_nobody() {
    let _place = place();
    let address = free_address();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let names = ["SPARK_CCL_RAS", "SPARK_CCL_RECORD", "SPARK_CCL_INSPECTOR"];
    let mut ranks = world(
        2,
        &[(names[0], &address), (names[1], path), (names[2], path)],
    );
    for what in ["drop", "return", "use", "sleep"] {
        assert_all_ok(&mut ranks, &format!("fork {what}"));
        assert_all_ok(&mut ranks, "call f32 all_reduce sum 10");
    }
    // The child that still sleeps does not have the parent's socket, where nobody would answer.
    ranks[1].kill();
    for _ in 0..20 {
        let text = try_to_converse(&address, "STATUS\n").unwrap();
        assert_contains(&text, &["Job summary"]);
    }
}

#[test]
fn there_is_a_thread_only_where_someone_wants_to_know() {
    let _place = place();
    let nobody = world(2, &[]);
    let mut someone = world(2, &[("SPARK_CCL_RECORD", "1")]);
    until_threads(&someone, true);
    // These ranks are older: by now, such threads of theirs would have their name.
    assert!(!nobody.iter().any(observes));
    assert_all_ok(&mut someone, "drop");
    until_threads(&someone, false);
}

/// A thread has its creator's name until it first runs, and a joined thread is listed for another
/// moment.
fn until_threads(ranks: &[Rank], are_there: bool) {
    let deadline = Instant::now() + WATCHDOG;
    while ranks.iter().any(|rank| observes(rank) != are_there) {
        assert!(Instant::now() < deadline, "expected threads: {are_there}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether the rank has the thread that lets others observe it.
fn observes(rank: &Rank) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{}/task", rank.pid())).unwrap();
    let names = threads
        .flatten()
        .map(|it| std::fs::read_to_string(it.path().join("comm")));
    names.flatten().any(|name| name.trim() == "spark-observe")
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn operations_are_recorded_when_calls_differ() {
    let _place = place();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let mut ranks = world(2, &[("SPARK_CCL_RECORD", path)]);
    repeat(&mut ranks, "rounds 5 f32 all_gather 10");
    let asked = folder.path().join("asked.json");
    assert_eq!(ranks[0].ask(&format!("record {}", asked.display())), "ok");
    assert_eq!(json(&asked)["entries"].as_array().unwrap().len(), 5);

    ranks[0].order("call f32 all_reduce sum 10");
    ranks[1].order("call f32 all_reduce sum 20");
    for rank in &ranks {
        assert_contains(&rank.hear(), &["operation #6 differs"]);
    }
    for (rank, count) in [(0, 10), (1, 20)] {
        // It is there before the rank learns of the fault.
        let record = json(&folder.path().join(format!("rank_{rank}.json")));
        let entries = record["entries"].as_array().unwrap();
        assert_eq!(entries.len(), 6);
        for (index, entry) in entries.iter().enumerate() {
            let is_last = index == 5;
            let state = if is_last { "started" } else { "completed" };
            assert_eq!(entry["state"], state);
            assert_eq!(entry["collective_seq_id"], index + 1);
            let name = if is_last {
                "nccl:all_reduce"
            } else {
                "nccl:all_gather"
            };
            assert_eq!(entry["profiling_name"], name);
        }
        assert_eq!(entries[5]["input_sizes"], serde_json::json!([[count]]));
        let (_, group) = record["pg_config"]
            .as_object()
            .unwrap()
            .iter()
            .next()
            .unwrap();
        assert_eq!(group["ranks"], "[0, 1]");
        let pickle = folder.path().join(format!("fr_trace/rank_{rank}"));
        assert_eq!(std::fs::read(pickle).unwrap()[..2], [0x80, 2]);
    }
}

#[test]
fn a_rank_outside_of_calls_records_as_well() {
    let _place = place();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let mut ranks = world(2, &[("SPARK_CCL_RECORD", path)]);
    assert_all_ok(&mut ranks, "call barrier");
    assert_eq!(ranks[1].ask("abort enough"), "ok");
    let file = folder.path().join("fr_trace/rank_0");
    let deadline = Instant::now() + WATCHDOG;
    while !file.exists() {
        assert!(Instant::now() < deadline, "rank 0 has recorded nothing");
        std::thread::sleep(Duration::from_millis(10));
    }
    let nothing = world(2, &[])[0].ask("record /tmp/nothing");
    assert_contains(
        &nothing,
        &["no operations are recorded; set SPARK_CCL_RECORD=1"],
    );
}

/// The texts of a folder's files with this ending.
fn texts(folder: &Path, ending: &str) -> Vec<String> {
    let files = std::fs::read_dir(folder).unwrap().flatten();
    let files = files.filter(|file| file.file_name().to_string_lossy().ends_with(ending));
    files
        .map(|file| std::fs::read_to_string(file.path()).unwrap())
        .collect()
}

#[test]
fn the_inspector_writes_what_was_done() {
    let _place = place();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let mut ranks = world(
        2,
        &[
            ("SPARK_CCL_INSPECTOR", path),
            ("SPARK_CCL_INSPECTOR_EVERY", "0.05"),
        ],
    );
    for _ in 0..3 {
        repeat(&mut ranks, "rounds 500 f32 all_reduce sum 100");
        std::thread::sleep(Duration::from_millis(300));
    }
    ranks[0].order("call f32 send 1 7");
    ranks[1].order("call f32 recv 0 7");
    assert_eq!([ranks[0].hear(), ranks[1].hear()], ["ok", "ok"]);
    assert_eq!(all(&mut ranks, "drop"), ["ok", "ok"]);
    let texts = texts(folder.path(), ".log");
    assert_eq!(texts.len(), 2);
    for text in texts {
        let lines: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let numbers: Vec<u64> = lines
            .iter()
            .filter_map(|line| line["coll_perf"]["coll_sn"].as_u64())
            .collect();
        assert_eq!(numbers, (1..=1500).collect::<Vec<_>>());
        assert!(lines.iter().all(|line| line["header"]["n_ranks"] == 2));
        let messages: Vec<&Value> = lines
            .iter()
            .filter_map(|line| line.get("p2p_perf"))
            .collect();
        assert_eq!(messages.len(), 1);
        assert_eq!(messages[0]["p2p_msg_size_bytes"], 28);
    }
}

/// As on a hanging file system.
#[test]
fn files_that_cannot_be_written_keep_nobody_waiting() {
    let _place = place();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let every = ("SPARK_CCL_INSPECTOR_EVERY", "0.05");
    let mut ranks = world(2, &[("SPARK_CCL_INSPECTOR", path), every]);
    repeat(&mut ranks, "rounds 5 f32 all_reduce sum 100");
    for file in until_files(folder.path(), ".log", 2) {
        // Its process may be about to write to it.
        let pipe = file.with_extension("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        std::fs::rename(&pipe, &file).unwrap();
    }
    repeat(&mut ranks, "rounds 5 f32 all_reduce sum 100");
    assert_all_ok(&mut ranks, "drop");
}

/// The files of a folder with this ending, once there are `count` of them.
fn until_files(folder: &Path, ending: &str, count: usize) -> Vec<PathBuf> {
    let deadline = Instant::now() + WATCHDOG;
    loop {
        let files = std::fs::read_dir(folder).unwrap().flatten();
        let files = files.map(|file| file.path());
        let files = files.filter(|path| path.to_string_lossy().ends_with(ending));
        let files: Vec<_> = files.collect();
        if files.len() == count {
            return files;
        }
        assert!(Instant::now() < deadline, "{files:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn prometheus_gets_a_file_of_each_rank_while_it_runs() {
    let _place = place();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let format = ("SPARK_CCL_INSPECTOR_FORMAT", "prometheus");
    let every = ("SPARK_CCL_INSPECTOR_EVERY", "0.05");
    let mut ranks = world(2, &[("SPARK_CCL_INSPECTOR", path), format, every]);
    repeat(&mut ranks, "rounds 20 f32 all_reduce sum 2000");
    let mut files = until_files(folder.path(), ".prom", 2);
    files.sort();
    for (rank, path) in files.iter().enumerate() {
        let name = path.to_string_lossy();
        assert!(name.ends_with(&format!("-rank{rank}.prom")), "{name}");
        let text = std::fs::read_to_string(path).unwrap();
        let labels = "n_nodes=\"1\",nranks=\"2\",collective=\"AllReduce\",message_size=\"7-8KB\"";
        assert_contains(&text, &["nccl_bus_bandwidth_gbs{", labels]);
        assert!(
            text.lines()
                .all(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap() > 0.0)
        );
    }
    assert_all_ok(&mut ranks, "drop");
    assert!(until_files(folder.path(), "", 0).is_empty());
}
