//! No deadlock: a model of how ranks wait for each other, in calls one after the other.

use spark_ccl_testing::scramble;

use super::*;
use crate::Route;
use crate::route::OPERATIONS;

/// A step of a lane, with several peers at once.
#[derive(Clone, Copy)]
enum Step {
    Room(u32),
    Fill(u32),
    Consume(u32),
    /// Until carriers have taken all slots for these.
    Settle(u32),
}

#[derive(Clone, Copy)]
struct Call {
    operation: Operation,
    form: Form,
    root: usize,
    rounds: usize,
    ahead: usize,
}

impl Call {
    /// As `Exchange::direct` and `Exchange::shared`, and then `Slots::settle`.
    fn steps(self, rank: usize, ranks: usize) -> Vec<Step> {
        let route = Route::new(self.operation, self.form, rank, self.root, ranks);
        let others = |ranks: u32| ranks & !(1 << rank);
        let [to, on] = route.to.map(others);
        let [from, back] = route.from.map(others);
        let put = [Step::Fill(to)];
        let has_output = route.to[1] != on;
        let pass = match (self.form, route.sharers >> rank & 1) {
            (Form::Direct, _) => vec![Step::Consume(from)],
            (Form::Shared, 0) => vec![],
            _ if has_output => vec![Step::Consume(from), Step::Fill(on)],
            _ => vec![Step::Room(on), Step::Consume(from), Step::Fill(on)],
        };
        let take = [Step::Consume(back)];
        let stages = [(0, &put[..]), (self.ahead, &pass), (2 * self.ahead, &take)];
        let rounds = 0..self.rounds + 2 * self.ahead;
        let all = rounds.flat_map(|round| stages.map(|(behind, steps)| (round, behind, steps)));
        let all = all.filter(|&(round, behind, _)| (behind..behind + self.rounds).contains(&round));
        let settles = self.operation.is_rooted();
        let settle = settles.then_some(Step::Settle(to | on));
        all.flat_map(|(_, _, steps)| steps)
            .copied()
            .chain(settle)
            .collect()
    }
}

/// The state between two ranks, one way.
#[derive(Clone, Copy, Default)]
struct Edge {
    filled: usize,
    arrived: usize,
    consumed: usize,
}

impl Edge {
    /// Posts slots as far as the peer has room, which frees their sources. A slow carrier does this
    /// at last, too.
    fn carry(&mut self, depth: usize) {
        self.arrived = self.filled.min(self.consumed + depth);
    }
}

struct Ranks {
    edges: Vec<Vec<Edge>>,
    depth: usize,
}

impl Ranks {
    /// Does a step, if it need not wait.
    fn advance(&mut self, rank: usize, step: Step) -> bool {
        let ranks = self.edges.len();
        let (Step::Room(peers) | Step::Fill(peers) | Step::Consume(peers) | Step::Settle(peers)) =
            step;
        let peers = || (0..ranks).filter(|&peer| peers >> peer & 1 == 1);
        let edges = &mut self.edges;
        let may = match step {
            Step::Room(_) | Step::Fill(_) => peers().all(|peer| {
                let edge = edges[rank][peer];
                edge.filled - edge.arrived < self.depth
            }),
            Step::Consume(_) => peers().all(|peer| {
                let edge = edges[peer][rank];
                edge.arrived > edge.consumed
            }),
            Step::Settle(_) => peers().all(|peer| {
                let edge = edges[rank][peer];
                edge.filled == edge.arrived
            }),
        };
        for peer in peers().filter(|_| may) {
            match step {
                Step::Room(_) | Step::Settle(_) => {}
                Step::Fill(_) => edges[rank][peer].filled += 1,
                Step::Consume(_) => edges[peer][rank].consumed += 1,
            }
            edges[rank][peer].carry(self.depth);
            edges[peer][rank].carry(self.depth);
        }
        may
    }
}

/// Whether all ranks come to their end. Ranks wait for single slots only, in an order of their own,
/// and each slot has one sender and one receiver. So if one order of running them comes to the end,
/// all do, also with one rank arbitrarily late.
fn end(calls: &[Call], ranks: usize, depth: usize) -> bool {
    let steps = (0..ranks).map(|rank| calls.iter().flat_map(move |call| call.steps(rank, ranks)));
    let steps: Vec<Vec<_>> = steps.map(Iterator::collect).collect();
    let mut next = vec![0; ranks];
    let edges = vec![vec![Edge::default(); ranks]; ranks];
    let mut world = Ranks { edges, depth };
    loop {
        let mut moved = false;
        for rank in 0..ranks {
            while let Some(&step) = steps[rank].get(next[rank])
                && world.advance(rank, step)
            {
                next[rank] += 1;
                moved = true;
            }
        }
        if !moved {
            return (0..ranks).all(|rank| next[rank] == steps[rank].len());
        }
    }
}

#[test]
fn no_more_rounds_fit_into_a_depth() {
    for form in [Form::Direct, Form::Shared] {
        for depth in 1..=8 {
            let ahead = form.ahead(depth);
            assert_eq!(
                [ahead, ahead + 1].map(|ahead| form.depth(ahead)),
                [depth, depth + 1]
            );
        }
    }
}

#[test]
fn the_smallest_depth_suffices_and_one_less_does_not_where_all_exchange() {
    for (operation, ranks, ahead) in OPERATIONS
        .into_iter()
        .flat_map(|operation| (3..=8).map(move |ranks| (operation, ranks)))
        .flat_map(|(operation, ranks)| (1..=8).map(move |ahead| (operation, ranks, ahead)))
    {
        for &form in Form::of(operation) {
            let call = Call {
                operation,
                form,
                root: ahead % ranks,
                rounds: 6 * ahead + 3,
                ahead,
            };
            let depth = form.depth(ahead);
            let what = format!("{operation} {form:?} {ranks} {ahead} {depth}");
            assert!(end(&[call], ranks, depth), "{what}");
            // A depth of none is no lane. A root's slots go one way.
            let is_less = depth > 1 && end(&[call], ranks, depth - 1);
            assert_eq!(is_less, depth > 1 && operation.is_rooted(), "{what}");
        }
    }
}

/// A rank may be calls ahead of those to which it only sends.
#[test]
fn calls_of_all_kinds_follow_each_other_in_the_smallest_depth() {
    for (ranks, depth, seed) in (2..=8)
        .flat_map(|ranks| (1..=5).map(move |depth| (ranks, depth)))
        .flat_map(|(ranks, depth)| (0..8).map(move |seed| (ranks, depth, seed)))
    {
        let calls = (0..40).map(|number| {
            let any = |what, limit: usize| scramble(seed << 8 | number, what) as usize % limit;
            let operation = OPERATIONS[any(1, 8)];
            let forms = Form::of(operation);
            let is_two = ranks == 2 && operation.is_rooted();
            let form = forms[if is_two { 0 } else { any(2, forms.len()) }];
            Call {
                operation,
                form,
                root: any(3, ranks),
                rounds: any(4, 12),
                ahead: form.ahead(depth),
            }
        });
        let calls: Vec<_> = calls.collect();
        assert!(end(&calls, ranks, depth), "{ranks} {depth} {seed}");
    }
}

/// The waits of a rank's launch: the steps of each of its roles, which run at the same time.
type Roles = Vec<Vec<Step>>;

/// Whether all ranks come to their end, each by launches of messages, one after the other.
fn mail_ends(launches: &[Vec<Roles>], depth: usize) -> bool {
    let ranks = launches.len();
    let edges = vec![vec![Edge::default(); ranks]; ranks];
    let mut world = Ranks { edges, depth };
    // By rank, the launch, and how far each of its roles is.
    let mut at: Vec<(usize, Vec<usize>)> = vec![(0, Vec::new()); ranks];
    loop {
        let mut moved = false;
        for rank in 0..ranks {
            let (launch, done) = &mut at[rank];
            let Some(roles) = launches[rank].get(*launch) else {
                continue;
            };
            done.resize(roles.len(), 0);
            for (role, done) in roles.iter().zip(&mut *done) {
                while let Some(&step) = role.get(*done)
                    && world.advance(rank, step)
                {
                    *done += 1;
                    moved = true;
                }
            }
            if roles
                .iter()
                .zip(&*done)
                .all(|(role, &done)| role.len() == done)
            {
                (*launch, *done) = (*launch + 1, Vec::new());
                moved = true;
            }
        }
        if !moved {
            return at
                .iter()
                .zip(launches)
                .all(|((at, _), all)| *at == all.len());
        }
    }
}

/// The roles of a ring: each rank sends this number of slots to the next one, and receives as many.
fn ring(ranks: usize, slots: usize) -> Vec<Vec<Roles>> {
    let of = |rank: usize| {
        let (next, previous) = (1 << ((rank + 1) % ranks), 1 << ((rank + ranks - 1) % ranks));
        // As `Mail::run`.
        let mut sent = vec![Step::Fill(next); slots];
        sent.push(Step::Settle(next));
        vec![vec![sent, vec![Step::Consume(previous); slots]]]
    };
    (0..ranks).map(of).collect()
}

/// Of a depth of one, too; and only since roles do not wait for each other.
#[test]
fn rings_of_messages_pass_in_any_depth() {
    for (ranks, depth) in (2..=8).flat_map(|ranks| (1..=8).map(move |depth| (ranks, depth))) {
        let ring = ring(ranks, 5 * depth);
        assert!(mail_ends(&ring, depth), "{ranks} {depth}");
        let in_one_role = |launches: Vec<Roles>| {
            let all = launches.into_iter().map(|roles| vec![roles.concat()]);
            all.collect::<Vec<Roles>>()
        };
        let one_by_one: Vec<_> = ring.into_iter().map(in_one_role).collect();
        assert!(!mail_ends(&one_by_one, depth), "{ranks} {depth}");
    }
}

/// A message ends without its receiver if its slots have room in the receiver's box.
#[test]
fn a_message_needs_no_receiver_up_to_the_depth() {
    for depth in 1..=8 {
        for slots in [depth, depth + 1] {
            let mut sent = vec![Step::Fill(0b10); slots];
            sent.push(Step::Settle(0b10));
            let away = [vec![vec![sent]], vec![]];
            assert_eq!(mail_ends(&away, depth), slots == depth, "{slots} {depth}");
        }
    }
}
