//! Random faults in random calls, by real processes: nothing hangs, no result is wrong, every error
//! names the culprit, and nothing is left behind. `tests/faults.sh` runs any number of cases.

mod case;
mod garbage;
mod judge;
mod play;
mod traces;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Instant;

use case::{Case, Net};
use spark_ccl_testing::{Need, has};

use crate::processes::alone;

/// The kinds of failures of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Wrong {
    /// A rank has not answered in time.
    Hang,
    /// A result is wrong, a process crashed, or a fault went unnoticed.
    Result,
    /// There is an error without a fault, or one that does not name the culprit.
    Unnamed,
    /// Something of the job is left after its end.
    Leftover,
}

const ALL: [(Wrong, &str); 4] = [
    (Wrong::Hang, "hangs"),
    (Wrong::Result, "wrong"),
    (Wrong::Unnamed, "unnamed"),
    (Wrong::Leftover, "leftovers"),
];

/// A failure, in words.
type Failure = (Wrong, String);

/// Runs the first `count` cases on these networks, with seeds from `first` on. Panics if any
/// failed.
fn run(count: usize, first: u32, nets: &[Net]) {
    let since = Instant::now();
    let mut failed: BTreeMap<Wrong, Vec<u32>> = BTreeMap::new();
    let mut faults: BTreeMap<&str, u32> = BTreeMap::new();
    let cases = (first..).map(Case::of);
    for case in cases.filter(|case| nets.contains(&case.net)).take(count) {
        let seed = case.seed;
        *faults.entry(case.fault.name()).or_default() += 1;
        let failures = failures_of(&case);
        if !failures.is_empty() {
            println!("seed {seed}: {case:?}");
        }
        for (wrong, words) in failures {
            println!("  {wrong:?}: {words}");
            let seeds = failed.entry(wrong).or_default();
            if seeds.last() != Some(&seed) {
                seeds.push(seed);
            }
        }
    }
    let written = garbage::WRITTEN.load(Ordering::Relaxed);
    let lost = play::LOST.load(Ordering::Relaxed);
    let opened = garbage::OPENED.load(Ordering::Relaxed);
    println!(
        "faults: {faults:?}; garbage was written {written} times; {opened} silent connections; \
         {lost} packets were lost"
    );
    print!("cases {count}");
    for (wrong, name) in ALL {
        print!(", {name} {}", failed.get(&wrong).map_or(0, Vec::len));
    }
    println!(", {} s", since.elapsed().as_secs());
    assert!(
        !faults.contains_key("garbage") || written > 0,
        "nothing listened"
    );
    let is_silent = faults.contains_key("silence");
    assert!(!is_silent || opened > 0, "nothing was held");
    // A single case may lose no packet.
    let lossy = faults.get("loss").copied().unwrap_or(0);
    assert!(lossy < 10 || lost > 0, "nothing was lost");
    assert!(failed.is_empty(), "seeds of what went wrong: {failed:?}");
}

/// Reports a case also if the test itself cannot continue, as after a crash of a rank.
fn failures_of(case: &Case) -> Vec<Failure> {
    std::panic::catch_unwind(|| play::play(case)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let words = text.unwrap_or_else(|| "the test panicked".to_owned());
        vec![(Wrong::Result, words)]
    })
}

// For each network, consecutive seeds with all kinds of faults, few of which take seconds.

#[test]
fn random_faults() {
    let _alone = alone();
    run(17, 146_913, &[Net::Shm, Net::Loopback]);
}

#[test]
fn random_faults_between_hosts() {
    let _alone = alone();
    if has(Need::Namespaces) && has(Need::Nft) {
        run(24, 104_547, &[Net::Hosts]);
    }
}

/// In `tests/faults.sh`, as many cases as it asks for.
#[test]
fn random_faults_over_rdma() {
    let _alone = alone();
    if has(Need::Rails) {
        let (count, first) = told().unwrap_or((18, 73_965));
        run(count, first, &[Net::Rdma]);
    }
}

/// Run by `tests/faults.sh`, possibly several times at once: no lock makes one wait.
#[test]
#[ignore = "needs FAULTS_CASES and FAULTS_SEED; tests/faults.sh sets them and runs it"]
fn as_many_as_told() {
    let (count, first) = told().expect("FAULTS_CASES and FAULTS_SEED");
    run(count, first, &[Net::Shm, Net::Loopback, Net::Hosts]);
}

/// The number of cases, and the first seed.
fn told() -> Option<(usize, u32)> {
    let count = std::env::var("FAULTS_CASES").ok()?.parse().unwrap();
    let first = std::env::var("FAULTS_SEED").unwrap().parse().unwrap();
    Some((count, first))
}
