//! Ranks as threads of the test, and numbers that they can work on.

use spark_ccl::Communicator;
use spark_ccl_testing::scramble;
use spark_ccl_training::{HostTensor, Parameters, Problem, TensorInfo};

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

/// A framework that cannot read or write one of its tensors.
pub(crate) struct Broken {
    pub(crate) own: Vec<HostTensor>,
    pub(crate) unreadable: Option<usize>,
    pub(crate) frozen: Option<usize>,
}

impl Broken {
    /// One that works.
    pub(crate) fn not(own: Vec<HostTensor>) -> Self {
        Self {
            own,
            unreadable: None,
            frozen: None,
        }
    }
}

impl Parameters for Broken {
    fn tensors(&self) -> Vec<TensorInfo> {
        self.own.tensors()
    }

    fn read(&self, tensor: usize, bytes: &mut [u8]) -> Result<(), Problem> {
        if self.unreadable == Some(tensor) {
            return Err("it is gone".into());
        }
        self.own.read(tensor, bytes)
    }

    fn write(&mut self, tensor: usize, bytes: &[u8]) -> Result<(), Problem> {
        if self.frozen == Some(tensor) {
            return Err("it is frozen".into());
        }
        self.own.write(tensor, bytes)
    }
}

/// Multiples of 1/16 between -8 and 8, whose sums are exact in every order.
pub(crate) fn numbers(len: usize, seed: u64) -> Vec<f32> {
    let number = |it| (scramble(seed, it) % 256) as f32 / 16.0 - 8.0;
    (0..len as u64).map(number).collect()
}
