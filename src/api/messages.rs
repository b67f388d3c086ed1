//! Messages of structs, and of lengths that are not known before they come.

use bytemuck::Pod;
use spark_ccl_types::{DType, Element};

use super::call::{Call, Receiving, Sending};
use super::communicator::Communicator;
use crate::error::Error;

impl Communicator {
    /// A message of plain old data, such as structs that derive [`bytemuck::Pod`], matched by a
    /// [`recv_pod`](Self::recv_pod). It goes as bytes: both ranks must have the same type.
    ///
    /// ```
    /// # let ranks = spark_ccl::Communicator::local(2)?.into_iter();
    /// # let ranks = ranks.map(|comm| std::thread::spawn(move || {
    /// use bytemuck::{Pod, Zeroable};
    ///
    /// #[derive(Clone, Copy, Default, PartialEq, Debug, Pod, Zeroable)]
    /// #[repr(C)]
    /// struct Particle {
    ///     at: [f64; 3],
    ///     mass: f64,
    /// }
    ///
    /// let sun = Particle { at: [0.0; 3], mass: 2e30 };
    /// if comm.rank() == 0 {
    ///     comm.send_pod(&[sun], 1).run()?;
    /// } else {
    ///     let mut received = [Particle::default()];
    ///     comm.recv_pod(&mut received, 0).run()?;
    ///     assert_eq!(received, [sun]);
    /// }
    /// # comm.finalize()
    /// # }));
    /// # let ranks: Vec<_> = ranks.collect();
    /// # for rank in ranks { rank.join().unwrap()?; }
    /// # Ok::<(), spark_ccl::Error>(())
    /// ```
    pub fn send_pod<'b, P: Pod>(
        &self,
        values: &'b [P],
        to: usize,
    ) -> Call<'_, u8, Sending<&'b [u8]>> {
        self.send(bytemuck::cast_slice(values), to)
    }

    /// A message of a [`send_pod`](Self::send_pod), of as many values.
    pub fn recv_pod<'b, P: Pod>(
        &self,
        values: &'b mut [P],
        from: usize,
    ) -> Call<'_, u8, Receiving<&'b mut [u8]>> {
        self.recv(bytemuck::cast_slice_mut(values), from)
    }

    /// The next message from one rank, of as many elements as were sent. Waits for it.
    ///
    /// ```
    /// # let ranks = spark_ccl::Communicator::local(2)?.into_iter();
    /// # let ranks = ranks.map(|comm| std::thread::spawn(move || {
    /// if comm.rank() == 0 {
    ///     comm.send(vec![1.5_f32; 7], 1).run()?;
    /// } else {
    ///     assert_eq!(comm.recv_vec::<f32>(0)?, [1.5; 7]);
    /// }
    /// # comm.finalize()
    /// # }));
    /// # let ranks: Vec<_> = ranks.collect();
    /// # for rank in ranks { rank.join().unwrap()?; }
    /// # Ok::<(), spark_ccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for elements of another type, and [`Error::Memory`] for more than fit in
    /// memory: the message can still be received then. Else those of
    /// [`probe_wait`](Self::probe_wait) and [`Call::run`]. One thread at a time may receive from a
    /// rank: of two, one may get the other's message, and if that has another length, the
    /// communicator fails.
    pub fn recv_vec<T: Element>(&self, from: usize) -> Result<Vec<T>, Error> {
        let (dtype, count) = self.probe_wait(from)?;
        if dtype != T::DTYPE {
            return Err(Error::Invalid {
                operation: "recv_vec",
                problem: format!(
                    "the next message from rank {from} has {count} {dtype} elements, and {} are \
                     asked for",
                    T::DTYPE
                ),
            });
        }
        // The allocator's zeros: pages that the kernel clears are first touched by the message.
        let values = bytemuck::try_zeroed_vec(count).map_err(|()| Error::Memory {
            what: format!("receiving {count} {dtype} elements from rank {from}"),
            problem: "the allocator does not have as much".to_owned(),
        })?;
        self.recv::<T, Vec<T>>(values, from).run()
    }

    /// Waits for the next message from rank `from`, to host memory, as long as a call may take
    /// ([`set_timeout`](Self::set_timeout)). Returns its type and its number of elements. Messages
    /// that a [`recv`](Self::recv) waits for come before. Where several threads receive from the
    /// same rank, another may get the message first.
    ///
    /// ```
    /// use spark_ccl::{Communicator, DType};
    ///
    /// let comm = Communicator::local(1)?.remove(0);
    /// comm.send(&[1_u8, 2][..], 0).run()?;
    /// assert_eq!(comm.probe_wait(0)?, (DType::U8, 2));
    /// # Ok::<(), spark_ccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no such rank; [`Error::Failed`] after a failure: also if that
    /// rank leaves without the message, or the time passes. Both end the communicator on all ranks,
    /// as with any call; where no message may come, ask [`probe`](Self::probe).
    pub fn probe_wait(&self, from: usize) -> Result<(DType, usize), Error> {
        let from = self.source("probe_wait", from)?;
        let (dtype, count) = self.inner.membership.await_message(from)?;
        Ok((dtype, count as usize))
    }

    /// The next message from rank `from`, to host memory: its type and its number of elements.
    /// `None` if none has come, or a [`recv`](Self::recv) that was called before waits for it. Does
    /// not wait. Where several threads receive from the same rank, another may get the message
    /// first.
    ///
    /// ```
    /// use spark_ccl::{Communicator, DType};
    ///
    /// let comm = Communicator::local(1)?.remove(0);
    /// assert_eq!(comm.probe(0)?, None);
    /// comm.send(&[1_u8, 2][..], 0).run()?;
    /// assert_eq!(comm.probe(0)?, Some((DType::U8, 2)));
    /// # Ok::<(), spark_ccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no such rank; [`Error::Failed`] after a failure.
    pub fn probe(&self, from: usize) -> Result<Option<(DType, usize)>, Error> {
        let from = self.source("probe", from)?;
        let found = self.inner.membership.probe(from)?;
        Ok(found.map(|(dtype, count)| (dtype, count as usize)))
    }

    /// A rank that messages come from.
    fn source(&self, operation: &'static str, from: usize) -> Result<u32, Error> {
        let size = self.size();
        if from >= size {
            return Err(Error::Invalid {
                operation,
                problem: format!("there is no rank {from} among {size} ranks"),
            });
        }
        Ok(from as u32)
    }
}
