//! Floods and notices about communicators that this rank has not created yet. They are kept until
//! it does.

use std::collections::{HashMap, VecDeque};

use crate::wire::{Content, Flood, News, Notice};

/// For how many unknown communicators messages are kept.
const MAX_CONTEXTS: usize = 64;
/// The number of messages that are kept for each, beside one proposal of each rank. Faults and
/// departures evict notices.
const MAX_NEWS: usize = 64;
/// The number of closed communicators that are remembered. Late messages about them are dropped.
const MAX_CLOSED: usize = 256;

/// A message about a communicator.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Stray {
    /// A fault or a departure.
    Flood(Flood),
    Notice(Notice),
}

#[derive(Default)]
pub(crate) struct Strays {
    kept: HashMap<u64, Vec<Stray>>,
    order: VecDeque<u64>,
    closed: VecDeque<u64>,
}

impl Strays {
    pub(crate) fn keep(&mut self, context: u64, stray: Stray) {
        if self.closed.contains(&context) {
            return;
        }
        if !self.kept.contains_key(&context) {
            if self.order.len() == MAX_CONTEXTS {
                let oldest = self.order.pop_front();
                oldest.and_then(|oldest| self.kept.remove(&oldest));
            }
            self.order.push_back(context);
        }
        insert(self.kept.entry(context).or_default(), stray);
    }

    /// Takes what was kept for a communicator that is being created.
    pub(crate) fn take(&mut self, context: u64) -> Vec<Stray> {
        self.order.retain(|&other| other != context);
        self.closed.retain(|&other| other != context);
        self.kept.remove(&context).unwrap_or_default()
    }

    /// From now on, drops messages about this communicator.
    pub(crate) fn close(&mut self, context: u64) {
        if self.closed.len() == MAX_CLOSED {
            self.closed.pop_front();
        }
        self.closed.push_back(context);
    }
}

fn insert(news: &mut Vec<Stray>, stray: Stray) {
    let earlier = news.iter().position(|old| are_of_one_rank(&stray, old));
    if let Some(place) = earlier {
        if number(&stray) < number(&news[place]) || has_left(&news[place]) {
            return;
        }
        news.remove(place);
    }
    let others = news.iter().filter(|old| !is_proposal(old)).count();
    if others == MAX_NEWS && !is_proposal(&stray) {
        match news.iter().position(|old| matches!(old, Stray::Notice(_))) {
            Some(oldest) => drop(news.remove(oldest)),
            None => return,
        }
    }
    news.push(stray);
}

/// Whether both are the progress, the proposals or the departure of one rank: only the later one
/// counts.
fn are_of_one_rank(one: &Stray, other: &Stray) -> bool {
    match (one, other) {
        (Stray::Notice(one), Stray::Notice(other)) => {
            let contents = (one.content, other.content);
            let are_progress = matches!(contents, (Content::Progress(_), Content::Progress(_)));
            are_progress && one.origin == other.origin
        }
        (Stray::Flood(one), Stray::Flood(other)) => {
            let are_alike = matches!(
                (&one.news, &other.news),
                (News::Proposal { .. }, News::Proposal { .. })
                    | (News::Leave { .. }, News::Leave { .. })
            );
            are_alike && one.origin == other.origin
        }
        _ => false,
    }
}

/// Whether its sender has left for good: later leaves of that sender are no news.
fn has_left(stray: &Stray) -> bool {
    let Stray::Flood(flood) = stray else {
        return false;
    };
    matches!(&flood.news, News::Leave { leave, .. } if !leave.is_in_flight)
}

/// Whether it is a proposal. Each counts: this rank would wait in vain for one that it lacks.
fn is_proposal(stray: &Stray) -> bool {
    matches!(stray, Stray::Flood(flood) if matches!(flood.news, News::Proposal { .. }))
}

fn number(stray: &Stray) -> u64 {
    match stray {
        Stray::Flood(flood) => flood.counter,
        Stray::Notice(notice) => notice.counter,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leave::Leave;
    use crate::proposal::Proposal;
    use crate::wire::Progress;

    fn progress(origin: u32, context: u64, sequence: u64) -> Stray {
        let signature = [0; 2];
        let progress = Progress {
            context,
            finished: 0,
            sequence,
            signature,
            waiting: None,
        };
        Stray::Notice(Notice {
            origin,
            counter: sequence,
            content: Content::Progress(progress),
        })
    }

    fn leave(origin: u32, context: u64) -> Stray {
        leave_with(origin, context, (1, Leave::default()))
    }

    fn leave_with(origin: u32, context: u64, (counter, leave): (u64, Leave)) -> Stray {
        Stray::Flood(Flood {
            origin,
            counter,
            news: News::Leave {
                context,
                leave: Box::new(leave),
            },
        })
    }

    #[test]
    fn keeps_the_latest_progress_and_prefers_departures() {
        let mut strays = Strays::default();
        for origin in 0..200 {
            strays.keep(1, progress(origin, 1, 1));
            strays.keep(1, progress(origin, 1, 3));
            strays.keep(1, progress(origin, 1, 2));
        }
        strays.keep(1, leave(7, 1));
        let kept = strays.take(1);
        assert_eq!(kept.len(), MAX_NEWS);
        assert_eq!(kept.last(), Some(&leave(7, 1)));
        assert_eq!(kept[0], progress(137, 1, 3));
        assert_eq!(strays.take(1), []);
    }

    /// A rank may say that it begins to leave, and again that it has left.
    #[test]
    fn keeps_one_departure_of_each_rank() {
        let begins = Leave {
            is_in_flight: true,
            ..Leave::after(3)
        };
        let mut strays = Strays::default();
        let ranks = 0..MAX_NEWS as u32;
        for origin in ranks.clone() {
            strays.keep(1, leave_with(origin, 1, (1, begins.clone())));
            strays.keep(1, leave_with(origin, 1, (2, Leave::after(3))));
            // A leave after the final one is no news.
            strays.keep(1, leave_with(origin, 1, (3, Leave::default())));
        }
        let last = ranks.map(|origin| leave_with(origin, 1, (2, Leave::after(3))));
        assert_eq!(strays.take(1), last.collect::<Vec<_>>());
    }

    /// The other members of a large communicator shrink it before this rank has it.
    #[test]
    fn keeps_the_latest_proposal_of_each_rank_beside_the_rest() {
        let proposal = |origin, generation| {
            Stray::Flood(Flood {
                origin,
                counter: generation,
                news: News::Proposal {
                    context: 1,
                    proposal: Proposal {
                        generation,
                        context: Some(generation),
                        ..Proposal::default()
                    },
                },
            })
        };
        let mut strays = Strays::default();
        for (generation, origin) in [1, 2]
            .into_iter()
            .flat_map(|g| (0..200).map(move |o| (g, o)))
        {
            strays.keep(1, proposal(origin, generation));
        }
        strays.keep(1, leave(7, 1));
        let kept = strays.take(1);
        let latest = (0..200).map(|origin| proposal(origin, 2));
        assert_eq!(kept, latest.chain([leave(7, 1)]).collect::<Vec<_>>());
    }

    #[test]
    fn forgets_the_oldest_communicator_and_ignores_closed_ones() {
        let mut strays = Strays::default();
        strays.close(1000);
        strays.keep(1000, leave(0, 1000));
        assert_eq!(strays.take(1000), []);
        for context in 0..=MAX_CONTEXTS as u64 {
            strays.keep(context, leave(0, context));
        }
        assert_eq!(strays.take(0), []);
        assert_eq!(strays.take(1), [leave(0, 1)]);
    }
}
