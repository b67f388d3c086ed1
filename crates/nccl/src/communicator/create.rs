use std::ffi::c_int;
use std::marker::PhantomData;
use std::ops::RangeInclusive;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Communicator, Inner, State, group};
use crate::raw::{self, ncclComm_t, ncclConfig_t};
use crate::{ArgumentError, Config, Error, Library, UniqueId};

/// What happens to the communicator that is shrunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShrinkMode {
    /// Nothing is under way on it, and nothing happens to it.
    Default = 0,
    /// What is under way on it is ended first; also for one that has failed.
    Abort = 1,
}

/// The first call of a new communicator: where NCCL writes it, and its configuration.
type First<'a> = &'a dyn Fn(*mut ncclComm_t, *mut ncclConfig_t) -> raw::Code;

impl Communicator {
    /// Makes rank `rank` of `size`, on the device that is current on this thread. All ranks do this
    /// with the same `id`, on threads of their own or in one [`group`](Library::group).
    ///
    /// ```no_run
    /// # use spark_ccl_nccl::{Communicator, Config, Error, Library};
    /// # fn make(rank: usize, size: usize) -> Result<(), Error> {
    /// let library = Library::open(None)?;
    /// let id = library.unique_id()?; // on one rank; the others are given it
    /// let comm = Communicator::init_rank(library, size, id, rank, &Config::default())?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// An argument is wrong, NCCL fails, or, if it does not block, it is not done in time.
    pub fn init_rank(
        library: Library,
        size: usize,
        id: UniqueId,
        rank: usize,
        config: &Config,
    ) -> Result<Self, Error> {
        const NAME: &str = "ncclCommInitRankConfig";
        let (ranks, number) = checked(NAME, size, rank)?;
        let function = library.api.ncclCommInitRankConfig;
        // SAFETY: `first` gives a place for the communicator and a configuration.
        let call = |comm, config| unsafe { function(comm, ranks, id.raw(), number, config) };
        Self::first(NAME, library, (size, rank), config, &call)
    }

    /// As [`init_rank`](Self::init_rank), with several ids, in the same order on all ranks: each
    /// serves some of the ranks, so that many start sooner.
    ///
    /// # Errors
    ///
    /// As for [`init_rank`](Self::init_rank); or NCCL is older than 2.23.4.
    pub fn init_scalable(
        library: Library,
        size: usize,
        ids: &[UniqueId],
        rank: usize,
        config: &Config,
    ) -> Result<Self, Error> {
        const NAME: &str = "ncclCommInitRankScalable";
        let (ranks, number) = checked(NAME, size, rank)?;
        within(NAME, "the number of ids", ids.len(), 1..=size)?;
        let function = library.api.ncclCommInitRankScalable()?;
        let ids: Vec<_> = ids.iter().map(|id| id.raw()).collect();
        let (first, count) = (ids.as_ptr().cast_mut(), ids.len() as c_int);
        // SAFETY: as in `init_rank`; NCCL only reads the ids, before it returns.
        let call = |comm, config| unsafe { function(comm, ranks, number, count, first, config) };
        Self::first(NAME, library, (size, rank), config, &call)
    }

    /// Joins a communicator that grows to `size` ranks, as the new rank `rank`; `id` is what
    /// [`growth_id`](Self::growth_id) gave.
    ///
    /// # Errors
    ///
    /// As for [`init_rank`](Self::init_rank); or NCCL is older than 2.29.2.
    pub fn init_grown(
        library: Library,
        size: usize,
        id: UniqueId,
        rank: usize,
        config: &Config,
    ) -> Result<Self, Error> {
        const NAME: &str = "ncclCommGrow";
        let (ranks, number) = checked(NAME, size, rank)?;
        let function = library.api.ncclCommGrow()?;
        let id = id.raw();
        let none = ptr::null_mut();
        // SAFETY: as in `init_rank`; NCCL only reads the id, before it returns.
        let call =
            |comm, config| unsafe { function(none, ranks, &raw const id, number, comm, config) };
        Self::first(NAME, library, (size, rank), config, &call)
    }

    /// Makes one communicator for each device, all of this process; rank `r` is on `devices[r]`. They
    /// block.
    ///
    /// # Errors
    ///
    /// NCCL fails, or this is in a group.
    pub fn init_all(library: Library, devices: &[i32]) -> Result<Vec<Self>, Error> {
        const NAME: &str = "ncclCommInitAll";
        if group::is_open(library) {
            let (operation, elsewhere) = (NAME, false);
            return Err(Error::Grouped {
                operation,
                elsewhere,
            });
        }
        let size = devices.len();
        let (ranks, _) = checked(NAME, size, 0)?;
        let mut raw = vec![ptr::null_mut(); size];
        // SAFETY: both have as many elements as NCCL is told.
        let code =
            unsafe { (library.api.ncclCommInitAll)(raw.as_mut_ptr(), ranks, devices.as_ptr()) };
        library.check(NAME, code)?;
        let made = |(rank, raw)| {
            let inner = Inner::new(library, Config::default().timeout, Some((size, rank)));
            inner.raw.store(raw, Ordering::Relaxed);
            Self::of(Arc::new(inner))
        };
        Ok(raw.into_iter().enumerate().map(made).collect())
    }

    /// Makes a communicator of the ranks that give the same `color`, in the order of `key`. All ranks
    /// do this; who gives no color gets no communicator. Without a configuration, it has this one's.
    ///
    /// # Errors
    ///
    /// As for [`init_rank`](Self::init_rank).
    pub fn split(
        &self,
        color: Option<u32>,
        key: i32,
        config: Option<&Config>,
    ) -> Result<Option<Self>, Error> {
        const NAME: &str = "ncclCommSplit";
        let number = color.map_or(NO_COLOR, |color| color as c_int);
        within(
            NAME,
            "the color",
            color.unwrap_or(0) as usize,
            0..=c_int::MAX as usize,
        )?;
        let function = self.inner.library.api.ncclCommSplit;
        let split = self.derive(State::Revoked, NAME, config, |parent, child, config| {
            // SAFETY: the communicator lives, and is this thread's; `derive` gives the rest.
            unsafe { function(parent, number, key, child, config) }
        })?;
        Ok(color.map(|_| split))
    }

    /// Makes a communicator without some of the ranks, which do not take part. Without a
    /// configuration, it has this one's.
    ///
    /// # Errors
    ///
    /// As for [`init_rank`](Self::init_rank); or NCCL is older than 2.27.3.
    pub fn shrink(
        &self,
        without: &[usize],
        mode: ShrinkMode,
        config: Option<&Config>,
    ) -> Result<Self, Error> {
        const NAME: &str = "ncclCommShrink";
        let function = self.inner.library.api.ncclCommShrink()?;
        let worst = match mode {
            ShrinkMode::Default => State::Revoked,
            ShrinkMode::Abort => State::Failed,
        };
        let call = self.begin_up_to(worst, NAME)?;
        let excluded = without.iter().map(|rank| call.rank("excluded rank", *rank));
        let mut excluded = excluded.collect::<Result<Vec<_>, _>>()?;
        let count = excluded.len() as c_int;
        self.derive(worst, NAME, config, |parent, child, config| {
            let list = excluded.as_mut_ptr();
            // SAFETY: as in `split`; the list has as many ranks as NCCL is told, and is read before
            // it returns.
            unsafe { function(parent, list, count, child, config, mode as c_int) }
        })
    }

    /// What new ranks need to join ([`init_grown`](Self::init_grown)). One rank makes it, passes it on,
    /// and gives it to [`grow`](Self::grow).
    ///
    /// # Errors
    ///
    /// NCCL is older than 2.29.2, or another one has not been used.
    pub fn growth_id(&self) -> Result<UniqueId, Error> {
        let function = self.inner.library.api.ncclCommGetUniqueId()?;
        let mut id = UniqueId([0; 128]).raw();
        // SAFETY: the communicator lives; the bytes are filled in.
        self.call("ncclCommGetUniqueId", |_, raw| unsafe {
            function(raw, &raw mut id)
        })?;
        Ok(UniqueId::from_raw(id))
    }

    /// Makes a communicator of `size` ranks: these, with their numbers, and new ones that join. The
    /// rank that made the id gives it, the others none.
    ///
    /// # Errors
    ///
    /// As for [`init_rank`](Self::init_rank); or NCCL is older than 2.29.2.
    pub fn grow(
        &self,
        size: usize,
        id: Option<UniqueId>,
        config: Option<&Config>,
    ) -> Result<Self, Error> {
        const NAME: &str = "ncclCommGrow";
        let function = self.inner.library.api.ncclCommGrow()?;
        within(
            NAME,
            "the number of ranks",
            size,
            self.size()? + 1..=c_int::MAX as usize,
        )?;
        let id = id.map(UniqueId::raw);
        let id = id.as_ref().map_or(ptr::null(), ptr::from_ref);
        self.derive(State::Ready, NAME, config, |parent, child, config| {
            // SAFETY: as in `split`; the id is null, or read before this returns.
            unsafe { function(parent, size as c_int, id, KEEP_RANK, child, config) }
        })
    }
}

impl Communicator {
    fn of(inner: Arc<Inner>) -> Self {
        let not_sync = PhantomData;
        Self { inner, not_sync }
    }

    /// Makes a communicator that comes from no other.
    fn first(
        name: &'static str,
        library: Library,
        of: (usize, usize),
        config: &Config,
        call: First<'_>,
    ) -> Result<Self, Error> {
        let mut config_raw = config.raw(library, name)?;
        let made = Self::of(Arc::new(Inner::new(library, config.timeout, Some(of))));
        let grouped = group::join(&made.inner, name)?;
        let code = call(made.inner.raw.as_ptr(), &raw mut config_raw.raw);
        made.inner.settle_begun(name, code, grouped)?;
        Ok(made)
    }

    /// Makes a communicator from this one. It is null for a rank that is not in it.
    fn derive(
        &self,
        worst: State,
        name: &'static str,
        config: Option<&Config>,
        call: impl FnOnce(ncclComm_t, *mut ncclComm_t, *mut ncclConfig_t) -> raw::Code,
    ) -> Result<Self, Error> {
        let library = self.inner.library;
        let timeout = config.map_or_else(|| self.inner.patience.get(), |config| config.timeout);
        let mut config = config.map(|config| config.raw(library, name)).transpose()?;
        let config = config
            .as_mut()
            .map_or(ptr::null_mut(), |config| &raw mut config.raw);
        let operation = self.begin_up_to(worst, name)?;
        let made = Self::of(Arc::new(Inner::new(library, timeout, None)));
        group::join(&made.inner, name)?;
        let grouped = operation.grouped;
        let code = call(operation.raw, made.inner.raw.as_ptr(), config);
        let mut settled = operation.finish(code);
        if settled.is_ok() && !grouped {
            settled = self.wait_for_child(name, &made.inner);
        }
        if settled.is_err() {
            self.inner.keep(made.inner.clone());
        }
        settled.map(|()| made)
    }

    /// Waits until NCCL has made a communicator from this one, which it says to have done when it has
    /// only begun.
    fn wait_for_child(&self, name: &'static str, child: &Inner) -> Result<(), Error> {
        match self.inner.wait(name) {
            // A communicator that had failed before it was shrunk goes on to say so.
            Err(Error::Call(_)) if !child.raw().is_null() => {}
            waited => waited?,
        }
        child.wait(name)
    }
}

/// Checks a rank and the number of ranks; gives the number, then the rank, for NCCL.
fn checked(name: &'static str, ranks: usize, seen: usize) -> Result<(c_int, c_int), Error> {
    within(name, "the number of ranks", ranks, 1..=c_int::MAX as usize)?;
    if seen >= ranks {
        let what = "rank";
        return Err(refused(name, ArgumentError::Rank { what, seen, ranks }));
    }
    Ok((ranks as c_int, seen as c_int))
}

fn within(
    name: &'static str,
    what: &'static str,
    seen: usize,
    range: RangeInclusive<usize>,
) -> Result<(), Error> {
    let (least, most) = (*range.start(), *range.end());
    if range.contains(&seen) {
        return Ok(());
    }
    Err(refused(
        name,
        ArgumentError::Beyond {
            what,
            seen,
            least,
            most,
        },
    ))
}

fn refused(operation: &'static str, error: ArgumentError) -> Error {
    let rank = None;
    Error::Argument {
        operation,
        rank,
        error,
    }
}

/// `NCCL_SPLIT_NOCOLOR`.
const NO_COLOR: c_int = -1;

/// What ranks that were there before give as their number when a communicator grows.
const KEEP_RANK: c_int = -1;
