//! Ways through others, in rings and in broken rings.

use proptest::prelude::*;

use super::*;

/// The wiring of ranks on hosts of their own, where only these pairs are joined.
fn wired(size: u32, pairs: &[(u32, u32)]) -> Wiring {
    let survey = |rank: u32| {
        let is_joined =
            |peer: &u32| pairs.contains(&(*peer, rank)) || pairs.contains(&(rank, *peer));
        Survey {
            reached: (0..rank)
                .filter(is_joined)
                .fold(0, |mask, peer| mask | 1 << peer),
            missed: (0..rank)
                .filter(|peer| !is_joined(peer))
                .map(|peer| (peer, "no route".to_owned()))
                .collect(),
            time_left: Duration::ZERO,
        }
    };
    let surveys: Vec<Survey> = (0..size).map(survey).collect();
    Wiring::of(&surveys.iter().collect::<Vec<_>>())
}

fn ring(size: u32) -> Vec<(u32, u32)> {
    (0..size).map(|rank| (rank, (rank + 1) % size)).collect()
}

const NOBODY: &dyn Fn(u32) -> bool = &|_| false;

#[test]
fn where_all_reach_each_other_nothing_is_said() {
    let wiring = wired(3, &ring(3));
    assert!(wiring.is_complete() && wiring.joins(0, 2));
    assert_eq!(wiring.encode(), []);
    assert_eq!(wiring.next_hop(0, 2, NOBODY), Some(2));
}

#[test]
fn a_ring_has_two_ways_round_and_the_shorter_is_first() {
    let wiring = wired(5, &ring(5));
    assert!(wiring.joins(4, 0) && !wiring.joins(0, 2));
    assert_eq!(wiring.ways(0, 2), [vec![1, 2], vec![4, 3, 2]]);
    assert_eq!(wiring.next_hop(0, 3, NOBODY), Some(4));
    assert_eq!(wiring.next_hop(0, 3, &|rank| rank == 4), Some(1));
    assert_eq!(wiring.next_hop(0, 3, &|rank| rank == 4 || rank == 1), None);
    assert_eq!(wiring.parts(), [[0, 1, 2, 3, 4]]);
}

#[test]
fn rings_of_3_to_8_lead_everywhere_in_any_order() {
    for size in 3..=8 {
        // Cabled in steps coprime to the size: neighbours are not consecutive.
        for step in (1..size).filter(|step| (2..=*step).all(|d| step % d + size % d > 0)) {
            let pairs: Vec<_> = (0..size).map(|rank| (rank, (rank + step) % size)).collect();
            let wiring = wired(size, &pairs);
            for (from, to) in (0..size).flat_map(|from| (0..size).map(move |to| (from, to))) {
                if from == to || wiring.joins(from, to) {
                    continue;
                }
                let mut hops = 0;
                let mut at = from;
                while at != to {
                    let next = wiring.next_hop(at, to, NOBODY).unwrap();
                    assert!(wiring.joins(at, next));
                    (at, hops) = (next, hops + 1);
                }
                assert!(hops <= size / 2, "{size} {step} {from} {to}");
                let ways = wiring.ways(from, to);
                assert_eq!((ways.len(), ways[0].len()), (2, hops as usize));
            }
        }
    }
}

#[test]
fn a_line_is_one_part_and_a_ring_that_is_cut_twice_is_two() {
    let line = wired(4, &[(0, 1), (1, 2), (2, 3)]);
    assert_eq!(line.ways(0, 3), [[1, 2, 3]]);
    assert_eq!(line.parts(), [[0, 1, 2, 3]]);
    let cut = wired(4, &[(0, 1), (2, 3)]);
    assert_eq!(cut.parts(), [[0, 1], [2, 3]]);
    assert!(cut.ways(0, 3).is_empty());
    assert_eq!(cut.next_hop(0, 3, NOBODY), None);
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_panic(bytes: Vec<u8>, size in 0usize..12) {
        let _ = Survey::decode(&bytes);
        if let Ok(wiring) = Wiring::decode(&bytes, size) {
            prop_assert_eq!(wiring.encode(), bytes);
            let _ = wiring.parts();
        }
    }

    #[test]
    fn surveys_and_wirings_survive(reached: u8, count in 0u32..8, why in ".{0,40}") {
        let missed = (0..count).map(|rank| (rank, why.clone())).collect();
        let survey = Survey { reached, missed, time_left: Duration::from_millis(5) };
        let bytes = survey.encode();
        prop_assert!(bytes.len() <= MAX_REPORT);
        let read = Survey::decode(&bytes).unwrap();
        prop_assert_eq!((read.reached, read.missed.len()), (reached, count as usize));
        let wiring = wired(8, &ring(8));
        prop_assert_eq!(Wiring::decode(&wiring.encode(), 8), Ok(wiring));
    }

    #[test]
    fn ways_are_ways(pairs in prop::collection::vec((0u32..8, 0u32..8), 0..14), to in 1u32..8) {
        let wiring = wired(8, &pairs);
        for way in wiring.ways(0, to) {
            prop_assert_eq!(way.last(), Some(&to));
            let whole: Vec<u32> = [&[0], &way[..]].concat();
            prop_assert!(whole.windows(2).all(|pair| wiring.joins(pair[0], pair[1])));
            let mut distinct = whole.clone();
            distinct.sort_unstable();
            distinct.dedup();
            prop_assert_eq!(distinct.len(), whole.len());
        }
        let together = wiring.parts().iter().any(|part| part.contains(&0) && part.contains(&to));
        prop_assert_eq!(together, wiring.joins(0, to) || !wiring.ways(0, to).is_empty());
    }
}
