//! Splitting a communicator.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::Ordering;

use spark_ccl_config::AlgorithmChoice;
use spark_ccl_types::{DType, Operation, RedOp, Reduction};

use crate::call::{Call, InPlace};
use crate::communicator::Communicator;
use crate::deadline::deadline_in;
use crate::error::Error;
use crate::opening::{Caller, communicator, with_devices};
use crate::task::Spec;

impl Communicator {
    /// New communicators, one for each color, with their ranks in the order of `key` (and of the
    /// ranks here, where keys are equal). Collective; a rank without color gets none.
    ///
    /// ```
    /// # let ranks = spark_ccl::Communicator::local(2)?.into_iter().map(|comm| std::thread::spawn(move || {
    /// // Even and odd ranks, each in a communicator of their own.
    /// let part = comm.split(Some(comm.rank() as u32 % 2), 0)?.expect("it has a color");
    /// assert_eq!((part.rank(), part.size()), (0, 1));
    /// # comm.finalize()
    /// # }));
    /// # for rank in ranks.collect::<Vec<_>>() { rank.join().unwrap()?; }
    /// # Ok::<(), spark_ccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Failed`] when the communicator has failed. Links of a new one are made when they
    /// are used first; when one cannot be, all ranks of that new one get an error then, and this
    /// communicator stays as it is.
    pub fn split(&self, color: Option<u32>, key: i32) -> Result<Option<Self>, Error> {
        // A sum, in which everyone else says nothing: fewer messages than gathering takes, to fewer
        // ranks.
        let mut all = vec![0_i64; 2 * self.size()];
        let own = 2 * self.rank();
        all[own..own + 2].copy_from_slice(&[color.map_or(-1, i64::from), i64::from(key)]);
        let sum = Reduction::new(RedOp::<i64>::Sum, self.planner().size);
        let gather = Spec::reducing(Operation::AllReduce, DType::I64, sum);
        let gather = gather.in_place().internal();
        Call::<i64, _>::new(self, gather, InPlace(&mut all)).run()?;
        let count = self.inner.splits.fetch_add(1, Ordering::Relaxed);
        let Some(color) = color else {
            return Ok(None);
        };
        let mut members: Vec<(i64, usize)> = all
            .chunks_exact(2)
            .enumerate()
            .filter(|(_, entry)| entry[0] == i64::from(color))
            .map(|(rank, entry)| (entry[1], rank))
            .collect();
        members.sort_unstable();
        let ranks = members
            .iter()
            .map(|&(_, rank)| self.inner.members[rank])
            .collect();
        let algorithms = self.planner().algorithms.clone();
        let context = [u64::from(count), u64::from(color)];
        let split = self.derive(context, ranks, algorithms, Caller::Program)?;
        let deadline = deadline_in(self.inner.world.settings.init_timeout);
        with_devices(split, deadline).map(Some)
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
        self.agree_on(&choice)?;
        self.of_same_ranks(choice, Caller::Program)
    }

    /// A new communicator of the same ranks, for host memory and this library's own calls. All
    /// ranks must make one.
    #[cfg(feature = "cuda")]
    pub(crate) fn twin(&self) -> Result<Self, Error> {
        self.of_same_ranks(self.planner().algorithms.clone(), Caller::Library)
    }

    /// A new communicator of the same ranks.
    fn of_same_ranks(&self, algorithms: AlgorithmChoice, caller: Caller) -> Result<Self, Error> {
        let count = self.inner.splits.fetch_add(1, Ordering::Relaxed);
        let ranks = self.inner.members.clone();
        // No color: those of splits have 32 bits.
        let context = [u64::from(count), u64::MAX];
        self.derive(context, ranks, algorithms, caller)
    }

    /// Makes sure that all ranks choose alike: messages do not tell the algorithm that they are of.
    fn agree_on(&self, choice: &AlgorithmChoice) -> Result<(), Error> {
        let mut hasher = DefaultHasher::new();
        choice.to_string().hash(&mut hasher);
        let own = hasher.finish();
        let mut all = vec![0; self.size()];
        self.all_gather(&[own], &mut all).internal().run()?;
        match all.iter().position(|&other| other != own) {
            None => Ok(()),
            Some(other) => Err(Error::Invalid {
                operation: "restricted",
                problem: format!(
                    "rank {} chooses {choice}, and rank {other} something else; all ranks must \
                     name the same",
                    self.rank()
                ),
            }),
        }
    }

    /// A new communicator of some of these ranks, in a context that these numbers tell apart.
    fn derive(
        &self,
        [count, color]: [u64; 2],
        ranks: Vec<u32>,
        algorithms: AlgorithmChoice,
        caller: Caller,
    ) -> Result<Self, Error> {
        self.membership().check_process()?;
        let world = &self.inner.world;
        let context = world
            .session
            .derive_context(self.inner.context, count, color);
        communicator(world, context, ranks, algorithms, None, caller)
    }
}
