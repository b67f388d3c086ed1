//! `spark-perf top` on a running job.

use std::process::Child;
use std::time::{Duration, Instant};

use serde_json::Value;
use spark_ccl_testing::free_port;

use crate::program::{Run, command, run};

/// A job that would run for long. It ends with its value.
struct Job(Child);

impl Drop for Job {
    fn drop(&mut self) {
        // Fails if it has ended already. Its ranks end with it.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn top(args: &[&str], port: u16) -> Run {
    let port = port.to_string();
    let args = [&["top", "--host", "127.0.0.1", "--port", &port], args].concat();
    command(&args).output().unwrap().into()
}

#[test]
fn the_ranks_of_a_running_job_are_shown() {
    let port = free_port();
    let args = "all_reduce -b 4 -e 4 --procs 3 -n 1000000000 -w 0 -c 0";
    let args: Vec<&str> = args.split(' ').collect();
    let job = command(&args)
        .env("SPARK_CCL_RAS", format!("127.0.0.1:{port}"))
        .spawn()
        .unwrap();
    let _job = Job(job);
    let deadline = Instant::now() + Duration::from_secs(60);
    let busy = loop {
        let run = top(&["--once", "--json"], port);
        if run.code == Some(0) {
            let json: Value = serde_json::from_str(&run.stdout).unwrap();
            let communicators = json["communicators"].as_array().unwrap();
            let finished = |it: &Value| it["ranks"][2]["spark_ccl"]["finished"].as_u64();
            if let Some(busy) = communicators.iter().find(|it| finished(it) > Some(1000)) {
                break busy.clone();
            }
        } else {
            assert_eq!(run.code, Some(2), "{}", run.stderr);
        }
        assert!(Instant::now() < deadline, "{} {}", run.stdout, run.stderr);
        std::thread::sleep(Duration::from_millis(100));
    };
    assert_eq!(busy["size"], 3);
    assert!(busy["ranks"][1]["spark_ccl"]["calls"]["all_reduce"].as_u64() > Some(1000));

    let table = top(&["--once"], port).stdout;
    let hash = busy["hash"].as_str().unwrap();
    let rows = table.lines().skip_while(|line| !line.contains(hash));
    let rows = rows.skip_while(|line| !line.contains("last call")).skip(1);
    let rows: Vec<&str> = rows.take(3).collect();
    assert_eq!(rows.len(), 3, "{table}");
    for (rank, row) in rows.into_iter().enumerate() {
        let words: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(words[0], rank.to_string(), "{table}");
        assert_eq!(words[1], busy["ranks"][rank]["host"], "{table}");
        assert_eq!(words[2], busy["ranks"][rank]["pid"].to_string(), "{table}");
    }
}

#[test]
fn nobody_to_ask_is_an_error_that_says_what_to_do() {
    let run = run("top --once --port 1");
    assert_eq!(run.code, Some(2));
    assert!(
        run.stderr
            .contains("does a job run here with SPARK_CCL_RAS=1"),
        "{}",
        run.stderr
    );
    assert_eq!(crate::program::run("top --every 0").code, Some(6));
}
