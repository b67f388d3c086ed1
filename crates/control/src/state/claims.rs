//! Claims: ranks tell their companions which calls of device memory they have made, and compare
//! them. In a small communicator the companions are all others.

use super::ControlState;
use crate::comparison::{Claim, Compared};
use crate::fault::{DEVICE_MARK, Fault};
use crate::member_table::MemberTable;
use crate::wire::Content;

impl ControlState {
    /// Asks the companions whether they have made the same calls as this rank, as far as that is
    /// not known. Returns the number of the question.
    pub(crate) fn ask_of_calls(&mut self, context: u64) -> u64 {
        let Some(table) = self.tables.get_mut(&context) else {
            return 0;
        };
        let claims = table.ask_of_calls();
        let question = table.question();
        for (to, claim) in claims {
            self.claim(to, claim);
        }
        question
    }

    /// Compares the calls that other ranks have claimed before this rank has made them.
    pub(crate) fn compare_pending(&mut self, context: u64) {
        let Some(table) = self.tables.get_mut(&context) else {
            return;
        };
        for (rank, claim) in table.take_pending() {
            let Some(table) = self.tables.get(&context) else {
                return;
            };
            let origin = table.view.members[rank as usize];
            self.receive_claim(origin, rank, &claim);
        }
    }

    /// Compares another rank's claim with this rank's ledger.
    pub(super) fn receive_claim(&mut self, origin: u32, rank: u32, claim: &Claim) {
        let Some(table) = self.tables.get_mut(&claim.context) else {
            return;
        };
        // The fault is known already.
        if table.view.fault().is_some() {
            return;
        }
        match table.compare(rank, claim) {
            Compared::Noted => {}
            Compared::Reply(reply) => self.claim(origin, reply),
            Compared::Mismatch {
                number,
                own,
                theirs,
            } => {
                let fault = differs(table, rank, number, [own, theirs]);
                self.raise(claim.context, fault);
            }
        }
    }

    fn claim(&mut self, to: u32, claim: Claim) {
        let notice = self.new_notice(Content::Claim(claim));
        self.forward(to, &notice);
    }
}

/// The fault of calls that differ.
fn differs(table: &MemberTable, rank: u32, number: u64, called: [Option<[u64; 2]>; 2]) -> Fault {
    let view = &table.view;
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
