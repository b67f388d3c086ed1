//! Splitting a communicator.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use spark_ccl_bootstrap::Cancel;
use spark_ccl_config::AlgorithmChoice;
use spark_ccl_types::{DType, Operation, RedOp, Reducer, Reduction};

use super::with_devices_unless;
use crate::api::call::{Call, InPlace};
use crate::api::communicator::Communicator;
use crate::error::Error;
use crate::members::membership::MadeBy;
use crate::task::Spec;
use crate::task::names::fnv1a;
use crate::world::deadline::deadline_in;

/// The key of a rank without color.
const NO_COLOR: i64 = i64::MIN;

/// The ranks' colors and keys in a split.
struct Colors {
    /// By rank: its color and its key.
    entries: Vec<i64>,
    /// The number of the split.
    number: u32,
}

impl Communicator {
    /// New communicators, one for each color, with their ranks in the order of `key` (and of the
    /// ranks here, where keys are equal). Collective; a rank without color gets none. Where every
    /// rank has one, [`split_by`](Self::split_by) is shorter; where all know the ranks,
    /// [`subgroup`](Self::subgroup).
    ///
    /// ```
    /// # let ranks = spark_ccl::Communicator::local(2)?.into_iter().map(|comm| std::thread::spawn(move || {
    /// // The ranks but the first, the last one first.
    /// let color = (comm.rank() > 0).then_some(0);
    /// if let Some(part) = comm.split(color, -(comm.rank() as i32))? {
    ///     assert_eq!((part.rank(), part.size()), (0, 1));
    /// }
    /// # comm.finalize()
    /// # }));
    /// # for rank in ranks.collect::<Vec<_>>() { rank.join().unwrap()?; }
    /// # Ok::<(), spark_ccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Failed`] when the communicator has failed. Links of a new one are made when they
    /// are used first. If one cannot be made, all ranks of the new one get an error then, and this
    /// communicator stays as it is.
    pub fn split(&self, color: Option<u32>, key: i32) -> Result<Option<Self>, Error> {
        self.split_unless(&Cancel::new(), color, key)
    }

    /// Like [`split`](Self::split), unless another thread cancels it. If not all other ranks have
    /// come by then, this rank [leaves](Self::leave) this communicator.
    ///
    /// # Errors
    /// Those of [`split`](Self::split), and that it was cancelled.
    pub fn split_unless(
        &self,
        cancel: &Cancel,
        color: Option<u32>,
        key: i32,
    ) -> Result<Option<Self>, Error> {
        let color = color.map(|color| color as usize);
        let colors = {
            let membership = Arc::downgrade(self.membership());
            let leave = move || {
                // A forked child has left already.
                let _left = membership
                    .upgrade()
                    .map(|membership| membership.leave_now());
            };
            let _on_cancel = cancel.on_cancel(leave);
            self.gather_colors(color, key)
        };
        if colors.is_err() {
            self.renounce_part(color);
        }
        let part = || {
            let (color, colors) = (color, colors?);
            color
                .map(|color| self.part(cancel, color, &colors))
                .transpose()
        };
        part().map_err(|error| cancel.check().map_or_else(Error::from, |()| error))
    }

    /// Tells the others that this rank will not be in the part of its color: they may have its
    /// color, and make the part.
    fn renounce_part(&self, color: Option<usize>) {
        let number = self.inner.splits.fetch_add(1, Ordering::Relaxed);
        if let Some(color) = color {
            let (number, color) = (u64::from(number), color as u64);
            let session = &self.inner.world.session;
            let context = session.derive_context(self.inner.context, number, color);
            self.inner.watch.renounce(context);
        }
    }

    /// New communicators, one for each color, with their ranks in the order that they have here.
    /// Collective; every rank has a color.
    ///
    /// ```
    /// # let ranks = spark_ccl::Communicator::local(2)?.into_iter();
    /// # let ranks = ranks.map(|comm| std::thread::spawn(move || {
    /// // Even and odd ranks, each in a communicator of their own.
    /// let part = comm.split_by(comm.rank() % 2)?;
    /// assert_eq!((part.rank(), part.size()), (0, 1));
    /// # comm.finalize()
    /// # }));
    /// # let ranks: Vec<_> = ranks.collect();
    /// # for rank in ranks { rank.join().unwrap()?; }
    /// # Ok::<(), spark_ccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`split`](Self::split).
    pub fn split_by(&self, color: usize) -> Result<Self, Error> {
        let colors = self.gather_colors(Some(color), 0)?;
        self.part(&Cancel::new(), color, &colors)
    }

    /// A new communicator of these ranks, in this order. Collective: all ranks call it with the
    /// same ranks in the same order, also ranks that are not named and get none. An empty list is
    /// none for all.
    ///
    /// ```
    /// # let ranks = spark_ccl::Communicator::local(3)?.into_iter();
    /// # let ranks = ranks.map(|comm| std::thread::spawn(move || {
    /// let ends = comm.subgroup(&[2, 0])?;
    /// let rank = ends.as_ref().map(spark_ccl::Communicator::rank);
    /// assert_eq!(rank, [Some(1), None, Some(0)][comm.rank()]);
    /// # comm.finalize()
    /// # }));
    /// # let ranks: Vec<_> = ranks.collect();
    /// # for rank in ranks { rank.join().unwrap()?; }
    /// # Ok::<(), spark_ccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for a rank that does not exist or is named twice, and on all ranks where
    /// one names others; else as for [`split`](Self::split).
    pub fn subgroup(&self, ranks: &[usize]) -> Result<Option<Self>, Error> {
        // A rank whose list is wrong tells the others, too: they wait for its choice.
        self.agree_on("subgroup", &format!("{ranks:?}"))?;
        let members = self.distinct(ranks)?;
        let context = self.uncolored();
        if !ranks.contains(&self.rank()) {
            return Ok(None);
        }
        let algorithms = self.planner().algorithms.clone();
        let group = self.derive(context, members, algorithms, MadeBy::Program)?;
        self.open_part(&Cancel::new(), group).map(Some)
    }

    /// A new communicator of the same ranks, for host memory, which takes only these algorithms, as
    /// `SPARK_CCL_ALGO` does for all. Collective; all ranks must choose alike. For measurements.
    ///
    /// ```
    /// # let comm = spark_ccl::Communicator::local(1)?.remove(0);
    /// use spark_ccl::Algorithm;
    ///
    /// let ring = comm.restricted(Algorithm::Ring)?;
    /// let no_trees = comm.restricted("^double-tree,binomial".parse::<spark_ccl::AlgorithmChoice>()?)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] on all ranks where one chooses otherwise; else as for
    /// [`split`](Self::split).
    pub fn restricted(&self, algorithms: impl Into<AlgorithmChoice>) -> Result<Self, Error> {
        let choice = algorithms.into();
        self.agree_on("restricted", &choice.to_string())?;
        let restricted = self.of_same_ranks(choice, MadeBy::Program)?;
        restricted.apply_timeout(self.membership().timeout()?);
        Ok(restricted)
    }

    /// Every rank's color and key, and the number of this split.
    fn gather_colors(&self, color: Option<usize>, key: i32) -> Result<Colors, Error> {
        // A sum, to which the other ranks contribute zeros here: fewer messages than gathering
        // takes, to fewer ranks.
        let mut entries = vec![0_i64; 2 * self.size()];
        let own = match color {
            Some(color) => [color as i64, i64::from(key)],
            None => [0, NO_COLOR],
        };
        let at = 2 * self.rank();
        entries[at..at + 2].copy_from_slice(&own);
        let sum = Reduction::new(Reducer::<i64>::Op(RedOp::Sum), self.planner().size);
        let gather = Spec::reducing(Operation::AllReduce, DType::I64, sum);
        let gather = gather.in_place().internal();
        Call::<i64, _>::new(self, gather, InPlace(&mut entries)).run()?;
        let number = self.inner.splits.fetch_add(1, Ordering::Relaxed);
        Ok(Colors { entries, number })
    }

    /// The communicator of the ranks that have this color, as this one does.
    fn part(&self, cancel: &Cancel, color: usize, colors: &Colors) -> Result<Self, Error> {
        let entries = colors.entries.chunks_exact(2).enumerate();
        let mut members: Vec<(i64, usize)> = entries
            .filter(|(_, entry)| entry[0] == color as i64 && entry[1] != NO_COLOR)
            .map(|(rank, entry)| (entry[1], rank))
            .collect();
        members.sort_unstable();
        let members = members.iter().map(|&(_, rank)| self.inner.members[rank]);
        let algorithms = self.planner().algorithms.clone();
        let context = [u64::from(colors.number), color as u64];
        let part = self.derive(context, members.collect(), algorithms, MadeBy::Program)?;
        self.open_part(cancel, part)
    }

    /// A part with this one's time and backend for device memory.
    fn open_part(&self, cancel: &Cancel, part: Self) -> Result<Self, Error> {
        part.apply_timeout(self.membership().timeout()?);
        let deadline = deadline_in(self.inner.world.settings.init_timeout);
        with_devices_unless(cancel, part, deadline)
    }

    /// The world ranks of these ranks, which must be distinct.
    fn distinct(&self, ranks: &[usize]) -> Result<Vec<u32>, Error> {
        let invalid = |problem| Error::Invalid {
            operation: "subgroup",
            problem,
        };
        let mut seen = BTreeSet::new();
        let world = |&rank: &usize| match self.inner.members.get(rank) {
            None => Err(invalid(format!(
                "there is no rank {rank} among {} ranks",
                self.size()
            ))),
            Some(_) if !seen.insert(rank) => Err(invalid(format!("rank {rank} is named twice"))),
            Some(&world) => Ok(world),
        };
        ranks.iter().map(world).collect()
    }

    /// Makes sure that all ranks choose alike: messages do not show what they chose.
    fn agree_on(&self, operation: &'static str, choice: &str) -> Result<(), Error> {
        let own = fnv1a(choice);
        let mut all = vec![0_u32; self.size()];
        self.all_gather(&[own], &mut all).internal().run()?;
        match all.iter().position(|&other| other != own) {
            None => Ok(()),
            Some(other) => Err(Error::Invalid {
                operation,
                problem: format!(
                    "rank {} chooses {choice}, and rank {other} something else; all ranks must \
                     name the same",
                    self.rank()
                ),
            }),
        }
    }
}
