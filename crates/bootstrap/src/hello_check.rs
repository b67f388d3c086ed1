//! Compares the ranks' hellos, and words the errors for every rank. Pure functions.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Display, Write};
use std::net::SocketAddr;
use std::time::Duration;

use crate::hello::{Hello, MAX_RANKS, PeerInfo};
use crate::wiring::Survey;

/// How many ranks, hosts or reasons one message lists.
const LISTED: usize = 16;

/// Whether a new hello contradicts the earlier ones. Cheaper than [`disagreement`].
pub(crate) fn contradicts(hello: &Hello, first: &Hello, known: bool) -> bool {
    known || hello.size != first.size || hello.peer.rank >= hello.size || hello.size > MAX_RANKS
}

/// Everything in which the hellos disagree, or `None`.
pub(crate) fn disagreement(hellos: &[&Hello]) -> Option<String> {
    let findings: Vec<String> = [
        impossible(hellos),
        duplicates(hellos),
        differing("world size", hellos, |hello| hello.size),
        differing("build of spark-ccl", hellos, |hello| hello.build.clone()),
        settings(hellos),
    ]
    .into_iter()
    .flatten()
    .collect();
    (!findings.is_empty()).then(|| format!("the ranks disagree: {}", findings.join("; ")))
}

fn impossible(hellos: &[&Hello]) -> Option<String> {
    let bad = hellos
        .iter()
        .filter(|h| h.peer.rank >= h.size || h.size > MAX_RANKS);
    let texts: Vec<String> = bad
        .map(|h| format!("{} says the world has {} ranks", h.peer, h.size))
        .collect();
    (!texts.is_empty()).then(|| join(&texts, "; "))
}

fn duplicates(hellos: &[&Hello]) -> Option<String> {
    let mut by_rank = BTreeMap::<u32, Vec<&PeerInfo>>::new();
    for hello in hellos {
        by_rank
            .entry(hello.peer.rank)
            .or_default()
            .push(&hello.peer);
    }
    let texts: Vec<String> = by_rank
        .iter()
        .filter(|(_, peers)| peers.len() > 1)
        .map(|(rank, peers)| {
            let holders: Vec<String> = peers
                .iter()
                .map(|peer| format!("{} pid {}", peer.host, peer.pid))
                .collect();
            format!(
                "{} processes are rank {rank} ({})",
                peers.len(),
                join(&holders, ", ")
            )
        })
        .collect();
    (!texts.is_empty()).then(|| join(&texts, "; "))
}

fn differing<T: Ord + Display>(
    what: &str,
    hellos: &[&Hello],
    value: impl Fn(&Hello) -> T,
) -> Option<String> {
    let mut groups = BTreeMap::<T, Vec<u32>>::new();
    for hello in hellos {
        groups
            .entry(value(hello))
            .or_default()
            .push(hello.peer.rank);
    }
    if groups.len() < 2 {
        return None;
    }
    let texts: Vec<String> = groups
        .iter()
        .map(|(value, ranks)| format!("{value} on {}", ranks_text(ranks)))
        .collect();
    Some(format!("{what} is {}", join(&texts, ", ")))
}

/// Compares the configuration hashes, and names the settings that differ.
fn settings(hellos: &[&Hello]) -> Option<String> {
    let hashes = differing("the configuration's hash", hellos, |h| {
        format!("{:016x}", h.wire_hash)
    })?;
    let parsed: Vec<(u32, BTreeMap<&str, &str>)> = hellos
        .iter()
        .map(|h| (h.peer.rank, parse_summary(&h.wire_summary)))
        .collect();
    let names: BTreeSet<&str> = parsed
        .iter()
        .flat_map(|(_, map)| map.keys().copied())
        .collect();
    let texts: Vec<String> = names
        .into_iter()
        .filter_map(|name| {
            let mut groups = BTreeMap::<&str, Vec<u32>>::new();
            for (rank, map) in &parsed {
                groups
                    .entry(map.get(name).copied().unwrap_or("unset"))
                    .or_default()
                    .push(*rank);
            }
            let values: Vec<String> = groups
                .iter()
                .map(|(v, ranks)| format!("{v} on {}", ranks_text(ranks)))
                .collect();
            (groups.len() > 1).then(|| format!("{name} is {}", join(&values, ", ")))
        })
        .collect();
    Some(if texts.is_empty() {
        hashes
    } else {
        join(&texts, "; ")
    })
}

fn parse_summary(summary: &str) -> BTreeMap<&str, &str> {
    summary
        .split_whitespace()
        .map(|item| item.split_once('=').unwrap_or((item, "set")))
        .collect()
}

/// The error if ranks did not arrive. `why` says what may have kept them.
pub(crate) fn missing(hellos: &[&Hello], timeout: Duration, why: &str) -> String {
    let seconds = timeout.as_secs_f64();
    let Some((absent, present)) = absent(hellos) else {
        return format!("no rank arrived at the rendezvous within {seconds} s{why}");
    };
    format!("{absent} did not arrive at the rendezvous within {seconds} s; present: {present}{why}")
}

/// The log line about missing ranks, which may still come for `left`.
pub(crate) fn awaited(hellos: &[&Hello], place: &str, left: &str) -> String {
    let (absent, present) = absent(hellos).unwrap_or_default();
    format!(
        "waiting for {absent} at the rendezvous at {place}, for {left} more; present: {present}"
    )
}

/// The missing ranks, and the present ones; `None` if none is missing.
fn absent(hellos: &[&Hello]) -> Option<(String, String)> {
    let first = hellos.first()?;
    let present: BTreeSet<u32> = hellos.iter().map(|hello| hello.peer.rank).collect();
    let absent: Vec<u32> = (0..first.size)
        .filter(|rank| !present.contains(rank))
        .collect();
    let mut there: Vec<&PeerInfo> = hellos.iter().map(|hello| &hello.peer).collect();
    there.sort_by_key(|peer| peer.rank);
    let there: Vec<String> = there
        .iter()
        .map(|peer| format!("{} ({})", peer.rank, peer.host))
        .collect();
    let absent = format!("{} of {}", ranks_text(&absent), first.size);
    Some((absent, join(&there, ", ")))
}

/// Addresses in words.
pub(crate) fn list(addresses: &[SocketAddr]) -> String {
    let texts: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
    join(&texts, ", ")
}

/// The error if links are not up: ranks that are gone, and ranks that could not set up theirs.
pub(crate) fn links(lost: &[&PeerInfo], failed: &[(&PeerInfo, &str)]) -> String {
    let lost = lost
        .iter()
        .map(|peer| format!("{peer} ended during initialisation"));
    let failed = failed
        .iter()
        .map(|(peer, reason)| format!("{peer}: {reason}"));
    let texts: Vec<String> = lost.chain(failed).collect();
    format!("not all links are up: {}", join(&texts, "; "))
}

/// The error if no way joins all ranks, which fall into these `parts`. Names a pair that was tried,
/// and why it failed.
pub(crate) fn cut(peers: &[&PeerInfo], surveys: &[&Survey], parts: &[Vec<u32>]) -> Option<String> {
    let [first, second, ..] = parts else {
        return None;
    };
    let part_of = |rank: u32| parts.iter().position(|part| part.contains(&rank));
    let missed = (0..).zip(surveys).flat_map(|(rank, survey)| {
        let missed = survey.missed.iter();
        missed.map(move |(peer, why)| (rank, *peer, why.as_str()))
    });
    let across = missed.filter(|(rank, peer, _)| part_of(*rank) != part_of(*peer));
    let (rank, peer, why) = across.min_by_key(|(rank, peer, _)| (*peer, *rank))?;
    let name = |rank: u32| {
        peers
            .get(rank as usize)
            .map_or_else(String::new, ToString::to_string)
    };
    Some(format!(
        "{} and {} do not reach each other, neither by themselves nor by way of other ranks: \
         nothing joins {} and {}; look at the cables between their hosts, and at \
         SPARK_CCL_SOCKET_IFNAME, which may leave out the network that joins them; {} tried: {why}",
        name(peer),
        name(rank),
        ranks_text(first),
        ranks_text(second),
        ranks_text(&[rank]),
    ))
}

/// "rank 2", or "ranks 0, 2, 5-9".
pub(crate) fn ranks_text(ranks: &[u32]) -> String {
    let sorted: BTreeSet<u32> = ranks.iter().copied().collect();
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &rank in &sorted {
        match runs.last_mut() {
            Some((_, end)) if *end + 1 == rank => *end = rank,
            _ => runs.push((rank, rank)),
        }
    }
    let texts: Vec<String> = runs
        .iter()
        .map(|&(start, end)| match end - start {
            0 => start.to_string(),
            1 => format!("{start}, {end}"),
            _ => format!("{start}-{end}"),
        })
        .collect();
    let noun = if sorted.len() == 1 { "rank" } else { "ranks" };
    format!("{noun} {}", join(&texts, ", "))
}

fn join(texts: &[String], separator: &str) -> String {
    let shown = &texts[..texts.len().min(LISTED)];
    let mut text = shown.join(separator);
    if texts.len() > shown.len() {
        let _ = write!(text, "{separator}and {} more", texts.len() - shown.len());
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::hello::tests::hello;

    fn check(change: impl Fn(&mut Vec<Hello>)) -> Option<String> {
        let mut hellos: Vec<Hello> = (0..4).map(|rank| hello(rank, 4)).collect();
        change(&mut hellos);
        disagreement(&hellos.iter().collect::<Vec<_>>())
    }

    #[test]
    fn agreement_is_none() {
        assert_eq!(check(|_| ()), None);
    }

    #[test]
    fn sizes_are_named_with_their_ranks() {
        let text = check(|hellos| hellos[3].size = 5).unwrap();
        assert_eq!(
            text,
            "the ranks disagree: world size is 4 on ranks 0-2, 5 on rank 3"
        );
    }

    #[test]
    fn duplicates_are_named_with_their_processes() {
        let text = check(|hellos| hellos[3].peer.rank = 1).unwrap();
        assert!(
            text.contains("2 processes are rank 1 (host1 pid 101, host3 pid 103)"),
            "{text}"
        );
    }

    #[test]
    fn a_rank_beyond_the_size_is_named() {
        let text = check(|hellos| hellos[2].peer.rank = 4).unwrap();
        assert!(
            text.contains("rank 4 (host2, pid 102) says the world has 4 ranks"),
            "{text}"
        );
    }

    #[test]
    fn only_settings_that_differ_are_named() {
        let text = check(|hellos| {
            hellos[1].wire_hash = 2;
            hellos[1].wire_summary = "slots=16 path=auto".to_owned();
        })
        .unwrap();
        assert_eq!(
            text,
            "the ranks disagree: slots is 16 on rank 1, 8 on ranks 0, 2, 3"
        );
        let text = check(|hellos| hellos[0].wire_hash = 2).unwrap();
        assert!(text.contains("0000000000000002 on rank 0"), "{text}");
    }

    #[test]
    fn missing_ranks_and_present_hosts_are_named() {
        let hellos: Vec<Hello> = [1, 0].map(|rank| hello(rank, 4)).into();
        let hellos: Vec<&Hello> = hellos.iter().collect();
        assert_eq!(
            missing(&hellos, Duration::from_secs(120), ""),
            "ranks 2, 3 of 4 did not arrive at the rendezvous within 120 s; \
             present: 0 (host0), 1 (host1)"
        );
    }

    proptest! {
        #[test]
        fn any_hellos_are_compared(
            claims in prop::collection::vec(
                (0u32..5, prop_oneof![Just(4u32), any::<u32>()], 0u64..3, "[a-c= é]{0,12}"),
                4,
            ),
        ) {
            let hellos = claims.iter().map(|(rank, size, hash, summary)| {
                let mut hello = hello(*rank, *size);
                hello.wire_hash = *hash;
                hello.wire_summary.clone_from(summary);
                hello
            });
            let hellos: Vec<Hello> = hellos.collect();
            let hellos: Vec<&Hello> = hellos.iter().collect();
            let alike = hellos.windows(2).all(|pair| {
                (pair[0].size, pair[0].wire_hash) == (pair[1].size, pair[1].wire_hash)
            });
            let mut ranks: Vec<u32> = claims.iter().map(|(rank, ..)| *rank).collect();
            ranks.sort_unstable();
            ranks.dedup();
            let possible = hellos.iter().all(|hello| hello.peer.rank < hello.size && hello.size <= MAX_RANKS);
            prop_assert_eq!(disagreement(&hellos).is_none(), alike && possible && ranks.len() == 4);
        }
    }

    #[test]
    fn long_lists_are_cut() {
        let ranks: Vec<u32> = (0..100).map(|i| i * 2).collect();
        let text = ranks_text(&ranks);
        assert!(
            text.starts_with("ranks 0, 2, 4") && text.ends_with("and 84 more"),
            "{text}"
        );
    }
}
