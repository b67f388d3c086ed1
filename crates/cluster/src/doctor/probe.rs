//! Measures the rates between hosts: each rail alone, all together, and then the collective itself.
//!
//! `spark-perf launch` starts the ranks that measure; this asks for their results and judges them.

mod judge;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::iter;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use spark_ccl_console::{
    document::Document,
    exit, print_error,
    rails::{BandwidthRow, LatencyRow, Measured},
};
use spark_ccl_topology::Cluster;
use spark_ccl_topology::cluster::HostRail;

use crate::finding::{Finding, Status};
use crate::remote::{self, Answer, run_here};

/// The time limit of one measurement.
const LIMIT: Duration = Duration::from_secs(180);
/// Messages of 1 MiB, for a second over each rail and over all.
const LOAD: &str = "--rails each --json -b 1M -e 1M -n 1000000 -w 16 --seconds 1 -T 10";
/// The collective, its sizes but for the last, and where its results go.
const COLLECTIVE: &str = "all_reduce --backend host -b 8 -f 8 -T 30 -J -";
/// The last size of the collective, in bytes, where the network is fast enough: there are 50 calls
/// of it, which must take less than [`LIMIT`].
const LAST_SIZE: u64 = 16 << 20;
/// The time, in seconds, for which a call may use the slowest pair's whole rate. Both directions at
/// once may take four times that.
const OF_A_CALL: f64 = 0.3;

/// A measurement, or why there is none.
pub(crate) type Outcome<T> = Result<T, String>;

/// All that was measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Probed {
    pub(crate) pairs: Vec<Pair>,
    /// All hosts together.
    pub(crate) collective: Outcome<Document>,
}

/// The measurements between two hosts.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Pair {
    /// The indices of the hosts.
    pub(crate) hosts: [usize; 2],
    pub(crate) tcp: Outcome<Measured<BandwidthRow>>,
    /// `None` where a host has no RDMA.
    pub(crate) rdma: Option<Outcome<Measured<BandwidthRow>>>,
    pub(crate) latency: Option<Outcome<Measured<LatencyRow>>>,
}

/// Starts ranks on hosts.
pub(crate) struct Launcher<'a> {
    /// The words of the command line that call ssh.
    pub(crate) ssh: Vec<String>,
    /// The hosts of the cluster, in its order.
    pub(crate) hosts: &'a [remote::Host],
}

impl Launcher<'_> {
    /// Runs a program with a rank on each of these hosts; returns the JSON that rank 0 prints.
    pub(crate) fn ask<T: DeserializeOwned>(&self, hosts: &[usize], program: &str) -> Outcome<T> {
        print_error(format_args!("measuring on {}: {program}", self.list(hosts)));
        // On every host, the agent starts itself again as the rank.
        let words: Vec<_> = iter::once("/proc/self/exe")
            .chain(program.split_whitespace())
            .collect();
        let answer = self.run(hosts, &[], &words, LIMIT)?;
        let failed = || {
            format!(
                "{program}: {}",
                why(&String::from_utf8_lossy(&answer.stderr))
            )
        };
        // Wrong data is in the results.
        match answer.status.code() {
            Some(0) => {}
            Some(code) if code == i32::from(exit::WRONG) => {}
            _ => return Err(failed()),
        }
        serde_json::from_slice(&answer.stdout).map_err(|_| failed())
    }

    /// Runs a command as ranks on these hosts, with further options of the launcher. Returns the
    /// output of the ranks, and the launcher's exit status.
    pub(crate) fn run(
        &self,
        hosts: &[usize],
        options: &[&str],
        command: &[&str],
        limit: Duration,
    ) -> Outcome<Answer> {
        let list = self.list(hosts);
        let mut words = vec!["launch"];
        words.extend(self.ssh.iter().map(String::as_str));
        words.extend(["-H", &list, "--no-prefix"]);
        words.extend(options);
        words.push("--");
        words.extend(command);
        run_here(&words, limit).map_err(|error| error.to_string())
    }

    /// The hosts, as `-H` takes them.
    pub(crate) fn list(&self, hosts: &[usize]) -> String {
        let name = |host: &usize| {
            let name = &self.hosts[*host].name;
            if name.contains(':') {
                format!("[{name}]:1")
            } else {
                name.clone()
            }
        };
        let names: Vec<_> = hosts.iter().map(name).collect();
        names.join(",")
    }
}

/// Why a measurement ended, from its launcher's output: the words of all ranks, since one of them
/// may only know that another one left.
fn why(said: &str) -> String {
    // The launcher's last line only says which rank has failed.
    let says_why = |line: &&str| !line.trim().is_empty() && !line.contains("ended with exit code");
    let mut lines = said.lines().filter(says_why);
    let of_ranks = |line: &&str| line.starts_with("spark-perf: rank ");
    let causes: Vec<_> = lines.clone().filter(of_ranks).collect();
    if causes.is_empty() {
        return lines.next_back().unwrap_or("it said nothing").to_owned();
    }
    causes.join("; ")
}

/// Measures every pair that rails join, and then all hosts together.
pub(crate) fn probe(launcher: &Launcher<'_>, cluster: &Cluster<'_>) -> (Probed, Vec<Finding>) {
    let mut hosts: Vec<_> = cluster.rails.iter().map(HostRail::hosts).collect();
    hosts.dedup();
    let mut found = Vec::new();
    let mut pairs = Vec::new();
    for hosts in hosts {
        let mut pair = measured(launcher, cluster, hosts);
        let mut judged = judge::pair(cluster, &pair);
        // Another program may have been in the way.
        if judged.iter().any(|one| one.status == Status::Warn) {
            pair.keep_better(measured(launcher, cluster, hosts));
            judged = judge::pair(cluster, &pair);
        }
        pairs.push(pair);
        found.extend(judged);
    }
    let all: Vec<_> = (0..cluster.hosts.len()).collect();
    let collective = launcher.ask(&all, &format!("{COLLECTIVE} -e {}", last_size(&pairs)));
    let even = slowest(&pairs, Pair::even);
    found.push(judge::collective(cluster, &collective, even));
    (Probed { pairs, collective }, found)
}

/// The last size of the collective, in bytes: a slow network gets a smaller one.
fn last_size(pairs: &[Pair]) -> u64 {
    let rate = slowest(pairs, Pair::fastest).unwrap_or(f64::INFINITY);
    let bytes = rate * 1e9 * OF_A_CALL;
    (bytes as u64).clamp(8, LAST_SIZE)
}

/// The rate of the slowest pair, in GB/s.
fn slowest(pairs: &[Pair], rate: impl Fn(&Pair) -> Option<f64>) -> Option<f64> {
    pairs.iter().filter_map(rate).reduce(f64::min)
}

fn measured(launcher: &Launcher<'_>, cluster: &Cluster<'_>, hosts: [usize; 2]) -> Pair {
    let [a, b] = hosts;
    let has_rdma = cluster.between(a, b).any(|rail| rail.rdma);
    let bandwidth = |program: &str| launcher.ask(&hosts, program).and_then(with_known_rails);
    let rdma = || bandwidth(&format!("rdma_bw {LOAD}"));
    let latency = || launcher.ask(&hosts, "rdma_lat --json -b 8 -e 8 -T 10");
    Pair {
        hosts,
        tcp: bandwidth(&format!("tcp_bw {LOAD} --sockets 2")),
        rdma: has_rdma.then(rdma),
        latency: has_rdma.then(latency),
    }
}

/// An answer of another host, whose rows must be of rails that it lists.
fn with_known_rails(measured: Measured<BandwidthRow>) -> Outcome<Measured<BandwidthRow>> {
    let known = measured.rails.len();
    if measured.rows.iter().any(|row| row.rails.is_empty()) {
        return Err("the answer has a row of no rail".to_owned());
    }
    let mut rails = measured.rows.iter().flat_map(|row| &row.rails);
    match rails.find(|rail| **rail >= known) {
        None => Ok(measured),
        Some(rail) => Err(format!(
            "the answer has a row of rail {rail}, and lists {known} rails"
        )),
    }
}

impl Pair {
    /// The highest rate, in GB/s.
    fn fastest(&self) -> Option<f64> {
        let rates = self.measured()?.rows.iter().map(|row| row.gb_per_s);
        rates.reduce(f64::max)
    }

    /// The rate for collectives, in GB/s: each rail carries the same, so the slowest counts.
    fn even(&self) -> Option<f64> {
        let Measured { rails, rows, .. } = self.measured()?;
        let of_all =
            |row: &BandwidthRow| row.gb_per_s * (rails.len() as f64 / row.rails.len() as f64);
        rows.iter().map(of_all).reduce(f64::min)
    }

    /// The measurement over the network that collectives use; over TCP also where RDMA failed.
    fn measured(&self) -> Option<&Measured<BandwidthRow>> {
        let mut all = self.rdma.iter().chain([&self.tcp]);
        all.find_map(|one| one.as_ref().ok())
    }

    /// Takes what was faster in another attempt. Wrong data and failures of either stay.
    fn keep_better(&mut self, other: Self) {
        keep(&mut self.tcp, other.tcp);
        if let (Some(own), Some(other)) = (&mut self.rdma, other.rdma) {
            keep(own, other);
        }
        if let (Some(own @ Ok(_)), Some(other)) = (&mut self.latency, other.latency) {
            *own = other;
        }
    }
}

fn keep(own: &mut Outcome<Measured<BandwidthRow>>, other: Outcome<Measured<BandwidthRow>>) {
    match (own, other) {
        (Ok(own), Ok(other)) => merge(own, other),
        (own @ Ok(_), Err(why)) => {
            let wrong = own.as_ref().map_or(0, wrong_bytes);
            *own = Err(also_wrong(why, wrong));
        }
        (Err(why), other) => {
            let wrong = other.as_ref().map_or(0, wrong_bytes);
            *why = also_wrong(std::mem::take(why), wrong);
        }
    }
}

/// Rows of the same size over the same rails are one: the faster is kept. Rails are told apart by
/// their ends: another attempt may have found them in another order, or others.
fn merge(own: &mut Measured<BandwidthRow>, other: Measured<BandwidthRow>) {
    let numbers: Vec<_> = other
        .rails
        .into_iter()
        .map(|rail| {
            let known = own.rails.iter().position(|one| one.ends == rail.ends);
            known.unwrap_or_else(|| {
                own.rails.push(rail);
                own.rails.len() - 1
            })
        })
        .collect();
    let set = |row: &BandwidthRow| -> BTreeSet<usize> { row.rails.iter().copied().collect() };
    for mut new in other.rows {
        for rail in &mut new.rails {
            *rail = numbers[*rail];
        }
        let is_same = |row: &&mut BandwidthRow| row.bytes == new.bytes && set(row) == set(&new);
        let Some(row) = own.rows.iter_mut().find(is_same) else {
            own.rows.push(new);
            continue;
        };
        new.wrong = row.wrong.max(new.wrong);
        row.wrong = new.wrong;
        if new.gb_per_s > row.gb_per_s {
            *row = new;
        }
    }
}

fn wrong_bytes(measured: &Measured<BandwidthRow>) -> u64 {
    measured.rows.iter().map(|row| row.wrong).sum()
}

/// Why an attempt failed, beside what another one found.
fn also_wrong(why: String, wrong: u64) -> String {
    if wrong == 0 {
        return why;
    }
    format!("{why}; another attempt had {wrong} wrong bytes")
}
