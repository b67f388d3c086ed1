//! Part 4: failures on purpose, long runs, and the traces that they leave.

use std::time::{Duration, Instant};

use spark_ccl_console::document::Document;
use spark_ccl_topology::Host;

use super::Check;
use super::bench::{Bench, NO_RDMA};
use crate::finding::Status;

/// The number of operations, and of runs.
const OPERATIONS: u64 = 1_000_000;
const RUNS: u64 = 20;
/// When the rank that is stopped goes on, after the start.
const STOPPED_UNTIL: Duration = Duration::from_secs(3);
/// The number of starts and ends of ranks.
const ROUNDS: u32 = 100;
/// Counters that stay as they are where nothing is lost.
const LOSSES: [&str; 4] = [
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "out_of_buffer",
];

pub(super) fn checks(bench: &Bench<'_>) -> Vec<Check> {
    let before = bench.read_again();
    let mut all = vec![doorbells(), late(bench), killed(bench)];
    all.extend(pulled(bench));
    all.extend([many(bench), night(bench), rounds(bench)]);
    let after = bench.read_again();
    all.push(losses(&before, &after));
    all.push(memory(&before, &after));
    all
}

fn doorbells() -> Check {
    let check = Check::new(
        "a proxy held over two calls",
        "both are sent when it goes on",
    );
    check.could_not("no command holds the thread; the tests do, on stand-ins for GPUs")
}

/// A rank is stopped in the middle of a run, for longer than any wait spins.
fn late(bench: &Bench<'_>) -> Check {
    let check = Check::new(
        "a rank stopped for two seconds",
        "the others wait, and every result is right",
    );
    if let Some(why) = bench.obstacle() {
        return check.could_not(why);
    }
    let script = "if [ $SPARK_CCL_RANK = 1 ]; then (sleep 1; kill -STOP $$; sleep 2; kill -CONT $$) & fi; \
                  exec $PERF all_reduce --backend host -b 1K -e 1M -f 8 -n 200 -N 20 -c 1 -T 30";
    match bench.script(script, &[]) {
        Err(why) => check.is(Status::Fail, why),
        Ok((answer, took)) if answer.status.success() => went_on(check, took),
        Ok((answer, _)) => check.is(Status::Fail, last(&answer.lines())),
    }
}

/// A run that ended well: if it was over before the rank could be stopped and go on, it shows
/// nothing.
fn went_on(check: Check, took: Duration) -> Check {
    let seconds = took.as_secs_f64();
    if took <= STOPPED_UNTIL {
        let seen = format!("the run took {seconds:.1} s: it ended before the rank went on");
        return check.is(Status::Unknown, seen);
    }
    check.is(Status::Ok, format!("every result right, in {seconds:.1} s"))
}

/// A rank is killed; the launcher lets the others say so before it ends them.
fn killed(bench: &Bench<'_>) -> Check {
    let check = Check::new(
        "kill -9 of a rank",
        "the others end by themselves, with an error that names rank 1",
    );
    if let Some(why) = bench.obstacle() {
        return check.could_not(why);
    }
    let script = "trap '' TERM; if [ $SPARK_CCL_RANK = 1 ]; then (sleep 2; kill -KILL $$) & fi; \
                  exec $PERF all_reduce --backend host -b 1M -e 1M -n 1000000000 -c 0 -T 30";
    let (answer, took) = match bench.script(script, &["--grace", "40"]) {
        Ok(ended) => ended,
        Err(why) => return check.is(Status::Fail, why),
    };
    let said = answer.lines();
    // With the process in brackets, the library has named it, not the launcher.
    let naming = said.iter().find(|line| line.contains("rank 1 ("));
    match naming {
        Some(line) => check.is(
            Status::Ok,
            format!("{line} ({:.1} s after the start)", took.as_secs_f64()),
        ),
        None => check.is(
            Status::Fail,
            format!("nobody names rank 1: {}", last(&said)),
        ),
    }
}

fn pulled(bench: &Bench<'_>) -> [Check; 2] {
    let line = bench.line("all_reduce --backend host -b 8 -e 64M -f 8 -N 100");
    let brief = Check::new(
        "a cable out for 0.3 s",
        "the run goes on, and every result is right",
    );
    let good = Check::new(
        "a cable out for good",
        "within SPARK_CCL_TIMEOUT both ranks end with an error that names the other, or go on over \
         another network",
    );
    let why = "a cable must be pulled by hand while this runs";
    [brief, good].map(|check| check.by(&*line).could_not(why))
}

fn many(bench: &Bench<'_>) -> Check {
    let check = Check::new("10^6 operations", "all end, and every result is right");
    let program = format!(
        "all_reduce --backend host -b 8 -e 8 -n {} -c 1 -T 60",
        OPERATIONS / RUNS / 2
    );
    let check = check.by(bench.line(&program));
    if let Some(why) = bench.obstacle() {
        return check.could_not(why);
    }
    let start = Instant::now();
    for run in 0..RUNS {
        if start.elapsed() > bench.limit && run > 0 {
            let done = OPERATIONS / RUNS * run;
            return check.is(
                Status::Unknown,
                format!(
                    "{done} in {:.1} s, all right; --minutes gives more time",
                    start.elapsed().as_secs_f64()
                ),
            );
        }
        let asked: Result<Document, String> =
            bench.launcher.ask(&bench.all(), &format!("{program} -J -"));
        match asked {
            Ok(document) if document.wrong() == 0 && document.is_verified() => {}
            Ok(document) => {
                return check.is(Status::Fail, format!("{} elements wrong", document.wrong()));
            }
            Err(why) => return check.is(Status::Fail, why),
        }
    }
    check.is(
        Status::Ok,
        format!("all right, in {:.1} s", start.elapsed().as_secs_f64()),
    )
}

fn night(bench: &Bench<'_>) -> Check {
    let line = bench.line("all_reduce --backend host -b 8 -e 8 -n 1000000 -N 50");
    let check = Check::new("10^8 operations", "all end, and every result is right").by(line);
    check.could_not("it takes a night")
}

/// Ranks start, compute and end, one of them late each time.
fn rounds(bench: &Bench<'_>) -> Check {
    let check = Check::new(
        "100 rounds of start and end, a rank late",
        "all end, and every result is right",
    );
    if let Some(why) = bench.obstacle() {
        return check.could_not(why);
    }
    let start = Instant::now();
    for round in 0..ROUNDS {
        if start.elapsed() > bench.limit && round > 0 {
            return check.is(
                Status::Unknown,
                format!("{round} rounds, all right; --minutes gives more time"),
            );
        }
        let late = round as usize % bench.cluster.hosts.len();
        let script = format!(
            "[ $SPARK_CCL_RANK = {late} ] && sleep 0.1; exec $PERF all_reduce --backend host -b 8 -e 8 -n 1 -w 0 -T 30"
        );
        match bench.script(&script, &[]) {
            Ok((answer, _)) if answer.status.success() => {}
            Ok((answer, _)) => {
                return check.is(
                    Status::Fail,
                    format!("round {round}: {}", last(&answer.lines())),
                );
            }
            Err(why) => return check.is(Status::Fail, format!("round {round}: {why}")),
        }
    }
    check.is(
        Status::Ok,
        format!("all right, in {:.1} s", start.elapsed().as_secs_f64()),
    )
}

/// The growth of the counters of lost packets since the first reading.
fn losses(before: &[Host], after: &[Host]) -> Check {
    let check = Check::new(
        "counters of lost packets",
        format!("no growth of {}", LOSSES.join(", ")),
    );
    let mut ports = 0;
    let (mut grown, mut unread) = (Vec::new(), Vec::new());
    for (then, now) in before.iter().zip(after) {
        for (device, old) in then.ports() {
            ports += 1;
            let mut all = now.ports();
            let new = all.find(|(it, port)| it.name == device.name && port.number == old.number);
            let grown_by = |name: &str| {
                let old = old.counters.get(name)?;
                Some(new?.1.counters.get(name)?.saturating_sub(*old))
            };
            let read: Vec<_> = LOSSES
                .iter()
                .filter_map(|name| Some((name, grown_by(name)?)))
                .collect();
            if read.is_empty() {
                unread.push(format!("{} {}", now.name, device.name));
            }
            for (name, by) in read.into_iter().filter(|(_, by)| *by > 0) {
                grown.push(format!("{} {} {name} by {by}", now.name, device.name));
            }
        }
    }
    if ports == 0 {
        return check.could_not(NO_RDMA);
    }
    if !grown.is_empty() {
        return check.is(Status::Warn, grown.join("; "));
    }
    if !unread.is_empty() {
        let seen = format!("no such counter of {}", unread.join(", "));
        return check.is(Status::Unknown, seen);
    }
    check.is(Status::Ok, format!("none, at {ports} ports"))
}

fn memory(before: &[Host], after: &[Host]) -> Check {
    /// The memory that other programs may take meanwhile.
    const SOME: u64 = 1 << 30;
    let check = Check::new(
        "memory",
        "after all this, as much is available as before, but for 1 GiB",
    );
    let both: Vec<_> = before.iter().zip(after).collect();
    if both.is_empty() {
        return check.could_not("a host does not answer any more");
    }
    let mib = |host: &Host| host.memory.available >> 20;
    let told: Vec<_> = both
        .iter()
        .map(|(then, now)| format!("{}: {} MiB, then {}", now.name, mib(then), mib(now)))
        .collect();
    let is_less =
        |(then, now): &&(&Host, &Host)| now.memory.available + SOME < then.memory.available;
    let status = if both.iter().any(|pair| is_less(&pair)) {
        Status::Warn
    } else {
        Status::Ok
    };
    check.is(status, told.join("; "))
}

fn last(lines: &[String]) -> &str {
    let said = lines.iter().rfind(|line| !line.trim().is_empty());
    said.map_or("it said nothing", String::as_str)
}

#[cfg(test)]
mod tests {
    use spark_ccl_topology::testing;

    use super::*;

    #[test]
    fn a_run_that_was_over_before_the_pause_shows_nothing() {
        let status = |seconds| {
            let check = Check::new("a rank stopped", "right");
            went_on(check, Duration::from_secs_f64(seconds)).status
        };
        assert_eq!([2.0, 3.5].map(status), [Status::Unknown, Status::Ok]);
    }

    #[test]
    fn what_nobody_has_counted_has_not_stayed() {
        let before = testing::hosts(&testing::pair());
        let judged = |alter: &dyn Fn(&mut Host)| {
            let mut after = before.clone();
            after.iter_mut().for_each(alter);
            losses(&before, &after)
        };
        assert_eq!(judged(&|_| ()).status, Status::Ok);
        let lose = |host: &mut Host| host.port_mut("rocep1s0f0").counters.clear();
        let lost = judged(&lose);
        assert_eq!(lost.status, Status::Unknown, "{lost:?}");
        let gone = judged(&|host| drop(host.rdma.remove(0)));
        assert_eq!(gone.status, Status::Unknown, "{gone:?}");
        let grow = |host: &mut Host| {
            let counters = &mut host.port_mut("rocep1s0f0").counters;
            *counters.get_mut("out_of_sequence").unwrap() += 1;
        };
        assert_eq!(judged(&grow).status, Status::Warn);
    }
}
