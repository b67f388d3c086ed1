//! The calls of a rank in host memory: warm-up, timing and checks.

use spark_ccl::{Backend, Communicator, Element};

use super::lengths;
use super::timing::{self, Buffers};
use crate::call::buffer::Buffer;
use crate::call::invocation::{BufferMode, Case, Invocation};
use crate::cli::options::Options;
use crate::error::Error;
use crate::measure::bench::Runner;
use crate::measure::timing::Timed;
use crate::verify::Verification;
use crate::verify::in_memory::{write, wrong};

/// This rank's buffers for one element type.
pub(super) struct Memory<'a, B> {
    comm: &'a Communicator,
    options: &'a Options,
    buffers: Buffers<B>,
}

impl<'a, B> Memory<'a, B> {
    pub(super) fn new<T: Element>(
        comm: &'a Communicator,
        options: &'a Options,
    ) -> Result<Self, Error>
    where
        B: Buffer<T>,
    {
        let layout = options
            .collective
            .layout(options.sweep.last(), size_of::<T>(), comm.size());
        let (send, recv) = lengths(options, &layout, size_of::<T>());
        let buffers = Buffers {
            send: B::allocate(comm, send)?,
            recv: B::allocate(comm, recv)?,
            base: options.unalign,
        };
        Ok(Self {
            comm,
            options,
            buffers,
        })
    }
}

impl<T: Element, B: Buffer<T>> Runner<T> for Memory<'_, B> {
    fn backend(&self) -> Backend {
        Backend::Host
    }

    fn warm_up(&mut self, case: &Case) -> Result<(), Error> {
        let call = Invocation::new(case, self.comm.rank());
        timing::warm_up(self.comm, &call, &mut self.buffers, self.options)
    }

    fn settle(&self) {
        if self.options.warm_up > 0 {
            timing::settle();
        }
    }

    fn time(&mut self, case: &Case, mode: BufferMode) -> Result<Timed, Error> {
        let call = Invocation::new(case, self.comm.rank());
        timing::time(self.comm, &call, &mut self.buffers, mode, self.options)
    }

    fn stores_far(&self) -> Option<bool> {
        Some(self.comm.links().iter().any(|link| link.is_far))
    }

    fn check(&mut self, case: &Case, mode: BufferMode, seed: u64) -> Result<u64, Error> {
        let Buffers { send, recv, base } = &mut self.buffers;
        let call = Invocation::<T>::new(case, self.comm.rank());
        let check = Verification::new(&call, mode, seed, *base);
        let inputs = check.inputs();
        inputs
            .recv
            .iter()
            .for_each(|piece| write(&check, piece, recv));
        inputs
            .send
            .iter()
            .for_each(|piece| write(&check, piece, send));
        call.run(self.comm, send, recv, *base, 0, mode)?;
        if let Some(plant) = self.options.plant
            && plant.rank == call.rank
            && let Some(at) = check.result_index(plant.index)
        {
            recv[at] = check.spoiled(&recv[at]);
        }
        let results = check.results();
        Ok(results.iter().map(|piece| wrong(&check, piece, recv)).sum())
    }
}
