//! Claims: ranks tell their companions which calls of device memory they have made, and compare
//! them. In a small communicator the companions are all others.

use super::State;
use crate::comparison::{Claim, Verdict};
use crate::fault::{DEVICE_MARK, Fault};
use crate::member_table::Roster;
use crate::wire::Content;

impl State {
    /// Asks the companions whether they have made the same calls as this rank, as far as that is
    /// not known. Returns the number of the question.
    pub(crate) fn ask_of_calls(&mut self, context: u64) -> u64 {
        let Some(roster) = self.rosters.get_mut(&context) else {
            return 0;
        };
        let claims = roster.ask_of_calls();
        let question = roster.question();
        for (to, claim) in claims {
            self.claim(to, claim);
        }
        question
    }

    /// Compares the calls that other ranks have claimed before this rank has made them.
    pub(crate) fn compare_pending(&mut self, context: u64) {
        let Some(roster) = self.rosters.get_mut(&context) else {
            return;
        };
        for (rank, claim) in roster.take_pending() {
            let Some(roster) = self.rosters.get(&context) else {
                return;
            };
            let origin = roster.view.members[rank as usize];
            self.receive_claim(origin, rank, &claim);
        }
    }

    /// Compares what another rank claims.
    pub(super) fn receive_claim(&mut self, origin: u32, rank: u32, claim: &Claim) {
        let Some(roster) = self.rosters.get_mut(&claim.context) else {
            return;
        };
        // The fault is known already.
        if roster.view.fault().is_some() {
            return;
        }
        match roster.compare(rank, claim) {
            Verdict::Noted => {}
            Verdict::Reply(reply) => self.claim(origin, reply),
            Verdict::Mismatch {
                number,
                own,
                theirs,
            } => {
                let fault = differs(roster, rank, number, [own, theirs]);
                self.raise(claim.context, fault);
            }
        }
    }

    fn claim(&mut self, to: u32, claim: Claim) {
        let notice = self.new_notice(Content::Claim(claim));
        self.forward(to, &notice);
    }
}

/// The fault of calls that are not the same.
fn differs(roster: &Roster, rank: u32, number: u64, called: [Option<[u64; 2]>; 2]) -> Fault {
    let view = &roster.view;
    let words = |signature: Option<[u64; 2]>| {
        signature.map_or_else(|| "what it no longer knows".to_owned(), view.describe)
    };
    let [own, mut theirs] = called.map(words);
    if called[0] == called[1] {
        theirs.push_str(", and before it a call that differs and is no longer known");
    }
    Fault::Mismatch {
        sequence: DEVICE_MARK | number,
        rank_a: view.me.clone(),
        words_a: own,
        rank_b: view.member(view.members[rank as usize]),
        words_b: theirs,
    }
}
