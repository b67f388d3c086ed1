//! Asks several things at once, each in a thread of its own.

use std::thread;

/// Returns the answers in the order of what is asked about; an error where a thread panicked.
pub(crate) fn at_once<T: Send, A: Send>(
    all: impl IntoIterator<Item = T>,
    ask: impl Fn(T) -> A + Sync,
) -> Vec<thread::Result<A>> {
    let ask = &ask;
    thread::scope(|scope| {
        let start = |one| scope.spawn(move || ask(one));
        let threads: Vec<_> = all.into_iter().map(start).collect();
        let answers = threads.into_iter().map(thread::ScopedJoinHandle::join);
        answers.collect()
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    #[test]
    fn one_that_does_not_answer_keeps_no_other_waiting() {
        let (sender, receiver) = channel();
        thread::spawn(move || {
            // Each answers once all are asked.
            let barrier = Barrier::new(36);
            let ask = |one: usize| {
                barrier.wait();
                assert_ne!(one, 7);
                one
            };
            sender.send(at_once(0..36, ask))
        });
        let answers = receiver.recv_timeout(Duration::from_secs(60)).unwrap();
        let answers: Vec<_> = answers.into_iter().map(Result::ok).collect();
        let expected: Vec<_> = (0..36)
            .map(|one| Some(one).filter(|one| *one != 7))
            .collect();
        assert_eq!(answers, expected);
    }
}
