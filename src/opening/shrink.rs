//! `Communicator::shrink` and `recover`: going on without lost ranks. The agreement itself is in
//! `lineage.rs`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use spark_ccl_bootstrap::Cancel;
use spark_ccl_control::Rule;

use super::with_devices_unless;
use crate::api::assembly::communicator;
use crate::api::communicator::Communicator;
use crate::error::Error;
use crate::members::lineage::Wish;
use crate::members::membership::MadeBy;
use crate::world::deadline::deadline_in;

impl Communicator {
    /// A new communicator of the ranks that are left, in their old order, where the user says
    /// who is left out. All of them must call it, on a communicator that has failed or one that
    /// works; it stays as it is. Where the user does not know better than the library,
    /// [`recover`](Self::recover) is right: do not take `lost` from
    /// [`Fault::ranks`](crate::Fault::ranks), which may differ between ranks.
    ///
    /// Ranks that are dead or lost, or whose processes have left the world, are left out
    /// automatically, also if they die meanwhile. `lost` names further ranks to leave out, such as
    /// stopped or hanging ones, by their ranks in this communicator. All ranks must name the same
    /// ones; order, repetitions and dead ranks do not matter. If `lost` is empty and nobody has
    /// died, the new communicator has all ranks, for instance after [`abort`](Self::abort).
    ///
    /// A rank that is left out but alive gets an error from its own call, and cannot disturb the
    /// new communicator. If two groups of ranks name each other as lost, each gets a communicator
    /// of its own; so do the two sides of a network that is cut. If only one side may go on,
    /// compare [`size`](Self::size) with the old one.
    ///
    /// If a rank dies during the call, some ranks may already have the new communicator, which has
    /// then failed, and shrink it again. The others are still in their first call, and all get the
    /// same communicator. So after a shrink, the ranks must agree again on where the user goes
    /// on. A communicator that was shrunk can be shrunk again, and split; its links are made when
    /// they are used first. With [`Backend::Nccl`](crate::Backend::Nccl) or
    /// [`Backend::Engine`](crate::Backend::Engine), it gets one of the backend's, as for
    /// [`split`](Self::split).
    ///
    /// ```
    /// # use spark_ccl::{Communicator, RedOp};
    /// # let ranks = Communicator::local(3)?.into_iter().map(|comm| std::thread::spawn(move || {
    /// if comm.rank() == 1 {
    ///     return Ok(()); // This rank hangs, say.
    /// }
    /// let comm = comm.shrink(&[1])?;
    /// let mut count = [1_u32];
    /// comm.all_reduce_in_place(&mut count, RedOp::Sum).run()?;
    /// assert_eq!(count, [2]);
    /// # comm.finalize()
    /// # }));
    /// # let ranks: Vec<_> = ranks.collect();
    /// # for rank in ranks { rank.join().unwrap()?; }
    /// # Ok::<(), spark_ccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] when `lost` names this rank or one that does not exist, or while another
    /// thread shrinks the same communicator, or one that comes from it. [`Error::LeftOut`] when
    /// others go on without this rank. [`Error::Shrink`] when the ranks that are left have not all
    /// called it within the init timeout ([`Builder::init_timeout`](crate::Builder::init_timeout)),
    /// or name different ranks: who is missing, and what the others named. It can be called again
    /// then. From [`recover`](Self::recover), a rank that it would have left out may get
    /// [`Error::LeftOut`] from then on: nobody can tell it whether others have gone on without it.
    pub fn shrink(&self, lost: &[usize]) -> Result<Self, Error> {
        self.shrink_unless(&Cancel::new(), lost)
    }

    /// The same, unless another thread cancels it while it waits for the other ranks.
    ///
    /// # Errors
    /// Those of [`shrink`](Self::shrink), and that it was cancelled.
    pub fn shrink_unless(&self, cancel: &Cancel, lost: &[usize]) -> Result<Self, Error> {
        self.membership().check_process()?;
        let rest = self.go_on("shrink", Rule::Named(self.lost(lost)?), cancel);
        rest.map_err(|error| cancel.check().map_or_else(Error::from, |()| error))
    }

    /// A new communicator of the ranks that are left, in their old order, on which these ranks
    /// agree by themselves. All of them must call it, on a communicator that has failed or one that
    /// works; it stays as it is.
    ///
    /// Ranks that are dead or lost, or whose processes have left the world, are left out, also if
    /// they die meanwhile. So are stopped ranks (by a signal, a debugger, or because their hosts
    /// hang) that for 5 s (`SPARK_CCL_LOST_AFTER`) have answered none of the others. A rank that
    /// answers is waited for, even if it hangs in the user: only [`shrink`](Self::shrink) leaves it
    /// out. If no rank is missing, for instance after [`abort`](Self::abort), the new communicator
    /// has all ranks.
    ///
    /// A rank that was left out gets [`Error::LeftOut`] when it calls this, whenever it wakes up.
    ///
    /// At most one group of ranks goes on. A rank that is stopped or lost may still work. So the
    /// ranks that are left must be more than half of the ranks that may still run, or half of them
    /// with the first. So if the network between hosts is cut, or a firewall refuses connections
    /// between them, one side goes on, and the other gets an error.
    ///
    /// Only a rank on the same host sees that a process has ended for sure. Where all ranks of a
    /// host end at once, the others cannot tell that from a firewall, and need a majority against
    /// them, too. Of two hosts with as many ranks each, the one without the first rank gets
    /// [`Error::Shrink`]. If the user knows that the others have ended, [`shrink`](Self::shrink)
    /// goes on without them.
    ///
    /// As after [`shrink`](Self::shrink), some ranks may already have the new communicator when one
    /// dies during the call, and the ranks must agree again on where the user goes on.
    ///
    /// ```
    /// # use spark_ccl::{Communicator, Error, RedOp};
    /// # let ranks = Communicator::local(3)?.into_iter();
    /// # let ranks = ranks.map(|mut comm| std::thread::spawn(move || {
    /// # if comm.rank() == 1 { return Ok(()); }
    /// let mut count = [1_u32];
    /// if let Err(Error::Failed(_)) = comm.all_reduce_in_place(&mut count, RedOp::Sum).run() {
    ///     comm = comm.recover()?;
    ///     count = [1];
    ///     comm.all_reduce_in_place(&mut count, RedOp::Sum).run()?;
    /// }
    /// assert_eq!(count, [2]); // Rank 1 has left.
    /// # comm.finalize()
    /// # }));
    /// # let ranks: Vec<_> = ranks.collect();
    /// # for rank in ranks { rank.join().unwrap()?; }
    /// # Ok::<(), spark_ccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::LeftOut`] when others go on without this rank. [`Error::Shrink`] when the ranks
    /// that answer have not all called it within the init timeout
    /// ([`Builder::init_timeout`](crate::Builder::init_timeout)), do not hear the same ranks, or
    /// are too few: who is missing. It can be called again then. [`Error::Invalid`] while another
    /// thread shrinks or recovers the same communicator, or one that comes from it.
    pub fn recover(&self) -> Result<Self, Error> {
        self.membership().check_process()?;
        self.go_on("recover", Rule::Answering, &Cancel::new())
    }

    fn go_on(&self, operation: &'static str, rule: Rule, cancel: &Cancel) -> Result<Self, Error> {
        let world = &self.inner.world;
        let wish = Wish {
            operation,
            watch: &self.inner.watch,
            members: &self.inner.members,
            rule,
            silent_after: world.settings.lost_after,
            cancel,
        };
        let bid = self.inner.lineage.bid(&world.session, wish);
        let mut bid = bid.ok_or_else(|| Error::Invalid {
            operation,
            problem:
                "another thread of this rank shrinks the communicator, or one that comes from it"
                    .to_owned(),
        })?;
        let deadline = deadline_in(world.settings.init_timeout);
        loop {
            let (context, members) = bid.agree(deadline)?;
            let shrunk = self.shrunk(cancel, context, members, deadline);
            let works = |shrunk: &Self| shrunk.check().is_ok() && shrunk.inner.watch.is_whole();
            let works = shrunk.as_ref().is_ok_and(works);
            // Others may not have come so far, and wait for a proposal without the rank that is
            // gone.
            if !works && bid.has_lost_survivor() && Instant::now() < deadline {
                continue;
            }
            if shrunk.is_ok() {
                bid.accept();
            }
            return shrunk;
        }
    }

    /// The world ranks of the ranks that the caller names as lost.
    fn lost(&self, lost: &[usize]) -> Result<BTreeSet<u32>, Error> {
        let invalid = |problem| Error::Invalid {
            operation: "shrink",
            problem,
        };
        let world = |&rank: &usize| match self.inner.members.get(rank) {
            None => Err(invalid(format!("rank {rank} of {} is lost", self.size()))),
            Some(_) if rank == self.rank() => Err(invalid(format!(
                "rank {rank} calls itself lost; `lost` is for other ranks"
            ))),
            Some(&world) => Ok(world),
        };
        lost.iter().map(world).collect()
    }

    fn shrunk(
        &self,
        cancel: &Cancel,
        context: u64,
        members: Vec<u32>,
        deadline: Instant,
    ) -> Result<Self, Error> {
        let algorithms = self.planner().algorithms.clone();
        let lineage = Some(Arc::clone(&self.inner.lineage));
        let timeout = self.membership().timeout()?;
        let shrunk = communicator(
            &self.inner.world,
            context,
            members,
            algorithms,
            lineage,
            MadeBy::Program,
        )?;
        shrunk.apply_timeout(timeout);
        with_devices_unless(cancel, shrunk, deadline)
    }
}
