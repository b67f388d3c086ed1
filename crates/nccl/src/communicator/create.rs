//! Making communicators: from an id, for all devices of a process, or from another communicator.

use std::ffi::c_int;
use std::marker::PhantomData;
use std::ops::RangeInclusive;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Communicator, Inner, State, group};
use crate::raw::{self, ncclComm_t, ncclConfig_t};
use crate::{ArgumentError, Config, Error, Library, UniqueId};

/// The fate of the old communicator when it is shrunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShrinkMode {
    /// It stays as it is: no operation may be in progress on it.
    Default = 0,
    /// Operations in progress on it are stopped first. This also works after it has failed.
    Abort = 1,
}

/// The call that makes a communicator: takes the place for the handle, and the configuration.
type CreateCall<'a> = &'a dyn Fn(*mut ncclComm_t, *mut ncclConfig_t) -> raw::Code;

impl Communicator {
    /// Makes rank `rank` of `size`, on this thread's current device. All ranks do this with the
    /// same `id`, each on its own thread or all in one [`group`](Library::group).
    ///
    /// ```no_run
    /// # use spark_ccl_nccl::{Communicator, Config, Error, Library};
    /// # fn make(rank: usize, size: usize) -> Result<(), Error> {
    /// let library = Library::open()?;
    /// let id = library.unique_id()?; // on one rank; the others are given it
    /// let comm = Communicator::init_rank(library, size, id, rank, &Config::default())?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// An argument is wrong, NCCL fails, or a nonblocking communicator is not ready in time.
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
        // SAFETY: `create` passes valid pointers to the handle and to the configuration; the other
        // arguments are values.
        let call = |comm, config| unsafe { function(comm, ranks, id.raw(), number, config) };
        Self::create(NAME, library, (size, rank), config, &call)
    }

    /// Like [`init_rank`](Self::init_rank), with several ids in the same order on all ranks. Each
    /// id serves some of the ranks, so that a large communicator starts sooner.
    ///
    /// # Errors
    ///
    /// Those of [`init_rank`](Self::init_rank); or NCCL is older than 2.23.4.
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
        // SAFETY: `create` passes valid pointers to the handle and to the configuration. `ids` has
        // `count` elements and outlives the call; NCCL only reads them, before it returns.
        let call = |comm, config| unsafe { function(comm, ranks, number, count, first, config) };
        Self::create(NAME, library, (size, rank), config, &call)
    }

    /// Joins a communicator that grows to `size` ranks, as the new rank `rank`; `id` is the result
    /// of [`growth_id`](Self::growth_id).
    ///
    /// # Errors
    ///
    /// Those of [`init_rank`](Self::init_rank); or NCCL is older than 2.29.2.
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
        // SAFETY: `create` passes valid pointers to the handle and to the configuration. New ranks
        // pass a null parent, and NCCL only reads the id, before it returns.
        let call =
            |comm, config| unsafe { function(none, ranks, &raw const id, number, comm, config) };
        Self::create(NAME, library, (size, rank), config, &call)
    }

    /// Makes one blocking communicator for each device, all in this process. Rank `r` is on
    /// `devices[r]`.
    ///
    /// # Errors
    ///
    /// NCCL fails, or this thread has an open group.
    pub fn init_all(library: Library, devices: &[i32]) -> Result<Vec<Self>, Error> {
        const NAME: &str = "ncclCommInitAll";
        if group::is_open(library) {
            let (operation, in_other_thread) = (NAME, false);
            return Err(Error::Grouped {
                operation,
                in_other_thread,
            });
        }
        let size = devices.len();
        let (ranks, _) = checked(NAME, size, 0)?;
        let mut raw = vec![ptr::null_mut(); size];
        // SAFETY: `raw` and `devices` both have `ranks` elements.
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

    /// Makes a communicator of the ranks that pass the same `color`, ordered by `key`. All ranks
    /// take part; a rank without a color gets no communicator. Without a configuration, the new one
    /// has this one's.
    ///
    /// # Errors
    ///
    /// Those of [`init_rank`](Self::init_rank).
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
            // SAFETY: `derive` passes the handle of a live communicator of this thread, a valid
            // pointer for the new handle, and a valid or null configuration.
            unsafe { function(parent, number, key, child, config) }
        })?;
        Ok(color.map(|_| split))
    }

    /// Makes a communicator without some of the ranks, which do not take part in the call. Without
    /// a configuration, the new one has this one's.
    ///
    /// # Errors
    ///
    /// Those of [`init_rank`](Self::init_rank); or NCCL is older than 2.27.3.
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
            // SAFETY: `derive` passes the handle of a live communicator of this thread, a valid
            // pointer for the new handle, and a valid or null configuration. The list has `count`
            // ranks, which this function owns; NCCL sorts and copies it before it returns.
            unsafe { function(parent, list, count, child, config, mode as c_int) }
        })
    }

    /// Makes the id with which new ranks join ([`init_grown`](Self::init_grown)). One rank makes
    /// it, sends it to the new ranks, and passes it to [`grow`](Self::grow).
    ///
    /// # Errors
    ///
    /// NCCL is older than 2.29.2, or an earlier id has not been used.
    pub fn growth_id(&self) -> Result<UniqueId, Error> {
        let function = self.inner.library.api.ncclCommGetUniqueId()?;
        let mut id = UniqueId([0; 128]).raw();
        // SAFETY: `raw` is the handle of a live communicator, and NCCL overwrites the bytes of
        // `id`.
        self.call("ncclCommGetUniqueId", |_, raw| unsafe {
            function(raw, &raw mut id)
        })?;
        Ok(UniqueId::from_raw(id))
    }

    /// Makes a communicator of `size` ranks: the present ones, which keep their numbers, and new
    /// ones. The rank that made the id passes it, the others pass none.
    ///
    /// # Errors
    ///
    /// Those of [`init_rank`](Self::init_rank); or NCCL is older than 2.29.2.
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
            // SAFETY: `derive` passes the handle of a live communicator of this thread, a valid
            // pointer for the new handle, and a valid or null configuration. The id is null, or
            // lives in this function, and NCCL reads it before it returns.
            unsafe { function(parent, size as c_int, id, KEEP_RANK, child, config) }
        })
    }
}

impl Communicator {
    fn of(inner: Arc<Inner>) -> Self {
        let not_sync = PhantomData;
        Self { inner, not_sync }
    }

    /// Makes a communicator that is not derived from another.
    fn create(
        name: &'static str,
        library: Library,
        of: (usize, usize),
        config: &Config,
        call: CreateCall<'_>,
    ) -> Result<Self, Error> {
        let mut config_raw = config.raw(library, name)?;
        let made = Self::of(Arc::new(Inner::new(library, config.timeout, Some(of))));
        let grouped = group::join(&made.inner, name)?;
        let code = call(made.inner.raw.as_ptr(), &raw mut config_raw.raw);
        made.inner.settle_begun(name, code, grouped)?;
        Ok(made)
    }

    /// Makes a communicator from this one. Its handle is null on a rank outside of it.
    fn derive(
        &self,
        worst: State,
        name: &'static str,
        config: Option<&Config>,
        call: impl FnOnce(ncclComm_t, *mut ncclComm_t, *mut ncclConfig_t) -> raw::Code,
    ) -> Result<Self, Error> {
        let library = self.inner.library;
        let timeout = config.map_or_else(|| self.inner.call_timeout.get(), |config| config.timeout);
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

    /// Waits until NCCL has made `child` from this communicator: NCCL's success only means that it
    /// has started.
    fn wait_for_child(&self, name: &'static str, child: &Inner) -> Result<(), Error> {
        match self.inner.wait(name) {
            // If the communicator had failed before it was shrunk, NCCL still reports that failure.
            Err(Error::Call(_)) if !child.raw().is_null() => {}
            waited => waited?,
        }
        child.wait(name)
    }
}

/// Checks the number of ranks and a rank, and converts both, in that order, to NCCL's type.
fn checked(name: &'static str, ranks: usize, seen: usize) -> Result<(c_int, c_int), Error> {
    within(name, "the number of ranks", ranks, 1..=c_int::MAX as usize)?;
    if seen >= ranks {
        let what = "rank";
        return Err(argument_error(
            name,
            ArgumentError::Rank { what, seen, ranks },
        ));
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
    Err(argument_error(
        name,
        ArgumentError::Beyond {
            what,
            seen,
            least,
            most,
        },
    ))
}

fn argument_error(operation: &'static str, error: ArgumentError) -> Error {
    let rank = None;
    Error::Argument {
        operation,
        rank,
        error,
    }
}

/// `NCCL_SPLIT_NOCOLOR`.
const NO_COLOR: c_int = -1;

/// The rank that present ranks pass when a communicator grows.
const KEEP_RANK: c_int = -1;
