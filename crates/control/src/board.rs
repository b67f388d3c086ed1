//! Frames between the ranks of a world within one process, which need no streams.

use spark_ccl_log::Mutex;

use crate::wire::Frame;

/// Frames that the monitor thread has yet to deliver: floods to all ranks, notices to the ranks
/// that they are for.
///
/// Its lock is the innermost: ranks post with their states locked, so that what each of them posts
/// stays in order.
#[derive(Default)]
pub(crate) struct Board(Mutex<Vec<Frame>>);

impl Board {
    pub(crate) fn post(&self, frame: Frame) {
        self.0.lock().push(frame);
    }

    /// Takes all that is posted.
    pub(crate) fn take(&self) -> Vec<Frame> {
        std::mem::take(&mut self.0.lock())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use super::*;
    use crate::leave::Leave;
    use crate::state::ControlState;

    /// The cost of leaving must not grow with the square of the ranks for each of them.
    #[test]
    fn what_a_rank_says_is_posted_once_however_many_hear_it() {
        let names: Arc<[Arc<str>]> = (0..200).map(|rank| format!("rank {rank}").into()).collect();
        let board = Arc::new(Board::default());
        let state = |me| ControlState::on_board(me, Arc::clone(&names), Arc::clone(&board));
        let mut states: Vec<ControlState> = (0..200).map(state).collect();
        let now = Instant::now();
        states[7].leave(1, Leave::default());
        states[7].say_goodbye(now);
        let posted = board.take();
        assert_eq!(posted.len(), 2);
        for state in &mut states {
            state.handle_posts(&posted, now);
        }
        assert!(board.is_empty(), "nobody forwards it");
        let mut others = states.iter().filter(|state| state.me != 7);
        assert!(others.all(|state| state.gone().contains(&7)));
        // It posts nothing after the goodbye.
        states[7].leave(2, Leave::default());
        assert!(board.is_empty());
    }
}
