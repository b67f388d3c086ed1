//! Compares the race detection with an oracle on random events.

mod oracle;

use std::collections::BTreeSet;
use std::ops::Range;

use oracle::Oracle;
use proptest::prelude::*;
use proptest::sample::Index;

use super::Order;
use super::open::Access;
use crate::defect::Defect;
use crate::lockstep::ProcessId;
use crate::step::Rank;

const SIZE: usize = 3;
const CHANNELS: u32 = 2;
const ELEMENTS: usize = 12;

#[derive(Debug, Clone)]
enum Event {
    Send {
        from: ProcessId,
        to: Rank,
    },
    /// Receives one of the messages in flight.
    Arrive(Index),
    Access(Use),
}

#[derive(Debug, Clone)]
struct Use {
    at: ProcessId,
    owner: Rank,
    range: Range<usize>,
    is_write: bool,
    is_awaited: bool,
}

impl Use {
    fn conflicts(&self, other: &Self) -> bool {
        self.owner == other.owner
            && (self.is_write || other.is_write)
            && self.range.start.max(other.range.start) < self.range.end.min(other.range.end)
    }
}

fn any_process() -> impl Strategy<Value = ProcessId> {
    (0..SIZE as Rank, 0..CHANNELS).prop_map(|(rank, channel)| ProcessId { rank, channel })
}

fn any_event() -> impl Strategy<Value = Event> {
    let send = (any_process(), 1..SIZE as Rank).prop_map(|(from, distance)| Event::Send {
        from,
        to: (from.rank + distance) % SIZE as Rank,
    });
    let used = (
        any_process(),
        0..SIZE as Rank,
        0..ELEMENTS,
        1..6_usize,
        0..3_u8,
    );
    let access = used.prop_map(|(at, owner, start, len, kind)| {
        Event::Access(Use {
            at,
            owner,
            range: start..(start + len).min(ELEMENTS),
            is_write: kind == 1,
            is_awaited: kind == 2,
        })
    });
    let arrive = any::<Index>().prop_map(Event::Arrive);
    prop_oneof![3 => send, 4 => arrive, 2 => access]
}

/// Replays the events; `on_access` does the accesses.
fn replay(events: &[Event], mut on_access: impl FnMut(&mut Order, &Use)) -> Order {
    let mut order = Order::new(SIZE, CHANNELS);
    let mut in_flight = Vec::new();
    for event in events {
        match event {
            Event::Send { from, to } => {
                let to = ProcessId { rank: *to, ..*from };
                in_flight.push((to, order.send(*from)));
            }
            Event::Arrive(which) if !in_flight.is_empty() => {
                let (to, clock) = in_flight.remove(which.index(in_flight.len()));
                order.receive(to, &clock);
            }
            Event::Arrive(_) => {}
            Event::Access(used) => on_access(&mut order, used),
        }
    }
    order
}

fn at(rank: Rank) -> ProcessId {
    ProcessId { rank, channel: 0 }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn accesses_find_all_elements_they_race_for(
        events in prop::collection::vec(any_event(), 0..200),
    ) {
        let oracle = Oracle::of(&events);
        let ranges: Vec<_> = oracle.uses.iter().map(|(used, _)| used.range.clone()).collect();
        let elements = |earlier: &BTreeSet<usize>, later: usize| -> BTreeSet<usize> {
            let all = earlier.iter().flat_map(|earlier| ranges[*earlier].clone());
            all.filter(|element| ranges[later].contains(element)).collect()
        };
        let mut number = 0;
        replay(&events, |order, used| {
            let Order { clocks, memories } = order;
            let access = Access {
                by: clocks.now(used.at),
                start: used.range.start,
                index: number as u32,
                is_write: used.is_write,
                is_awaited: used.is_awaited,
            };
            let mut found = BTreeSet::new();
            let open = &mut memories[used.owner as usize].open;
            open.add(access, used.range.clone(), clocks.is_before(used.at), |earlier| {
                found.insert(earlier.index as usize);
            });
            let all: BTreeSet<_> = oracle.races(number).collect();
            assert!(found.is_subset(&all), "{found:?} {all:?}");
            assert_eq!(elements(&found, number), elements(&all, number));
            number += 1;
        });
    }

    #[test]
    fn the_first_rank_whose_memory_is_raced_for_is_reported(
        events in prop::collection::vec(any_event(), 0..60),
    ) {
        let oracle = Oracle::of(&events);
        let order = replay(&events, |order, used| {
            let Use { at, owner, range, is_write, is_awaited } = used.clone();
            order.record(at, owner, range, is_write, is_awaited);
        });
        let raced = (0..SIZE as Rank).find(|owner| !oracle.ranks(*owner).is_empty());
        match (order.finish(), raced) {
            (Ok(()), None) => {}
            (Err(Defect::Race { owner, ranks }), Some(raced)) => {
                prop_assert_eq!(owner, raced);
                prop_assert!(oracle.ranks(owner).contains(&ranks), "{:?}", ranks);
            }
            (seen, expected) => prop_assert!(false, "{:?} {:?}", seen, expected),
        }
    }
}

#[test]
fn the_first_race_in_memory_is_reported() {
    let mut order = Order::new(3, 1);
    order.access(at(0), 0, 4..8, true);
    order.borrow(at(2), 0, 2..6);
    order.borrow(at(1), 0, 4..6);
    let race = Defect::Race {
        owner: 0,
        ranks: [2, 0],
    };
    assert_eq!(order.finish(), Err(race));
}

#[test]
fn ordered_accesses_are_dropped() {
    let mut order = Order::new(2, 1);
    for turn in 0..100 {
        let (rank, other) = (turn % 2, (turn + 1) % 2);
        order.access(at(rank), 0, 0..8, true);
        order.access(at(rank), 0, 2..4, false);
        let clock = order.send(at(rank));
        order.receive(at(other), &clock);
    }
    let open = order.memories[0].open.iter().count();
    // The last write, in three segments, and the read of one of them.
    assert_eq!(open, 4);
}
