//! Ranks over RDMA, on real queue pairs. The variable RAILS describes the ports, as on the emulated
//! machine that CI makes; without it the tests are skipped.

mod memory;
mod stand_in;

use std::process::Command;
use std::time::{Duration, Instant};

use spark_ccl_testing::{Need, has};

use crate::hosts::{lay, new_host};
use crate::processes::{
    Rank, all, assert_all_ok, assert_contains, assert_names, join, links_of, place, promptly,
};

/// The layout of the machine's ports.
fn layout() -> Option<String> {
    has(Need::Rails).then(|| std::env::var("RAILS").unwrap())
}

/// Whether a rail has two ports as its ends, which only two ranks can share; otherwise it has one.
fn has_two_ends() -> Option<bool> {
    layout().map(|layout| layout != "one")
}

/// `size` ranks with `rails` rails each.
fn ranks(size: usize, rails: usize) -> Vec<Rank> {
    ranks_with(size, rails, &[])
}

/// The same, with settings.
fn ranks_with(size: usize, rails: usize, settings: &[(&str, &str)]) -> Vec<Rank> {
    let mut ranks = started(size, rails, settings);
    join(&mut ranks);
    ranks
}

/// The same, not joined yet.
pub(crate) fn started(size: usize, rails: usize, settings: &[(&str, &str)]) -> Vec<Rank> {
    let ends = match has_two_ends() {
        Some(true) => ["a", "b"],
        _ => ["", ""],
    };
    let start = |rank: usize| {
        let end = ends[rank % 2];
        let hcas: Vec<_> = (0..rails).map(|rail| format!("rxe{rail}{end}")).collect();
        let hcas = format!("={}", hcas.join(","));
        let mut env = vec![
            ("SPARK_CCL_SHM", "0"),
            ("SPARK_CCL_NET", "rdma"),
            ("NCCL_IB_HCA", &hcas),
            // A rail is dropped after 4 s without progress. After only 1 s, an emulated machine
            // with a busy processor has dropped working rails.
            ("NCCL_IB_TIMEOUT", "16"),
        ];
        env.extend(settings);
        Rank::start(&env)
    };
    (0..size).map(start).collect()
}

/// Two ranks, for cable faults under a link that a first call has made.
fn two_ends(rails: usize) -> Option<Vec<Rank>> {
    has_two_ends()?.then(|| {
        let mut ranks = ranks(2, rails);
        assert_all_ok(&mut ranks, "call barrier");
        ranks
    })
}

/// Runs the emulated machine's command that changes rails.
fn rails(arguments: &[&str]) {
    let status = Command::new("rails").args(arguments).status().unwrap();
    assert!(status.success(), "rails {arguments:?}: {status}");
}

/// A sum over all ranks that lends its messages, at any size.
const RING: (&str, &str) = ("SPARK_CCL_ALGO", "all_reduce:ring");

fn call_everything(ranks: &mut [Rank], count: usize) {
    call_everything_on(ranks, "", count);
}

/// On ordinary memory, or on registered memory if `memory` is `"registered "`.
fn call_everything_on(ranks: &mut [Rank], memory: &str, count: usize) {
    let last = ranks.len() - 1;
    for call in [
        format!("f32 all_reduce sum {count}"),
        format!("f64 all_reduce max {count}"),
        format!("i32 all_gather {count}"),
        format!("f32 reduce {last} {count}"),
        format!("f64 reduce_scatter {count}"),
        format!("i32 broadcast {last} {count}"),
        format!("f32 all_to_all {count}"),
    ] {
        assert_all_ok(ranks, &format!("call {memory}{call}"));
    }
    assert_all_ok(ranks, "call barrier");
    ranks[0].order(&format!("call {memory}f32 send {last} {count}"));
    assert_eq!(
        ranks[last].ask(&format!("call {memory}f32 recv 0 {count}")),
        "ok"
    );
    assert_eq!(ranks[0].hear(), "ok");
}

#[test]
fn ranks_reduce_and_exchange_over_two_rails() {
    let _place = place();
    let Some(two_ends) = has_two_ends() else {
        return;
    };
    let sizes: &[usize] = if two_ends { &[2] } else { &[2, 3, 4] };
    for &size in sizes {
        let mut ranks = ranks(size, 2);
        let links = links_of(&mut ranks, 0);
        assert_contains(&links, &["rdma rxe0", "rxe1"]);
        let plans = all(&mut ranks, "explain ordinary 100000");
        for plan in &plans {
            assert_contains(plan, &["over RDMA"]);
            assert_eq!(*plan, plans[0]);
        }
        for count in [1, 1003, 200_003] {
            call_everything(&mut ranks, count);
        }
        assert_all_ok(&mut ranks, "finalize");
    }
}

/// Unless RDMA is demanded, ranks of one host do not use it: the plan must know.
#[test]
fn ranks_of_one_host_without_shared_memory_plan_for_tcp() {
    let _place = place();
    if has_two_ends().is_none() {
        return;
    }
    let mut ranks = ranks_with(2, 1, &[("SPARK_CCL_NET", "auto")]);
    call_everything(&mut ranks, 1003);
    assert_contains(&links_of(&mut ranks, 0), &["tcp"]);
    for plan in all(&mut ranks, "explain registered 100000") {
        assert!(
            !plan.contains("RDMA") && !plan.contains("zero-copy"),
            "{plan}"
        );
    }
    assert_all_ok(&mut ranks, "finalize");
}

#[test]
fn registered_memory_goes_from_device_to_device() {
    let _place = place();
    let Some(two_ends) = has_two_ends() else {
        return;
    };
    let sizes: &[usize] = if two_ends { &[2] } else { &[2, 3, 4] };
    for &size in sizes {
        let mut ranks = ranks_with(size, 2, &[("SPARK_CCL_PATH", "zero-copy"), RING]);
        let why = ranks[0].ask("explain registered 200003");
        assert_contains(&why, &["zero-copy between devices"]);
        for count in [1, 1003, 200_003] {
            call_everything_on(&mut ranks, "registered ", count);
        }
        let refused = ranks[0].ask("call f32 all_reduce sum 200003");
        assert_contains(&refused, &["not registered with this rank's RDMA devices"]);
        assert_all_ok(&mut ranks, "finalize");
    }
}

#[test]
fn registered_memory_of_one_rank_meets_ordinary_memory_of_another() {
    let _place = place();
    if has_two_ends() != Some(true) {
        return;
    }
    let mut ranks = ranks_with(2, 2, &[RING]);
    for calls in [["", "registered "], ["registered ", ""]] {
        for call in ["all_reduce sum", "all_gather", "all_to_all", "broadcast 0"] {
            for (rank, memory) in ranks.iter_mut().zip(calls) {
                rank.order(&format!("call {memory}f32 {call} 200003"));
            }
            for rank in &ranks {
                assert_eq!(rank.hear(), "ok", "{calls:?} {call}");
            }
        }
    }
    assert_all_ok(&mut ranks, "finalize");
}

#[test]
fn one_pair_falls_back_to_tcp_and_all_plan_alike() {
    let _place = place();
    if has_two_ends() != Some(false) {
        return;
    }
    // The first rank reaches both others by RDMA; these two have no rail in common.
    let devices = ["=rxe0,rxe1", "=rxe0", "=rxe1"];
    let mut ranks: Vec<Rank> = devices.map(|hca| new_host(&[("NCCL_IB_HCA", hca)])).into();
    for (number, pair) in [[0, 1], [0, 2], [1, 2]].into_iter().enumerate() {
        let pids = pair.map(|rank| ranks[rank].pid().to_string());
        lay(&format!("cable{number}"), number, &pids);
    }
    join(&mut ranks);
    let links = links_of(&mut ranks, 1);
    assert_contains(&links, &["rdma rxe0", "tcp 10.77.2.1"]);
    // They know each other's ports, but not which ones reach each other.
    for plan in all(&mut ranks, "explain ordinary 1000000") {
        assert_contains(&plan, &["over RDMA"]);
    }
    call_everything(&mut ranks, 1003);
    // Without the last rank there are no links over TCP.
    for (rank, color) in ranks.iter_mut().zip([0, 0, 1]) {
        rank.order(&format!("split {color} 0"));
    }
    for rank in &ranks {
        assert_eq!(rank.hear(), "ok");
    }
    for plan in all(&mut ranks[..2], "explain ordinary 1000000") {
        assert_contains(&plan, &["over RDMA"]);
    }
    call_everything(&mut ranks[..2], 1003);
}

/// A port that loses packets. Dropping it ends that, even when the test fails, for the sake of the
/// other tests.
pub(crate) struct Impaired(&'static str);

/// Makes both rails lose this percentage of packets.
pub(crate) fn impair_all(percent: usize) -> Vec<Impaired> {
    let impaired = BOTH_RAILS.map(|port| Impaired::new(port, &format!("{percent}%")));
    impaired.into()
}

/// Cuts the cable of the first rail.
pub(crate) fn cut_first() -> Vec<Impaired> {
    let impaired = FIRST_RAIL.map(|port| Impaired::new(port, "100%"));
    impaired.into()
}

const FIRST_RAIL: [&str; 2] = ["r0a", "r0b"];
const BOTH_RAILS: [&str; 4] = ["r0a", "r0b", "r1a", "r1b"];

impl Impaired {
    fn new(port: &'static str, loss: &str) -> Self {
        rails(&["impair", port, "loss", loss]);
        Self(port)
    }

    /// How many packets it has lost so far.
    pub(crate) fn lost(&self) -> u64 {
        let ended = Command::new("rails").args(["lost", self.0]).output();
        let said = String::from_utf8(ended.unwrap().stdout).unwrap();
        said.trim().parse().unwrap()
    }
}

impl Drop for Impaired {
    fn drop(&mut self) {
        rails(&["impair", self.0]);
    }
}

/// Calls everything while ports lose packets. No rail may be dropped.
///
/// A lost packet costs at most a timeout of the device, and its message continues from there.
/// soft-RoCE repeats without end, and a link drops a rail on which nothing ends within sixteen
/// timeouts. With such small slots, a message has 9 packets. At 5 %, one in 4e9 messages loses 11
/// packets, and there are fewer than 1,000 messages. So the chance to fail is below 1e-6, even if
/// each timeout lasts half as long again. (With the 65 packets of ordinary slots, one in 1e5
/// messages would lose 15.)
///
/// The timeout, 0.5 s, is longer than the machine stands still. With a shorter one, the device
/// repeats packets that are only late. Then Linux 6.12's soft-RoCE takes a duplicate
/// acknowledgement within a read for the read's end, reports success, and fails the queue pair (it
/// warns of that in `rxe_comp.c`).
fn lose_packets(ports: &[&'static str], rails: usize) {
    let settings = [("SPARK_CCL_SLOT_BYTES", "32768"), ("NCCL_IB_TIMEOUT", "17")];
    let healthy = &*format!("{rails} in use, 0 dropped, 0 returned");
    for loss in ["1%", "5%"] {
        if has_two_ends() != Some(true) {
            return;
        }
        let mut ranks = ranks_with(2, rails, &settings);
        let impaired: Vec<_> = ports.iter().map(|port| Impaired::new(port, loss)).collect();
        call_everything(&mut ranks, 30_003);
        call_everything_on(&mut ranks, "registered ", 30_003);
        assert_eq!(health(&mut ranks), [healthy; 2], "{loss}");
        let lost: u64 = impaired.iter().map(Impaired::lost).sum();
        assert!(lost > 0, "nothing was lost");
        drop(impaired);
        assert_all_ok(&mut ranks, "finalize");
    }
}

#[test]
fn lost_packets_of_the_only_rail_change_no_result() {
    let _place = place();
    lose_packets(&FIRST_RAIL, 1);
}

#[test]
fn lost_packets_of_both_rails_change_no_result() {
    let _place = place();
    lose_packets(&BOTH_RAILS, 2);
}

#[test]
fn a_killed_rank_is_named_by_all() {
    let _place = place();
    if has_two_ends() != Some(false) {
        return;
    }
    for memory in ["ordinary", "registered"] {
        let mut ranks = ranks(3, 2);
        for answer in all(&mut ranks, &format!("loop {memory} 100000")) {
            assert_eq!(answer, "running");
        }
        std::thread::sleep(Duration::from_millis(300));
        let since = Instant::now();
        let mut killed = ranks.remove(1);
        killed.kill();
        for rank in &ranks {
            let answer = rank.hear_before(since + promptly());
            assert_names(&answer, 1, killed.pid());
            assert_contains(&answer, &["died"]);
        }
    }
}

#[test]
fn a_cable_that_carries_nothing_for_a_moment_changes_no_result() {
    let _place = place();
    let Some(mut ranks) = two_ends(1) else { return };
    for rank in &mut ranks {
        rank.order("call f32 all_reduce sum 300003");
    }
    rails(&["impair", "r0b", "loss", "100%"]);
    std::thread::sleep(Duration::from_millis(300));
    rails(&["impair", "r0b"]);
    for rank in &ranks {
        assert_eq!(rank.hear(), "ok");
    }
    call_everything(&mut ranks, 1003);
    assert_all_ok(&mut ranks, "finalize");
}

/// The health of the rails between two ranks, as each reports it.
fn health(ranks: &mut [Rank]) -> [String; 2] {
    [(0, 1), (1, 0)].map(|(rank, peer)| ranks[rank].ask(&format!("rails {peer}")))
}

#[test]
fn a_cable_that_is_cut_in_a_call_changes_no_result_and_is_used_again_later() {
    let _place = place();
    let Some(mut ranks) = two_ends(2) else { return };
    assert_eq!(health(&mut ranks), ["2 in use, 0 dropped, 0 returned"; 2]);
    for rank in &mut ranks {
        rank.order("call f32 all_reduce sum 4000003");
    }
    let cut = cut_first();
    for rank in &ranks {
        assert_eq!(rank.hear(), "ok");
    }
    assert_eq!(health(&mut ranks), ["1 in use, 1 dropped, 0 returned"; 2]);
    drop(cut);
    // Tries are up to 30 s apart, and one more may fail on a slow machine.
    let until = Instant::now() + Duration::from_secs(300);
    while health(&mut ranks) != ["2 in use, 1 dropped, 1 returned"; 2] {
        assert!(Instant::now() < until, "{:?}", health(&mut ranks));
        assert_all_ok(&mut ranks, "call f32 all_reduce sum 100003");
    }
    call_everything(&mut ranks, 100_003);
    assert_eq!(health(&mut ranks), ["2 in use, 1 dropped, 1 returned"; 2]);
    assert_all_ok(&mut ranks, "finalize");
}

#[test]
fn a_rank_that_is_killed_while_a_rail_is_tried_is_named() {
    let _place = place();
    let Some(mut ranks) = two_ends(2) else { return };
    for answer in all(&mut ranks, "loop ordinary 100000") {
        assert_eq!(answer, "running");
    }
    let _cut = cut_first();
    // Gives the link time to drop the rail, and to try it again.
    std::thread::sleep(Duration::from_secs(3));
    let since = Instant::now();
    let mut killed = ranks.remove(1);
    killed.kill();
    let answer = ranks[0].hear_before(since + promptly());
    assert_names(&answer, 1, killed.pid());
    assert_contains(&answer, &["died"]);
}

#[test]
fn the_only_rail_is_named_when_it_stays_down() {
    let _place = place();
    let Some(mut ranks) = two_ends(1) else { return };
    assert_all_ok(&mut ranks, "call barrier");
    rails(&["down", "r0b"]);
    for answer in all(&mut ranks, "call f32 all_reduce sum 300003") {
        assert_contains(&answer, &["error", "rxe0"]);
    }
    rails(&["up", "r0b"]);
}
