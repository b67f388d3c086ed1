//! Hosts in a ring, each with a cable to the next one and nothing else: no LAN, no routes.

use spark_ccl_testing::{Need, has};

use crate::hosts::{lay, new_host};
use crate::processes::{
    Rank, all, assert_all_ok, assert_contains, assert_names, join, links_of, logged, place,
};

/// A rank on each of `size` hosts, with cables between these pairs. `None`, loudly, if this process
/// may not make hosts.
fn hosts(size: usize, cables: &[(usize, usize)], env: &[(&str, &str)]) -> Option<Vec<Rank>> {
    if !has(Need::Namespaces) {
        return None;
    }
    let ranks: Vec<Rank> = (0..size).map(|_| new_host(env)).collect();
    lay_all(&ranks, cables);
    Some(ranks)
}

fn lay_all(ranks: &[Rank], cables: &[(usize, usize)]) {
    for (number, &(one, another)) in cables.iter().enumerate() {
        let pids = [&ranks[one], &ranks[another]].map(|rank| rank.pid().to_string());
        lay(&format!("cable{number}"), number, &pids);
    }
}

fn around(size: usize) -> Vec<(usize, usize)> {
    (0..size).map(|host| (host, (host + 1) % size)).collect()
}

fn ring(size: usize) -> Option<Vec<Rank>> {
    let mut ranks = hosts(size, &around(size), &[])?;
    join(&mut ranks);
    Some(ranks)
}

/// Calls between all ranks, and between those without a cable.
fn assert_works(ranks: &mut [Rank]) {
    let last = ranks.len() - 1;
    for count in [1, 1000, 1_000_000] {
        assert_all_ok(ranks, &format!("call f32 all_reduce sum {count}"));
    }
    for call in [
        "all_gather 10000".to_owned(),
        "reduce_scatter 10000".to_owned(),
        format!("broadcast {last} 100000"),
        "reduce 1 100000".to_owned(),
        "gather 0 10000".to_owned(),
        "scatter 1 10000".to_owned(),
        "all_to_all 100000".to_owned(),
        "all_to_all_v 1000".to_owned(),
    ] {
        assert_all_ok(ranks, &format!("call f32 {call}"));
    }
}

#[test]
fn rings_of_3_to_8_hosts_do_all_calls() {
    let _place = place();
    for size in [3, 4, 8] {
        let Some(mut ranks) = ring(size) else { return };
        for bytes in [8, 1_000_000] {
            for answer in all(&mut ranks, &format!("explain ordinary {bytes}")) {
                let is_ring = answer.starts_with("ring (between neighbours only");
                assert_eq!(is_ring, size > 3, "{answer}");
            }
        }
        assert_works(&mut ranks);
        let links = links_of(&mut ranks, 0);
        assert_eq!(
            links.contains("passed on by other ranks"),
            size > 3,
            "{links}"
        );
        assert_all_ok(&mut ranks, "finalize");
    }
}

/// Nobody waits for a rank without a cable, unlike for one that does not answer.
#[test]
fn ranks_know_which_others_are_out_of_reach() {
    let _place = place();
    let logs = tempfile::tempdir().unwrap();
    let file = format!("{}/%p", logs.path().display());
    let env = [("SPARK_CCL_LOG", "info"), ("SPARK_CCL_LOG_FILE", &file)];
    let Some(mut ranks) = hosts(5, &around(5), &env) else {
        return;
    };
    join(&mut ranks);
    let log = |rank: &Rank| {
        let log = logged(logs.path(), std::slice::from_ref(rank), "watches ranks");
        log.matches("no network is known to lead to").count()
    };
    // Each calls those below it, and reaches the one before; rank 4 also reaches 0.
    let known: Vec<usize> = ranks.iter().map(log).collect();
    assert_eq!(known, [0, 0, 1, 2, 2]);
    for (rank, missed) in [(2, 0), (3, 0), (3, 1), (4, 1), (4, 2)] {
        let text = format!("no network is known to lead to rank {missed} ");
        logged(logs.path(), &ranks[rank..=rank], &text);
    }
    assert_works(&mut ranks);
    assert_all_ok(&mut ranks, "finalize");
}

/// The cables lead from each rank to the one after the next.
#[test]
fn ranks_may_have_any_numbers() {
    let _place = place();
    let cables: Vec<(usize, usize)> = (0..5).map(|host| (host, (host + 2) % 5)).collect();
    let Some(mut ranks) = hosts(5, &cables, &[]) else {
        return;
    };
    join(&mut ranks);
    assert_works(&mut ranks);
    assert_all_ok(&mut ranks, "finalize");
}

/// Rank 4 has a cable to rank 0's host, but no route to this address of it; ranks 2 and 3 have no
/// cable to it.
#[test]
fn ranks_that_know_one_address_of_rank_0_meet() {
    let _place = place();
    if !has(Need::Namespaces) {
        return;
    }
    let rank = |number: usize| {
        new_host(&[
            ("SPARK_CCL_RANK", &number.to_string()),
            ("SPARK_CCL_SIZE", "5"),
            ("SPARK_CCL_COMM_ID", "10.77.0.1:29555"),
            ("SPARK_CCL_SECRET", "a secret of all five ranks"),
        ])
    };
    let mut ranks: Vec<Rank> = (0..5).map(rank).collect();
    lay_all(&ranks, &around(5));
    assert_all_ok(&mut ranks, "join-by-environment");
    assert_works(&mut ranks);
    assert_all_ok(&mut ranks, "finalize");
}

#[test]
fn a_ring_that_is_cut_once_works_as_a_line() {
    let _place = place();
    let Some(mut ranks) = hosts(4, &[(0, 1), (1, 2), (2, 3)], &[]) else {
        return;
    };
    join(&mut ranks);
    assert_works(&mut ranks);
    assert_all_ok(&mut ranks, "finalize");
}

#[test]
fn ranks_on_both_sides_of_two_cuts_hear_who_is_missing_and_what_to_look_at() {
    let _place = place();
    let env = [("SPARK_CCL_INIT_TIMEOUT", "6")];
    let Some(mut ranks) = hosts(4, &[(0, 1), (2, 3)], &env) else {
        return;
    };
    let id = ranks[0].ask("id");
    for (number, rank) in ranks.iter_mut().enumerate() {
        rank.order(&format!("join {id} {number} 4"));
    }
    let answers: Vec<String> = ranks.iter().map(Rank::hear).collect();
    for answer in &answers[..2] {
        assert_contains(answer, &["ranks 2, 3 of 4 did not arrive"]);
    }
    for (number, answer) in (2..).zip(&answers[2..]) {
        let asked = format!("rank {number} asked other ranks for a way from 10.77.1.");
        assert_contains(
            answer,
            &["the rendezvous: 10.77.0.1:", &asked, "look at the cables"],
        );
    }
}

/// Ranks that all reach the rendezvous on another host, but may use only the cables. Also returns
/// their answers to the order to join.
fn met_elsewhere(cables: &[(usize, usize)]) -> Option<(Vec<Rank>, Vec<String>)> {
    let env = [
        ("SPARK_CCL_SOCKET_IFNAME", "cable"),
        ("SPARK_CCL_INIT_TIMEOUT", "30"),
    ];
    let mut ranks = hosts(4, cables, &env)?;
    let mut elsewhere = new_host(&[]);
    for (number, rank) in ranks.iter().enumerate() {
        let pids = [&elsewhere, rank].map(|rank| rank.pid().to_string());
        lay(&format!("lan{number}"), 10 + number, &pids);
    }
    let id = elsewhere.ask("id");
    for (number, rank) in ranks.iter_mut().enumerate() {
        rank.order(&format!("join {id} {number} 4"));
    }
    let answers = ranks.iter().map(Rank::hear).collect();
    Some((ranks, answers))
}

#[test]
fn only_the_cables_carry_where_the_rendezvous_is_on_another_network() {
    let _place = place();
    let Some((mut ranks, answers)) = met_elsewhere(&around(4)) else {
        return;
    };
    assert_eq!(answers, ["ok"; 4]);
    assert_works(&mut ranks);
    for link in links_of(&mut ranks, 0).split("; ").skip(1) {
        assert_contains(link, &["tcp 10.77."]);
        assert!(!link.contains("10.77.1"), "not over a cable: {link}");
    }
    assert_all_ok(&mut ranks, "finalize");
}

#[test]
fn a_pair_that_no_way_joins_is_named_to_all() {
    let _place = place();
    let Some((ranks, answers)) = met_elsewhere(&[(0, 1), (2, 3)]) else {
        return;
    };
    for answer in answers {
        assert_names(&answer, 0, ranks[0].pid());
        assert_names(&answer, 2, ranks[2].pid());
        assert_contains(
            &answer,
            &[
                "do not reach each other",
                "nothing joins ranks 0, 1 and ranks 2, 3",
                "SPARK_CCL_SOCKET_IFNAME",
            ],
        );
    }
}

/// News travels round the ring the other way.
#[test]
fn a_rank_that_dies_is_named_to_all_and_the_others_go_on_as_a_line() {
    let _place = place();
    let Some(mut ranks) = ring(5) else { return };
    assert_works(&mut ranks);
    for answer in all(&mut ranks, "loop ordinary 1000") {
        assert_eq!(answer, "running");
    }
    let mut killed = ranks.remove(2);
    killed.kill();
    for rank in &ranks {
        assert_names(&rank.hear(), 2, killed.pid());
    }
    for answer in all(&mut ranks, "recover") {
        assert_eq!(answer, "4");
    }
    for answer in all(&mut ranks, "explain ordinary 1000") {
        assert_contains(&answer, &["ring (between neighbours only"]);
    }
    assert_all_ok(&mut ranks, "call f32 all_reduce sum 100000");
    assert_all_ok(&mut ranks, "call f32 all_to_all 1000");
    assert_all_ok(&mut ranks, "finalize");
}
