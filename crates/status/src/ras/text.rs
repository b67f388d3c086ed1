//! The report as text, in the layout of NCCL's.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};

use super::report::{Communicator, Counts, Missing, Rank, Report, Wait};

/// The number of ranks that are listed one by one, unless all are asked for.
const MOST_LISTED: usize = 10;

/// The report as text; with `verbose`, it lists every rank that it mentions.
pub fn text(report: &Report, verbose: bool) -> String {
    let groups = groups(&report.communicators);
    let mut text = Text {
        text: String::new(),
        most: if verbose { usize::MAX } else { MOST_LISTED },
    };
    text.line(format_args!(
        "{}, by NCCL's RAS protocol\n",
        report.nccl_version
    ));
    text.summary(report);
    text.line(format_args!(
        "\nCommunicators... ({:.3}s)\n=============\n",
        report.ras.collection_time_sec
    ));
    text.table(&groups);
    text.line(format_args!("\nErrors\n======\n"));
    text.each(&groups, Text::incomplete);
    text.each(&groups, Text::failed);
    text.line(format_args!("Warnings\n========\n"));
    text.each(&groups, Text::late);
    text.each(&groups, Text::mismatch);
    text.text
}

/// Communicators that look alike.
struct Group<'a> {
    look: Look,
    members: Vec<&'a Communicator>,
}

/// A communicator, as the table shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Look {
    size: u32,
    nodes: usize,
    status: &'static str,
    errors: String,
}

impl Look {
    fn of(communicator: &Communicator) -> Self {
        let is_failed = |rank: &Rank| rank.status.async_error != 0;
        let is_aborted = |rank: &Rank| rank.status.abort_flag;
        let silent = |missing: &Missing| missing.status.unresponsive;
        let missing = &communicator.missing_ranks;
        let errors = [
            ("INCOMPLETE", missing.iter().any(silent)),
            ("ERROR", communicator.ranks.iter().any(is_failed)),
            ("MISMATCH", has_mismatch(communicator)),
        ];
        let errors = errors.into_iter().filter(|(_, is_so)| *is_so);
        let errors: Vec<&str> = errors.map(|(name, _)| name).collect();
        Self {
            size: communicator.size,
            nodes: ranks_per_node(communicator).len(),
            status: if communicator.ranks.iter().any(is_aborted) {
                "ABORT"
            } else {
                "RUNNING"
            },
            errors: if errors.is_empty() {
                "OK".to_owned()
            } else {
                errors.join(",")
            },
        }
    }
}

/// The communicators, in groups that look alike, the largest first.
fn groups(communicators: &[Communicator]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for communicator in communicators {
        let look = Look::of(communicator);
        match groups.iter_mut().find(|group| group.look == look) {
            Some(group) => group.members.push(communicator),
            None => groups.push(Group {
                look,
                members: vec![communicator],
            }),
        }
    }
    groups.sort_by_key(|group| std::cmp::Reverse(group.look.size));
    groups
}

fn ranks_per_node(communicator: &Communicator) -> BTreeMap<&str, usize> {
    let mut nodes = BTreeMap::new();
    for (host, _) in processes(communicator) {
        *nodes.entry(host).or_insert(0) += 1;
    }
    nodes
}

/// Host and process of each rank, whether it has answered or not.
fn processes(communicator: &Communicator) -> impl Iterator<Item = (&str, u32)> {
    let ranks = communicator.ranks.iter();
    let missing = communicator.missing_ranks.iter();
    ranks
        .map(|rank| (&*rank.host, rank.pid))
        .chain(missing.map(|rank| (&*rank.host, rank.pid)))
}

/// Whether ranks have called different numbers of collectives, or some have left.
fn has_mismatch(communicator: &Communicator) -> bool {
    let counts = counted(communicator).map(|rank| rank.collective_counts);
    let counts: Vec<Counts> = counts.collect();
    let has_left = |missing: &Missing| !missing.status.unresponsive;
    counts.windows(2).any(|pair| pair[0] != pair[1])
        || communicator.missing_ranks.iter().any(has_left)
}

/// The ranks that count their calls. Others answer zeros.
fn counted(communicator: &Communicator) -> impl Iterator<Item = &Rank> {
    let counts = |rank: &&Rank| !rank.spark_ccl.calls.is_empty() || rank.spark_ccl.entered == 0;
    communicator.ranks.iter().filter(counts)
}

struct Text {
    text: String,
    most: usize,
}

impl Text {
    fn line(&mut self, line: fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{line}");
    }

    fn summary(&mut self, report: &Report) {
        let communicators = report.communicators.iter();
        let processes: BTreeSet<_> = communicators.flat_map(processes).collect();
        let mut per_node: BTreeMap<&str, usize> = BTreeMap::new();
        for (host, _) in &processes {
            *per_node.entry(host).or_default() += 1;
        }
        // The largest communicator has all ranks of its world.
        let ranks = report
            .communicators
            .iter()
            .map(|it| it.size)
            .max()
            .unwrap_or(0);
        self.line(format_args!(
            "Job summary\n===========\n\n  Nodes  Processes  Processes    Ranks\n(total)   per \
             node    (total)  (total)\n{:7}  {:>9}  {:9}  {:7}",
            per_node.len(),
            range(&per_node.values().copied().collect::<Vec<_>>()),
            processes.len(),
            ranks
        ));
    }

    fn table(&mut self, groups: &[Group<'_>]) {
        if groups.is_empty() {
            return self.line(format_args!("No communicator data collected!"));
        }
        self.line(format_args!(
            "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors\n    #  in \
             group  per comm  per node  per comm  in group"
        ));
        for (number, Group { look, members }) in groups.iter().enumerate() {
            let per_node = members
                .iter()
                .flat_map(|it| ranks_per_node(it).into_values());
            let per_node: Vec<usize> = per_node.collect();
            let processes: BTreeSet<_> = members.iter().copied().flat_map(processes).collect();
            self.line(format_args!(
                "{number:5}  {:8}  {:8}  {:>8}  {:8}  {:8}  {:>8}  {:>6}",
                members.len(),
                look.nodes,
                range(&per_node),
                look.size,
                processes.len().max(look.size as usize),
                look.status,
                look.errors
            ));
        }
    }

    /// Writes something about each communicator, under its number in the table.
    fn each(&mut self, groups: &[Group<'_>], mut say: impl FnMut(&mut Self, &str, &Communicator)) {
        for (number, group) in groups.iter().enumerate() {
            for (index, communicator) in group.members.iter().enumerate() {
                let hash = communicator.hash.trim_start_matches("0x");
                say(
                    self,
                    &format!("#{number}-{index} ({hash:0>16})"),
                    communicator,
                );
            }
        }
    }

    fn incomplete(&mut self, name: &str, communicator: &Communicator) {
        let missing = communicator.missing_ranks.iter();
        let missing: Vec<_> = missing.filter(|it| it.status.unresponsive).collect();
        if missing.is_empty() {
            return;
        }
        let count = missing.len();
        self.line(format_args!(
            "{name} INCOMPLETE\n  Missing communicator data from {count} rank{}",
            if count == 1 { "" } else { "s" }
        ));
        for rank in missing.into_iter().take(self.most) {
            let why = if rank.status.considered_dead {
                "is considered dead"
            } else {
                "does not answer"
            };
            let at = place(rank.pid, &rank.host);
            self.line(format_args!("  Rank {} {why} -- {at}", rank.rank));
        }
        self.line(format_args!(""));
    }

    fn failed(&mut self, name: &str, communicator: &Communicator) {
        if let Some(fault) = &communicator.spark_ccl.fault {
            self.line(format_args!("{name} ERROR\n  {fault}\n"));
        }
    }

    fn late(&mut self, name: &str, communicator: &Communicator) {
        let ranks = || communicator.ranks.iter();
        let late: Vec<_> = ranks()
            .filter_map(|rank| Some((rank, rank.spark_ccl.late_sec?)))
            .collect();
        let waiting: Vec<_> = ranks()
            .filter_map(|rank| Some((rank, rank.spark_ccl.waits.as_ref()?)))
            .collect();
        if late.is_empty() && waiting.is_empty() {
            return;
        }
        self.line(format_args!("{name} LATE"));
        for (rank, sec) in late.into_iter().take(self.most) {
            let more = &rank.spark_ccl;
            let last = match &more.call {
                Some(call) => format!("its last call is #{} {call}", more.entered),
                None => "it has called nothing yet".to_owned(),
            };
            let at = place(rank.pid, &rank.host);
            self.line(format_args!(
                "  Rank {} is late by {sec:.1} s: {last} -- {at}",
                rank.rank
            ));
        }
        for (rank, wait) in waiting.into_iter().take(self.most) {
            let at = place(rank.pid, &rank.host);
            self.line(format_args!(
                "  Rank {} {} -- {at}",
                rank.rank,
                wait.in_words()
            ));
        }
        self.line(format_args!(""));
    }

    fn mismatch(&mut self, name: &str, communicator: &Communicator) {
        if !has_mismatch(communicator) {
            return;
        }
        self.line(format_args!("{name} MISMATCH"));
        let missing = communicator.missing_ranks.iter();
        let left: Vec<_> = missing.filter(|it| !it.status.unresponsive).collect();
        for rank in left.into_iter().take(self.most) {
            let at = place(rank.pid, &rank.host);
            self.line(format_args!("  Rank {} has left -- {at}", rank.rank));
        }
        for (collective, count) in COLLECTIVES {
            let counts: Vec<_> = counted(communicator)
                .map(|rank| (rank, count(&rank.collective_counts)))
                .collect();
            if counts.windows(2).any(|pair| pair[0].1 != pair[1].1) {
                self.counts(collective, &counts);
            }
        }
        self.line(format_args!(""));
    }

    fn counts(&mut self, collective: &str, counts: &[(&Rank, u64)]) {
        self.line(format_args!(
            "  Communicator ranks have different {collective} operation counts"
        ));
        for (rank, count) in counts.iter().take(self.most) {
            let at = place(rank.pid, &rank.host);
            let launched = match count {
                0 => "has not launched any operations".to_owned(),
                count => format!("has launched up to operation {count}"),
            };
            self.line(format_args!("  Rank {} {launched} -- {at}", rank.rank));
        }
    }
}

type CountOf = fn(&Counts) -> u64;

const COLLECTIVES: [(&str, CountOf); 5] = [
    ("Broadcast", |counts| counts.broadcast),
    ("Reduce", |counts| counts.reduce),
    ("AllGather", |counts| counts.all_gather),
    ("ReduceScatter", |counts| counts.reduce_scatter),
    ("AllReduce", |counts| counts.all_reduce),
];

impl Wait {
    /// "has waited for rank 1 for 3.2 s in #17 `all_reduce(...)`".
    pub fn in_words(&self) -> String {
        let whom = self.for_rank.map(|rank| format!(" for rank {rank}"));
        let number = self.sequence.map(|sequence| format!("#{sequence} "));
        format!(
            "has waited{} for {:.1} s in {}{}",
            whom.unwrap_or_default(),
            self.sec,
            number.unwrap_or_default(),
            self.call
        )
    }
}

fn place(pid: u32, host: &str) -> String {
    format!("managed by process {pid} on node {host}")
}

/// "2", or "1-2" where they differ.
fn range(values: &[usize]) -> String {
    match (values.iter().min(), values.iter().max()) {
        (Some(least), Some(most)) if least != most => format!("{least}-{most}"),
        (least, _) => least.unwrap_or(&0).to_string(),
    }
}
