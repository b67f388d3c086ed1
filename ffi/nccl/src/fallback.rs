//! The library of NVIDIA's that `SPARK_CCL_NCCL_FALLBACK` names: what is not done here goes there.
//! It is opened once, by that path, and never closed. Knows no communicator.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use spark_ccl::Communicator;
use spark_ccl_abi::failure::{Failure, Kind};
use spark_ccl_abi::groups::Progress;

use crate::status::Status;
use crate::types::{ncclComm_t, ncclUniqueId};

/// The variable that names it.
const VARIABLE: &str = "SPARK_CCL_NCCL_FALLBACK";
/// The C library's: what the opened library calls is its own, also where this one has a function of
/// the same name.
const RTLD_DEEPBIND: c_int = 8;
/// The oldest version that has communicators with a configuration of today's beginning.
const OLDEST: c_int = 2_18_00;

/// How often a communicator is asked whether it is ready.
const POLL_EVERY: Duration = Duration::from_millis(1);

/// `None` in it: the variable is not set.
static REAL: OnceLock<Option<Real>> = OnceLock::new();

unsafe extern "C" {
    /// This library's own.
    fn ncclGetVersion(version: *mut c_int) -> Status;
}

/// The library, opened.
#[derive(Debug)]
pub(crate) struct Real {
    library: Library,
    path: String,
    version: c_int,
}

/// The library, if the variable names one.
///
/// # Errors
/// It cannot be opened, or is none of NVIDIA's.
pub(crate) fn real() -> Result<Option<&'static Real>, Failure> {
    if let Some(known) = REAL.get() {
        return Ok(known.as_ref());
    }
    let builder = Communicator::builder();
    // SAFETY: it only reads what the kernel has said of this process.
    let has_more_rights = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    let path = builder.get(VARIABLE).filter(|_| !has_more_rights);
    // Of two threads, one closes what is still open for the other.
    let real = path.map(Real::open).transpose()?;
    Ok(REAL.get_or_init(|| real).as_ref())
}

/// The library, if it was opened.
pub(crate) fn opened() -> Option<&'static Real> {
    REAL.get()?.as_ref()
}

impl Real {
    fn open(path: &str) -> Result<Self, Failure> {
        type Version = unsafe extern "C" fn(*mut c_int) -> c_int;
        let refuse =
            |problem: String| Failure::invalid(format!("{VARIABLE} is {path:?}, which {problem}"));
        if !Path::new(path).is_absolute() {
            return Err(refuse("is no absolute path".to_owned()));
        }
        let found = std::fs::metadata(path);
        let found = found.map_err(|error| refuse(format!("cannot be opened: {error}")))?;
        if found.is_dir() {
            return Err(refuse(
                "is a folder: name the libnccl.so.2 in it".to_owned(),
            ));
        }
        if let Some(owner) = other_allocator() {
            return Err(refuse(format!(
                "would allocate by the C library, and this process by {owner}: run it without that"
            )));
        }
        let flags = RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND;
        // SAFETY: the user says that this library is NCCL, whose initialisers any program may run.
        let library = unsafe { Library::open(Some(path), flags) };
        let library = library.map_err(|error| refuse(format!("cannot be opened: {error}")))?;
        // SAFETY: NCCL's function has this type.
        let ask = unsafe { library.get::<Version>(b"ncclGetVersion\0") };
        let ask = ask.map_err(|error| refuse(format!("is not NCCL: {error}")))?;
        if std::ptr::addr_eq(*ask as *const (), ncclGetVersion as *const ()) {
            return Err(refuse("is this library itself: name NVIDIA's".to_owned()));
        }
        let mut version = 0;
        // SAFETY: it writes one number, to a variable of this function.
        unsafe { ask(&raw mut version) };
        if version < OLDEST {
            let oldest = written(OLDEST);
            return Err(refuse(format!(
                "is NCCL {}, and too old: take {oldest} or later",
                written(version)
            )));
        }
        Ok(Self {
            library,
            path: path.to_owned(),
            version,
        })
    }

    /// One of its functions.
    ///
    /// # Safety
    /// `F` is the type of NCCL's function of this name, or one that differs in enumerations, which
    /// are numbers, and in what pointers point to.
    ///
    /// # Errors
    /// It has none.
    pub(crate) unsafe fn function<F: Copy>(&self, name: &str) -> Result<F, Failure> {
        // SAFETY: NCCL's function of this name has the type, as far as it matters (this function's
        // contract).
        let found = unsafe { self.library.get::<F>(name.as_bytes()) };
        found.map(|function| *function).map_err(|_| {
            Failure::new(
                Kind::Usage,
                format!("{}, has no {name}: take a later one", self.name()),
            )
        })
    }

    /// What it is, for people.
    pub(crate) fn name(&self) -> String {
        format!(
            "NCCL {} at {}, named by {VARIABLE}",
            written(self.version),
            self.path
        )
    }

    /// Begins a group of its own calls in this thread, or ends it. Returns what of it goes on.
    pub(crate) fn group(&self, name: &str) -> Result<Progress, Failure> {
        // SAFETY: both functions of groups have this type.
        let function = unsafe { self.function::<unsafe extern "C" fn() -> c_int>(name) }?;
        // SAFETY: it demands nothing.
        let result = unsafe { function() };
        self.passed(name, result)?;
        Ok(match Status::from_code(result) {
            Status::InProgress => Progress::Background,
            _ => Progress::Done,
        })
    }

    /// Makes a communicator of its own for all ranks of an id. Waits for them; where the library
    /// makes it in the background, until `check` fails.
    pub(crate) fn connect(
        &self,
        id: &ncclUniqueId,
        rank: usize,
        size: usize,
        check: &dyn Fn() -> Result<(), Failure>,
    ) -> Result<ncclComm_t, Failure> {
        type Init = unsafe extern "C" fn(*mut ncclComm_t, c_int, ncclUniqueId, c_int) -> c_int;
        const NAME: &str = "ncclCommInitRank";
        let narrow = |number: usize| c_int::try_from(number).unwrap_or(c_int::MAX);
        let mut comm = std::ptr::null_mut();
        // SAFETY: NCCL's function has this type.
        let init = unsafe { self.function::<Init>(NAME) }?;
        // SAFETY: it writes one handle, to a variable of this function.
        let made = unsafe { init(&raw mut comm, narrow(size), *id, narrow(rank)) };
        self.passed(NAME, made)?;
        if Status::from_code(made) == Status::InProgress {
            self.wait(comm, check).inspect_err(|_| {
                // SAFETY: the communicator is this library's, and no one else has it.
                let _ = unsafe { self.end("ncclCommAbort", comm) };
            })?;
        }
        Ok(comm)
    }

    /// Waits until one of its communicators that is being made is ready.
    fn wait(
        &self,
        comm: ncclComm_t,
        check: &dyn Fn() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        type Ask = unsafe extern "C" fn(ncclComm_t, *mut c_int) -> c_int;
        const NAME: &str = "ncclCommGetAsyncError";
        // SAFETY: NCCL's function has this type.
        let ask = unsafe { self.function::<Ask>(NAME) }?;
        loop {
            let mut state = 0;
            // SAFETY: the communicator is one of this library's, and not ended yet. It writes one
            // number, to a variable of this function.
            let asked = unsafe { ask(comm, &raw mut state) };
            self.passed(NAME, asked)?;
            self.passed("ncclCommInitRank", state)?;
            if Status::from_code(state) != Status::InProgress {
                return Ok(());
            }
            check()?;
            std::thread::sleep(POLL_EVERY);
        }
    }

    /// A unique id of its own.
    pub(crate) fn unique_id(&self) -> Result<ncclUniqueId, Failure> {
        const NAME: &str = "ncclGetUniqueId";
        let mut id = ncclUniqueId { internal: [0; 128] };
        // SAFETY: NCCL's function has this type.
        let get =
            unsafe { self.function::<unsafe extern "C" fn(*mut ncclUniqueId) -> c_int>(NAME) }?;
        // SAFETY: it writes one id, to a variable of this function.
        let got = unsafe { get(&raw mut id) };
        self.passed(NAME, got).map(|()| id)
    }

    /// Ends one of its communicators by a function: `ncclCommDestroy`, or `ncclCommAbort`.
    ///
    /// # Safety
    /// The name is one of these two. The communicator is one of this library's, and not used again.
    pub(crate) unsafe fn end(&self, name: &str, comm: ncclComm_t) -> Result<(), Failure> {
        // SAFETY: both of NCCL's functions have this type, and the name is one of theirs (this
        // function's contract).
        let end = unsafe { self.function::<unsafe extern "C" fn(ncclComm_t) -> c_int>(name) }?;
        // SAFETY: the communicator is one of this library's, and not used again (this function's
        // contract).
        let ended = unsafe { end(comm) };
        self.passed(name, ended)
    }

    /// What has failed, if this result of a function says so, with the library's own words.
    pub(crate) fn passed(&self, name: &str, result: c_int) -> Result<(), Failure> {
        if matches!(result, 0 | 7) {
            return Ok(());
        }
        let message = format!(
            "{name} of {}, returned {result}: {}",
            self.name(),
            self.last()
        );
        Err(Failure::new(Status::from_code(result).kind(), message))
    }

    /// Its last error.
    fn last(&self) -> String {
        type Last = unsafe extern "C" fn(ncclComm_t) -> *const c_char;
        // SAFETY: NCCL's function has this type.
        let Ok(last) = (unsafe { self.function::<Last>("ncclGetLastError") }) else {
            return String::new();
        };
        // SAFETY: it accepts null, which stands for no communicator.
        let text = unsafe { last(std::ptr::null_mut()) };
        if text.is_null() {
            return String::new();
        }
        // SAFETY: it is not null, so it is a text that ends in a null character, and that this
        // thread's next call of the library changes at the earliest.
        unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned()
    }
}

/// Where this process's `malloc` is, if it is not the C library's. That a program has its own is
/// not seen: it may as well be the program's entry for the C library's.
fn other_allocator() -> Option<String> {
    let this = Library::this();
    // SAFETY: the C library's function has this type, and so has one that stands in for it. It is
    // not called.
    let malloc = unsafe { this.get::<unsafe extern "C" fn(usize) -> *mut c_void>(b"malloc\0") };
    let (place, name) = home(*malloc.ok()? as *const c_void)?;
    // SAFETY: it only reads what the kernel has said of this process.
    let program = unsafe { libc::getauxval(libc::AT_PHDR) } as *const c_void;
    let known = [program, libc::getauxval as *const c_void];
    let is_known = known.into_iter().filter_map(home).any(|own| own.0 == place);
    (!is_known).then_some(name)
}

/// The address and the name of what has mapped an address.
fn home(address: *const c_void) -> Option<(usize, String)> {
    let mut found = MaybeUninit::zeroed();
    // SAFETY: it takes any address, and writes to a variable of this function.
    let is_found = unsafe { libc::dladdr(address, found.as_mut_ptr()) } != 0;
    // SAFETY: all zeros are a `Dl_info`, and so is what was written.
    let found: libc::Dl_info = unsafe { found.assume_init() };
    if !is_found || found.dli_fname.is_null() {
        return None;
    }
    // SAFETY: it is not null, so it is a text that ends in a null character, and stays while the
    // library is mapped: it has functions that this process calls.
    let name = unsafe { CStr::from_ptr(found.dli_fname) };
    Some((found.dli_fbase.addr(), name.to_string_lossy().into_owned()))
}

/// A version as people write it.
fn written(version: c_int) -> String {
    // Before 2.9, a version had a digit for the middle part.
    let (major, minor, patch) = if version < 10_000 {
        (version / 1000, version / 100 % 10, version % 100)
    } else {
        (version / 10_000, version / 100 % 100, version % 100)
    };
    format!("{major}.{minor}.{patch}")
}
