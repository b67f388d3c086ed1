//! Inquiries: this rank asks the members of a communicator how far they are, and they answer it
//! directly.

use std::collections::BTreeSet;
use std::time::Instant;

use super::{ControlState, Departure};
use crate::standing::{Presence, Standing};
use crate::wire::Content;

impl ControlState {
    /// Asks the ranks in `whom`, except this one and ranks that are known to be gone.
    pub(crate) fn ask(&mut self, context: u64, whom: &BTreeSet<u32>) {
        if !self.tables.contains_key(&context) {
            return;
        }
        let others = whom.iter().copied();
        let asked =
            others.filter(|other| *other != self.me && !self.departures.contains_key(other));
        let asked: Vec<u32> = asked.collect();
        let notice = self.new_notice(Content::Query { context });
        for to in asked {
            self.forward(to, &notice);
        }
    }

    /// Answers a member that asks how far this rank is.
    pub(super) fn answer_query(&mut self, context: u64, origin: u32, now: Instant) {
        let Some(table) = self.tables.get(&context) else {
            return;
        };
        let answer = table.answer(now);
        let notice = self.new_notice(Content::Answer(answer));
        self.forward(origin, &notice);
    }

    /// How far each member is, by its rank in the communicator.
    pub(crate) fn standings(&self, context: u64, now: Instant) -> Vec<Standing> {
        let Some(table) = self.tables.get(&context) else {
            return Vec::new();
        };
        let members = (0..).zip(&table.view.members);
        let standing = |(rank, &world): (u32, &u32)| Standing {
            rank: table.view.member(world),
            presence: match self.departures.get(&world) {
                Some(Departure::Died { .. } | Departure::Lost(_)) => Presence::Gone,
                Some(Departure::Goodbye) => Presence::Left,
                // A member whose call failed because another one ended is still there.
                None if table.left(rank).is_some_and(|leave| !leave.lacks_an_end()) => {
                    Presence::Left
                }
                None => Presence::Here,
            },
            answer: table.answer_of(rank, now),
        };
        members.map(standing).collect()
    }
}
