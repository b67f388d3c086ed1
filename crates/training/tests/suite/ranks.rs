//! Ranks as threads of the test, and numbers that they can work on.

use spark_ccl::Communicator;
use spark_ccl_testing::scramble;

/// What each rank of a world returns, in order.
pub(crate) fn ranks<R: Send>(size: usize, rank: impl Fn(&Communicator) -> R + Sync) -> Vec<R> {
    let comms = Communicator::local(size).unwrap();
    let rank = &rank;
    std::thread::scope(|scope| {
        let threads = comms.into_iter().map(|comm| {
            scope.spawn(move || {
                let result = rank(&comm);
                // After an error, which a test may be about, there is no orderly end.
                let _ = comm.finalize();
                result
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|it| it.join().unwrap()).collect()
    })
}

/// The error that all ranks get, as text.
pub(crate) fn error_of_all<R, E: std::fmt::Display>(results: &[Result<R, E>]) -> String {
    let texts: Vec<_> = results
        .iter()
        .map(|it| it.as_ref().err().unwrap().to_string())
        .collect();
    assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
    texts[0].clone()
}

/// Multiples of 1/16 between -8 and 8, whose sums are exact in every order.
pub(crate) fn numbers(len: usize, seed: u64) -> Vec<f32> {
    let number = |it| (scramble(seed, it) % 256) as f32 / 16.0 - 8.0;
    (0..len as u64).map(number).collect()
}
