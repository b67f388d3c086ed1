//! The collectives and messages of a communicator: methods that each make a [`Call`], and their
//! documentation. No call is checked or run here.

use std::sync::Arc;

use spark_ccl_types::{DType, Element, Operation, Reducer, Reduction};

use super::call::{Call, InPlace, Nothing, OutOfPlace, Receiving, Sending};
use super::communicator::Communicator;
use crate::memory::blocks::Blocks;
use crate::memory::buffer::{RecvBuf, SendBuf};
use crate::task::names::FINALIZING;
use crate::task::{Spec, Tables};

impl Communicator {
    /// `recv[i] = op over all ranks of send[i]`, on every rank.
    ///
    /// All ranks get identical bits. [`explain`](Self::explain) says which algorithm a size takes,
    /// and why. The operation is a [`RedOp`](crate::RedOp), for any type, or a [`Reducer`], which
    /// may have a factor of the type.
    ///
    /// ```
    /// # use spark_ccl::{RedOp, Reducer};
    /// # let ranks = spark_ccl::Communicator::local(2)?.into_iter().map(|comm| std::thread::spawn(move || {
    /// let mut sum = [0.0_f32; 2];
    /// comm.all_reduce(&[1.0, comm.rank() as f32], &mut sum, RedOp::Sum).run()?;
    /// assert_eq!(sum, [2.0, 1.0]);
    ///
    /// let factor = [0.25, 0.75][comm.rank()]; // Of the rank's own elements.
    /// comm.all_reduce(&[4.0; 2], &mut sum, Reducer::PreMulSum(factor)).run()?;
    /// assert_eq!(sum, [4.0; 2]);
    /// # comm.finalize()
    /// # }));
    /// # for rank in ranks.collect::<Vec<_>>() { rank.join().unwrap()?; }
    /// # Ok::<(), spark_ccl::Error>(())
    /// ```
    pub fn all_reduce<T, S, R>(
        &self,
        send: S,
        recv: R,
        op: impl Into<Reducer<T>>,
    ) -> Call<'_, T, OutOfPlace<S, R>>
    where
        T: Element,
        S: SendBuf<T>,
        R: RecvBuf<T>,
    {
        Call::new(
            self,
            self.reducing(Operation::AllReduce, op),
            OutOfPlace(send, recv),
        )
    }

    /// [`all_reduce`](Self::all_reduce) of a buffer onto itself.
    pub fn all_reduce_in_place<T, B>(
        &self,
        buffer: B,
        op: impl Into<Reducer<T>>,
    ) -> Call<'_, T, InPlace<B>>
    where
        T: Element,
        B: RecvBuf<T>,
    {
        let spec = self.reducing(Operation::AllReduce, op).in_place();
        Call::new(self, spec, InPlace(buffer))
    }

    /// Concatenates all ranks' `send`, in rank order, into every rank's `recv`.
    ///
    /// ```
    /// # let ranks = spark_ccl::Communicator::local(2)?.into_iter().map(|comm| std::thread::spawn(move || {
    /// let mut all = [0_u32; 4];
    /// comm.all_gather(&[comm.rank() as u32; 2], &mut all).run()?;
    /// assert_eq!(all, [0, 0, 1, 1]);
    /// # comm.finalize()
    /// # }));
    /// # for rank in ranks.collect::<Vec<_>>() { rank.join().unwrap()?; }
    /// # Ok::<(), spark_ccl::Error>(())
    /// ```
    pub fn all_gather<T, S, R>(&self, send: S, recv: R) -> Call<'_, T, OutOfPlace<S, R>>
    where
        T: Element,
        S: SendBuf<T>,
        R: RecvBuf<T>,
    {
        Call::new(
            self,
            Spec::new(Operation::AllGather, T::DTYPE),
            OutOfPlace(send, recv),
        )
    }

    /// [`all_gather`](Self::all_gather) where each rank's block of the buffer is its contribution.
    pub fn all_gather_in_place<T, B>(&self, buffer: B) -> Call<'_, T, InPlace<B>>
    where
        T: Element,
        B: RecvBuf<T>,
    {
        let spec = Spec::new(Operation::AllGather, T::DTYPE).in_place();
        Call::new(self, spec, InPlace(buffer))
    }

    /// Reduces all ranks' `send` and gives rank `r` the `r`-th of `size` blocks.
    ///
    /// ```
    /// # use spark_ccl::RedOp;
    /// # let ranks = spark_ccl::Communicator::local(2)?.into_iter().map(|comm| std::thread::spawn(move || {
    /// let mut own = [0_i32; 1];
    /// comm.reduce_scatter(&[10, 20], &mut own, RedOp::Sum).run()?;
    /// assert_eq!(own, [[20], [40]][comm.rank()]);
    /// # comm.finalize()
    /// # }));
    /// # for rank in ranks.collect::<Vec<_>>() { rank.join().unwrap()?; }
    /// # Ok::<(), spark_ccl::Error>(())
    /// ```
    pub fn reduce_scatter<T, S, R>(
        &self,
        send: S,
        recv: R,
        op: impl Into<Reducer<T>>,
    ) -> Call<'_, T, OutOfPlace<S, R>>
    where
        T: Element,
        S: SendBuf<T>,
        R: RecvBuf<T>,
    {
        let spec = self.reducing(Operation::ReduceScatter, op);
        Call::new(self, spec, OutOfPlace(send, recv))
    }

    /// [`reduce_scatter`](Self::reduce_scatter) with the result in the rank's own block of the
    /// buffer; the other blocks are undefined afterwards.
    pub fn reduce_scatter_in_place<T, B>(
        &self,
        buffer: B,
        op: impl Into<Reducer<T>>,
    ) -> Call<'_, T, InPlace<B>>
    where
        T: Element,
        B: RecvBuf<T>,
    {
        let spec = self.reducing(Operation::ReduceScatter, op).in_place();
        Call::new(self, spec, InPlace(buffer))
    }

    /// Copies the root's `send` to every rank's `recv`. The other ranks' `send` is not looked at.
    pub fn broadcast<T, S, R>(&self, send: S, recv: R, root: usize) -> Call<'_, T, OutOfPlace<S, R>>
    where
        T: Element,
        S: SendBuf<T>,
        R: RecvBuf<T>,
    {
        let spec = Spec::new(Operation::Broadcast, T::DTYPE).root(root);
        Call::new(self, spec, OutOfPlace(send, recv))
    }

    /// Copies the root's buffer to every rank's.
    ///
    /// ```
    /// # let ranks = spark_ccl::Communicator::local(2)?.into_iter().map(|comm| std::thread::spawn(move || {
    /// let mut seed = [if comm.rank() == 0 { 42_u64 } else { 0 }];
    /// comm.broadcast_in_place(&mut seed, 0).run()?;
    /// assert_eq!(seed, [42]);
    /// # comm.finalize()
    /// # }));
    /// # for rank in ranks.collect::<Vec<_>>() { rank.join().unwrap()?; }
    /// # Ok::<(), spark_ccl::Error>(())
    /// ```
    pub fn broadcast_in_place<T, B>(&self, buffer: B, root: usize) -> Call<'_, T, InPlace<B>>
    where
        T: Element,
        B: RecvBuf<T>,
    {
        let spec = Spec::new(Operation::Broadcast, T::DTYPE)
            .root(root)
            .in_place();
        Call::new(self, spec, InPlace(buffer))
    }

    /// Reduces all ranks' `send` into the root's `recv`. The other ranks' `recv` is not touched.
    ///
    /// ```
    /// # use spark_ccl::RedOp;
    /// # let ranks = spark_ccl::Communicator::local(2)?.into_iter().map(|comm| std::thread::spawn(move || {
    /// let mut total = [0_i64];
    /// comm.reduce(&[7], &mut total, RedOp::Sum, 0).run()?;
    /// assert_eq!(total, [[14], [0]][comm.rank()]);
    /// # comm.finalize()
    /// # }));
    /// # for rank in ranks.collect::<Vec<_>>() { rank.join().unwrap()?; }
    /// # Ok::<(), spark_ccl::Error>(())
    /// ```
    pub fn reduce<T, S, R>(
        &self,
        send: S,
        recv: R,
        op: impl Into<Reducer<T>>,
        root: usize,
    ) -> Call<'_, T, OutOfPlace<S, R>>
    where
        T: Element,
        S: SendBuf<T>,
        R: RecvBuf<T>,
    {
        let spec = self.reducing(Operation::Reduce, op).root(root);
        Call::new(self, spec, OutOfPlace(send, recv))
    }

    /// Reduces all ranks' buffers into the root's. The other ranks' are not changed.
    pub fn reduce_in_place<T, B>(
        &self,
        buffer: B,
        op: impl Into<Reducer<T>>,
        root: usize,
    ) -> Call<'_, T, InPlace<B>>
    where
        T: Element,
        B: RecvBuf<T>,
    {
        let spec = self.reducing(Operation::Reduce, op).root(root).in_place();
        Call::new(self, spec, InPlace(buffer))
    }

    /// Copies every rank's `send` to the root's `recv`, in the order of ranks. The other ranks'
    /// `recv` is not touched.
    ///
    /// ```
    /// # let ranks = spark_ccl::Communicator::local(2)?.into_iter().map(|comm| std::thread::spawn(move || {
    /// let mut all = [0_u8; 2];
    /// comm.gather(&[comm.rank() as u8 + 1], &mut all, 0).run()?;
    /// assert_eq!(all, [[1, 2], [0, 0]][comm.rank()]);
    /// # comm.finalize()
    /// # }));
    /// # for rank in ranks.collect::<Vec<_>>() { rank.join().unwrap()?; }
    /// # Ok::<(), spark_ccl::Error>(())
    /// ```
    pub fn gather<T, S, R>(&self, send: S, recv: R, root: usize) -> Call<'_, T, OutOfPlace<S, R>>
    where
        T: Element,
        S: SendBuf<T>,
        R: RecvBuf<T>,
    {
        let spec = Spec::new(Operation::Gather, T::DTYPE).root(root);
        Call::new(self, spec, OutOfPlace(send, recv))
    }

    /// [`gather`](Self::gather) where each rank's block of its buffer (of `size` blocks on every
    /// rank) is its contribution; only the root's buffer changes.
    pub fn gather_in_place<T, B>(&self, buffer: B, root: usize) -> Call<'_, T, InPlace<B>>
    where
        T: Element,
        B: RecvBuf<T>,
    {
        let spec = Spec::new(Operation::Gather, T::DTYPE).root(root).in_place();
        Call::new(self, spec, InPlace(buffer))
    }

    /// Copies the `r`-th of `size` blocks of the root's `send` to rank `r`'s `recv`. The other
    /// ranks' `send` is not looked at.
    ///
    /// ```
    /// # let ranks = spark_ccl::Communicator::local(2)?.into_iter().map(|comm| std::thread::spawn(move || {
    /// let mut own = [0_u8];
    /// comm.scatter(&[1, 2], &mut own, 0).run()?;
    /// assert_eq!(own, [[1], [2]][comm.rank()]);
    /// # comm.finalize()
    /// # }));
    /// # for rank in ranks.collect::<Vec<_>>() { rank.join().unwrap()?; }
    /// # Ok::<(), spark_ccl::Error>(())
    /// ```
    pub fn scatter<T, S, R>(&self, send: S, recv: R, root: usize) -> Call<'_, T, OutOfPlace<S, R>>
    where
        T: Element,
        S: SendBuf<T>,
        R: RecvBuf<T>,
    {
        let spec = Spec::new(Operation::Scatter, T::DTYPE).root(root);
        Call::new(self, spec, OutOfPlace(send, recv))
    }

    /// [`scatter`](Self::scatter) into each rank's own block of its buffer (of `size` blocks on
    /// every rank).
    pub fn scatter_in_place<T, B>(&self, buffer: B, root: usize) -> Call<'_, T, InPlace<B>>
    where
        T: Element,
        B: RecvBuf<T>,
    {
        let spec = Spec::new(Operation::Scatter, T::DTYPE)
            .root(root)
            .in_place();
        Call::new(self, spec, InPlace(buffer))
    }

    /// Sends block `p` to rank `p`, and receives rank `p`'s block as block `p` of `recv`.
    ///
    /// ```
    /// # let ranks = spark_ccl::Communicator::local(2)?.into_iter().map(|comm| std::thread::spawn(move || {
    /// let rank = comm.rank() as u32;
    /// let mut received = [0; 2];
    /// comm.all_to_all(&[10 * rank, 10 * rank + 1], &mut received).run()?;
    /// assert_eq!(received, [rank, 10 + rank]);
    /// # comm.finalize()
    /// # }));
    /// # for rank in ranks.collect::<Vec<_>>() { rank.join().unwrap()?; }
    /// # Ok::<(), spark_ccl::Error>(())
    /// ```
    pub fn all_to_all<T, S, R>(&self, send: S, recv: R) -> Call<'_, T, OutOfPlace<S, R>>
    where
        T: Element,
        S: SendBuf<T>,
        R: RecvBuf<T>,
    {
        Call::new(
            self,
            Spec::new(Operation::AllToAll, T::DTYPE),
            OutOfPlace(send, recv),
        )
    }

    /// [`all_to_all`](Self::all_to_all) of a buffer onto itself. With three or more ranks, either
    /// all or none must use it, because partners take turns in a different order in place;
    /// otherwise all get an error.
    pub fn all_to_all_in_place<T, B>(&self, buffer: B) -> Call<'_, T, InPlace<B>>
    where
        T: Element,
        B: RecvBuf<T>,
    {
        let spec = Spec::new(Operation::AllToAll, T::DTYPE).in_place();
        Call::new(self, spec, InPlace(buffer))
    }

    /// Sends blocks of different lengths, the `p`-th of `send` to rank `p`, and receives rank `p`'s
    /// block as the `p`-th of `recv`. The count that one rank sends must equal the count that the
    /// other receives; otherwise both get an error that names the counts. NCCL does not compare
    /// them. Blocks of `send` may overlap; those of `recv` must not.
    ///
    /// ```
    /// # let ranks = spark_ccl::Communicator::local(2)?.into_iter().map(|comm| std::thread::spawn(move || {
    /// // Each rank sends one element to rank 0, and two to rank 1.
    /// let each = comm.rank() + 1;
    /// let mut received = vec![0_u32; 2 * each];
    /// comm.all_to_all_v(&[comm.rank() as u32; 3], &[1, 2], &mut received, &[each, each]).run()?;
    /// assert_eq!(received, [vec![0, 1], vec![0, 0, 1, 1]][comm.rank()]);
    /// # comm.finalize()
    /// # }));
    /// # for rank in ranks.collect::<Vec<_>>() { rank.join().unwrap()?; }
    /// # Ok::<(), spark_ccl::Error>(())
    /// ```
    pub fn all_to_all_v<T, S, R>(
        &self,
        send: S,
        send_blocks: impl Into<Blocks>,
        recv: R,
        recv_blocks: impl Into<Blocks>,
    ) -> Call<'_, T, OutOfPlace<S, R>>
    where
        T: Element,
        S: SendBuf<T>,
        R: RecvBuf<T>,
    {
        let tables = Tables {
            send: send_blocks.into(),
            recv: recv_blocks.into(),
        };
        let spec = Spec {
            tables: Some(Arc::new(tables)),
            ..Spec::new(Operation::AllToAllV, T::DTYPE)
        };
        Call::new(self, spec, OutOfPlace(send, recv))
    }

    /// A message to one rank, matched in order by a [`recv`](Self::recv) there. A message may have
    /// no elements.
    ///
    /// Links buffer short messages, so the sender may be done before the receiver has called. If
    /// the receiver's call does not match, the sender gets the error in its next call.
    ///
    /// ```
    /// # let ranks = spark_ccl::Communicator::local(2)?.into_iter().map(|comm| std::thread::spawn(move || {
    /// if comm.rank() == 0 {
    ///     comm.send(&[1.5_f32], 1).run()?;
    /// } else {
    ///     let mut received = [0.0_f32];
    ///     comm.recv(&mut received, 0).run()?;
    ///     assert_eq!(received, [1.5]);
    /// }
    /// # comm.finalize()
    /// # }));
    /// # for rank in ranks.collect::<Vec<_>>() { rank.join().unwrap()?; }
    /// # Ok::<(), spark_ccl::Error>(())
    /// ```
    pub fn send<T, S>(&self, buffer: S, to: usize) -> Call<'_, T, Sending<S>>
    where
        T: Element,
        S: SendBuf<T>,
    {
        Call::new(
            self,
            Spec::new(Operation::Send, T::DTYPE).to(to),
            Sending(buffer),
        )
    }

    /// A message from one rank; type and count must be those of the [`send`](Self::send) there.
    pub fn recv<T, R>(&self, buffer: R, from: usize) -> Call<'_, T, Receiving<R>>
    where
        T: Element,
        R: RecvBuf<T>,
    {
        let spec = Spec::new(Operation::Recv, T::DTYPE).from(from);
        Call::new(self, spec, Receiving(buffer))
    }

    /// A message to one rank and one from another (or the same), at the same time.
    ///
    /// ```
    /// # let ranks = spark_ccl::Communicator::local(2)?.into_iter().map(|comm| std::thread::spawn(move || {
    /// let (rank, other) = (comm.rank(), 1 - comm.rank());
    /// let mut received = [0_u64];
    /// comm.send_recv(&[rank as u64], other, &mut received, other).run()?;
    /// assert_eq!(received, [other as u64]);
    /// # comm.finalize()
    /// # }));
    /// # for rank in ranks.collect::<Vec<_>>() { rank.join().unwrap()?; }
    /// # Ok::<(), spark_ccl::Error>(())
    /// ```
    pub fn send_recv<T, S, R>(
        &self,
        send: S,
        to: usize,
        recv: R,
        from: usize,
    ) -> Call<'_, T, OutOfPlace<S, R>>
    where
        T: Element,
        S: SendBuf<T>,
        R: RecvBuf<T>,
    {
        let spec = Spec::new(Operation::SendRecv, T::DTYPE).to(to).from(from);
        Call::new(self, spec, OutOfPlace(send, recv))
    }

    /// Returns only after all ranks have called it.
    pub fn barrier(&self) -> Call<'_, u8, Nothing> {
        Call::new(self, Spec::new(Operation::Barrier, DType::U8), Nothing)
    }

    /// The barrier of `finalize`, which matches no other call.
    pub(crate) fn last_barrier(&self) -> Call<'_, u8, Nothing> {
        let spec = Spec {
            name: FINALIZING,
            ..Spec::new(Operation::Barrier, DType::U8)
        };
        Call::new(self, spec, Nothing)
    }

    fn reducing<T: Element>(&self, operation: Operation, op: impl Into<Reducer<T>>) -> Spec {
        Spec::reducing(
            operation,
            T::DTYPE,
            Reduction::new(op.into(), self.planner().size),
        )
    }
}
