//! Parts 5 and 6: times, and their effect where models are served.

use serde_json::Value;

use super::Check;
use super::bench::Bench;
use super::results::{no_gpu, run};
use crate::finding::Status;

/// Measurements of others between two Sparks.
const RIVAL: &str =
    "8 KiB in 9.7 us and 256 MiB at 24.3 GB/s: what others reach; NCCL's row has its version";

pub(super) fn checks(bench: &Bench<'_>) -> Vec<Check> {
    let both = "all_reduce --backend engine,nccl -b 8 -e 256M -f 8 -n 50 -T 60";
    let eager = Check::new("GPU memory beside NCCL", RIVAL);
    let graph = Check::new("the same in graphs", RIVAL);
    let obstacle = no_gpu(bench);
    vec![
        run(bench, eager, &[both.to_owned()], obstacle),
        run(bench, graph, &[format!("{both} -G 10")], obstacle),
        apart(
            "a graph of 100 all_reduces, 0.5 ms of arithmetic apart",
            "no command has arithmetic between its calls",
        ),
        apart(
            "the first one after 60 ms of idleness",
            "no command pauses between its calls",
        ),
        spread(bench),
        by_hand(
            bench,
            "the proxy on a fast core, on a slow one, and free",
            "the same within 10 %",
            "taskset -c 5 and taskset -c 0 before it",
        ),
        by_hand(
            bench,
            "watts at the wall",
            "idle, while a rank waits, and busy: please report them",
            "a meter at the plug",
        ),
    ]
}

fn apart(what: &'static str, why: &str) -> Check {
    Check::new(what, "no figure is known").could_not(why)
}

/// Median, 99th percentile and maximum in host memory.
fn spread(bench: &Bench<'_>) -> Check {
    const PROGRAM: &str = "all_reduce --backend host -b 8K -e 8K -n 2000 -w 100 -I 1 -T 60";
    let check = Check::new(
        "8 KiB in host memory",
        "no figure is known; the 99th percentile below 3 times the median",
    );
    let check = check.by(bench.line(PROGRAM));
    if let Some(why) = bench.obstacle() {
        return check.could_not(why);
    }
    let asked: Result<Value, String> = bench.launcher.ask(&bench.all(), &format!("{PROGRAM} -J -"));
    let report = match asked {
        Ok(report) => report,
        Err(why) => return check.is(Status::Fail, why),
    };
    let times = &report["results"][0]["out_of_place_per_iter"];
    let [median, late, most] = ["p50_us", "p99_us", "max_us"].map(|name| times[name].as_f64());
    match (median, late, most) {
        (Some(median), Some(late), Some(most)) => {
            let seen = format!("median {median:.1} us, 99% below {late:.1}, at most {most:.1}");
            check.is(
                if late < 3.0 * median {
                    Status::Ok
                } else {
                    Status::Warn
                },
                seen,
            )
        }
        _ => check.is(Status::Fail, "the answer has no times"),
    }
}

fn by_hand(bench: &Bench<'_>, what: &'static str, expected: &str, how: &str) -> Check {
    let line = bench.line("all_reduce -b 8K -e 8K -n 2000 -I 1");
    Check::new(what, expected)
        .by(line)
        .could_not(format!("by hand: {how}"))
}

/// Part 6.
pub(super) fn serving(_: &Bench<'_>) -> Vec<Check> {
    let check = Check::new(
        "vLLM over two hosts",
        "decode 2 to 3 % faster; ten runs each, A B A, since most gains are noise",
    );
    vec![
        check.could_not(
            "by hand: vLLM with --tensor-parallel-size 2, with and without this library",
        ),
    ]
}
