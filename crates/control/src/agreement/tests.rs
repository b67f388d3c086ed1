//! Ranks agree while their messages are late by any time, and some of them stop, wake up and end.

use std::collections::VecDeque;

use super::*;

/// Events that reach a rank from another one, in order.
#[derive(Debug, Clone)]
enum News {
    Proposal(Proposal),
    Ended,
}

/// A rank's present action.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Doing {
    Agrees,
    /// It is in the last communicator that it has formed.
    Works,
    LeftOut,
    Stopped,
    Ended,
}

struct Rank {
    agreement: Agreement,
    sight: Sight,
    doing: Doing,
    /// The communicators that it has formed.
    formed: Vec<Vec<u32>>,
}

struct World {
    ranks: Vec<Rank>,
    /// By sender and receiver.
    streams: HashMap<(u32, u32), VecDeque<News>>,
    random: u64,
}

impl World {
    fn new(size: u32, seed: u64) -> Self {
        let all: Vec<u32> = (0..size).collect();
        let rank = |me| {
            let mut agreement = Agreement::new(me, &all);
            agreement.begin().unwrap();
            Rank {
                agreement,
                sight: Sight {
                    members: all.iter().copied().collect(),
                    ..Sight::default()
                },
                doing: Doing::Agrees,
                formed: Vec::new(),
            }
        };
        Self {
            ranks: (0..size).map(rank).collect(),
            streams: HashMap::new(),
            random: seed,
        }
    }

    fn below(&mut self, limit: usize) -> usize {
        self.random = self
            .random
            .wrapping_mul(0x5851_F42D_4C95_7F2D)
            .wrapping_add(0x1405_7B7E_F767_814F);
        (self.random >> 33) as usize % limit
    }

    fn size(&self) -> u32 {
        self.ranks.len() as u32
    }

    fn rank(&mut self, rank: u32) -> &mut Rank {
        &mut self.ranks[rank as usize]
    }

    fn tell(&mut self, from: u32, news: &News) {
        for to in (0..self.size()).filter(|&to| to != from) {
            let stream = self.streams.entry((from, to)).or_default();
            stream.push_back(news.clone());
        }
    }

    /// Delivers one piece of news, of any stream. Returns whether there was one.
    fn deliver(&mut self) -> bool {
        let is_stopped = |to: u32| self.ranks[to as usize].doing == Doing::Stopped;
        let open = self
            .streams
            .iter()
            .filter(|(way, news)| !news.is_empty() && !is_stopped(way.1));
        let mut open: Vec<(u32, u32)> = open.map(|(&way, _)| way).collect();
        open.sort_unstable();
        if open.is_empty() {
            return false;
        }
        let (from, to) = open[self.below(open.len())];
        let news = self.streams.get_mut(&(from, to)).unwrap().pop_front();
        let sight = &mut self.rank(to).sight;
        match news.unwrap() {
            News::Proposal(proposal) => {
                sight.theirs.insert(from, proposal);
            }
            News::Ended => {
                sight.gone.insert(from);
                sight.ended.insert(from);
            }
        }
        true
    }

    fn look(&mut self, rank: u32) {
        let it = self.rank(rank);
        if it.doing != Doing::Agrees {
            return;
        }
        let step = it.agreement.step(&Rule::Answering, &it.sight, context);
        match step.outcome {
            Some(Outcome::Formed { members, .. }) => {
                it.sight.members = members.iter().copied().collect();
                it.formed.push(members);
                it.agreement.accept();
                it.doing = Doing::Works;
            }
            Some(Outcome::LeftOut { .. }) => {
                it.doing = Doing::LeftOut;
            }
            Some(Outcome::Exhausted) => panic!("no generation is left"),
            None => {}
        }
        let mut tell = step.tell;
        if it.doing == Doing::LeftOut {
            tell = it.agreement.give_up().tell;
        }
        if let Some(proposal) = tell {
            self.tell(rank, &News::Proposal(proposal));
        }
    }

    fn begins_again(&mut self, rank: u32) {
        let it = self.rank(rank);
        if it.doing == Doing::Works {
            it.doing = Doing::Agrees;
            it.agreement.begin().unwrap();
        }
    }

    fn ends(&mut self, rank: u32) {
        self.rank(rank).doing = Doing::Ended;
        self.tell(rank, &News::Ended);
    }

    /// Something goes wrong, or a rank errs.
    fn disturb(&mut self) {
        let (rank, other) = (
            self.below(self.ranks.len()) as u32,
            self.below(self.ranks.len()) as u32,
        );
        if self.rank(rank).doing == Doing::Ended {
            return;
        }
        match self.below(12) {
            0 => self.ends(rank),
            1..=3 if self.rank(rank).doing == Doing::Agrees => {
                self.rank(rank).doing = Doing::Stopped;
            }
            4..=6 if self.rank(rank).doing == Doing::Stopped => {
                self.rank(rank).doing = Doing::Agrees;
            }
            7 => self.begins_again(rank),
            8 if rank != other => {
                self.rank(rank).sight.gone.insert(other);
            }
            _ if rank != other => {
                // Whether or not the other one is stopped.
                let silent = &mut self.rank(rank).sight.silent;
                if !silent.remove(&other) {
                    silent.insert(other);
                }
            }
            _ => {}
        }
    }

    /// From now on exactly the stopped ranks are silent for all others. Runs until nothing is left
    /// to do.
    fn calm_down(&mut self) {
        let stopped = |rank: &Rank| rank.doing == Doing::Stopped;
        let silent = (0..).zip(&self.ranks).filter(|(_, rank)| stopped(rank));
        let silent: BTreeSet<u32> = silent.map(|(rank, _)| rank).collect();
        for rank in &mut self.ranks {
            rank.sight.silent.clone_from(&silent);
        }
        let mut idle = 0;
        while idle < 3 {
            idle = if self.deliver() { 0 } else { idle + 1 };
            let first = self.below(self.ranks.len()) as u32;
            for at in 0..self.size() {
                self.look((first + at) % self.size());
            }
        }
    }

    fn formed(&self) -> Vec<Vec<u32>> {
        self.ranks
            .iter()
            .flat_map(|rank| rank.formed.clone())
            .collect()
    }

    fn assert_one_world(&self, seed: u64) {
        let formed = self.formed();
        for (at, one) in formed.iter().enumerate() {
            for other in &formed[..at] {
                let common = one.iter().any(|rank| other.contains(rank));
                assert!(common, "{one:?} and {other:?} were formed with seed {seed}");
            }
        }
    }
}

/// A context, different for each generation and members.
fn context(generation: u64, members: &[u32]) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    (generation, members).hash(&mut hasher);
    hasher.finish()
}

/// The ranks err about who is silent or lost, stop, wake up and end at any time.
#[test]
fn never_do_two_communicators_without_a_common_rank_go_on() {
    let mut several = 0;
    for seed in 0..4_000 {
        let mut world = World::new(2 + (seed % 6) as u32, seed);
        let steps = 20 + world.below(400);
        for _ in 0..steps {
            match world.below(8) {
                0 => world.disturb(),
                1..=4 => _ = world.deliver(),
                _ => {
                    let rank = world.below(world.ranks.len()) as u32;
                    world.look(rank);
                }
            }
        }
        world.calm_down();
        world.assert_one_world(seed);
        let formed: BTreeSet<Vec<u32>> = world.formed().into_iter().collect();
        several += usize::from(formed.len() > 1);
    }
    assert!(
        several > 200,
        "only {several} worlds have formed several communicators"
    );
}

/// One rank is stopped, some of the others notice that earlier than others, and it wakes up at some
/// time.
#[test]
fn the_others_go_on_together_without_a_stopped_rank_which_learns_it() {
    for seed in 0..5000 {
        let size = 3 + (seed % 5) as u32;
        let mut world = World::new(size, seed);
        let stopped = world.below(size as usize) as u32;
        world.rank(stopped).doing = Doing::Stopped;
        for _ in 0..world.below(200) {
            let rank = world.below(size as usize) as u32;
            match world.below(3) {
                0 if rank != stopped => _ = world.rank(rank).sight.silent.insert(stopped),
                1 => _ = world.deliver(),
                _ => world.look(rank),
            }
        }
        world.calm_down();
        let others: Vec<u32> = (0..size).filter(|&rank| rank != stopped).collect();
        for &rank in &others {
            assert_eq!(
                world.rank(rank).formed,
                std::slice::from_ref(&others),
                "rank {rank}, seed {seed}"
            );
        }
        world.rank(stopped).doing = Doing::Agrees;
        world.calm_down();
        assert_eq!(world.rank(stopped).doing, Doing::LeftOut, "seed {seed}");
    }
}

/// A busy machine, or a link that is cut, may make a rank silent for some of the others.
#[test]
fn a_rank_that_answers_one_of_the_others_is_not_left_out() {
    for seed in 0..2000 {
        let size = 3 + (seed % 4) as u32;
        let mut world = World::new(size, seed);
        let hears = world.below(size as usize) as u32;
        let busy = (hears + 1) % size;
        world.rank(busy).doing = Doing::Stopped;
        for rank in (0..size).filter(|&rank| rank != hears) {
            world.rank(rank).sight.silent.insert(busy);
        }
        for _ in 0..200 {
            let rank = world.below(size as usize) as u32;
            match world.below(2) {
                0 => _ = world.deliver(),
                _ => world.look(rank),
            }
        }
        assert!(world.formed().is_empty(), "seed {seed}");
        world.rank(busy).doing = Doing::Agrees;
        world.calm_down();
        let all: Vec<u32> = (0..size).collect();
        for rank in &world.ranks {
            assert_eq!(rank.formed, std::slice::from_ref(&all), "seed {seed}");
        }
    }
}

#[test]
fn of_two_halves_that_do_not_hear_each_other_the_one_with_the_first_rank_goes_on() {
    let halves: [BTreeSet<u32>; 2] = [[0, 2].into(), [1, 3].into()];
    let mut world = World::new(4, 1);
    for rank in 0..4 {
        let other = &halves[1 - rank as usize % 2];
        world.rank(rank).sight.silent.clone_from(other);
        for other in other {
            world.streams.remove(&(*other, rank));
        }
    }
    for _ in 0..100 {
        for rank in 0..4 {
            world.look(rank);
            for other in &halves[1 - rank as usize % 2] {
                world.streams.remove(&(*other, rank));
            }
        }
        world.deliver();
    }
    assert_eq!(world.formed(), [vec![0, 2], vec![0, 2]]);
}

#[test]
fn ranks_that_have_ended_do_not_count() {
    for seed in 0..500 {
        let mut world = World::new(5, seed);
        for rank in [0, 1, 3, 4] {
            world.ends(rank);
        }
        world.calm_down();
        assert_eq!(world.rank(2).formed, [vec![2]], "seed {seed}");
    }
}
