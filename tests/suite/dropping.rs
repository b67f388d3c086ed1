//! Memory that a thread of a rank makes and drops during calls: registered memory, or a GPU's if
//! the rank has one.

use std::sync::Arc;
use std::thread::JoinHandle;

use spark_ccl::{Communicator, Error};

/// Drops memory until its communicator has failed. Dropping this value waits for that.
pub(crate) struct Dropping(Option<JoinHandle<()>>);

impl Dropping {
    pub(crate) fn start(comm: Arc<Communicator>) -> Self {
        Self(Some(std::thread::spawn(move || {
            let error = until_it_fails(&comm);
            assert!(matches!(error, Error::Failed(_)), "{error}");
        })))
    }
}

impl Drop for Dropping {
    fn drop(&mut self) {
        let ended = self.0.take().map_or(Ok(()), JoinHandle::join);
        assert!(ended.is_ok(), "the thread that drops memory panicked");
    }
}

fn until_it_fails(comm: &Communicator) -> Error {
    #[cfg(feature = "cuda")]
    if comm.backend() != spark_ccl::Backend::Host {
        return of_a_gpu(comm).unwrap_err();
    }
    loop {
        drop(comm.register(vec![0_u8; 1 << 20]));
        if let Err(error) = comm.check() {
            return error;
        }
    }
}

/// Drops each sum while it is computed. All ranks compute the same sums.
#[cfg(feature = "cuda")]
fn of_a_gpu(comm: &Communicator) -> Result<std::convert::Infallible, Error> {
    let stream = comm.context()?.new_stream().unwrap();
    loop {
        let mut sum = comm.alloc_device::<u32>(50_000)?;
        comm.all_reduce_in_place(&mut sum, spark_ccl::RedOp::Max)
            .on(&stream)?;
        drop(sum);
        for len in [1, 5000, 300_000] {
            drop(comm.alloc_device::<u8>(len)?);
        }
        comm.wait(&stream)?;
    }
}
