//! The fallback: NVIDIA's library, which `SPARK_CCL_NCCL_FALLBACK` names, and which does what this
//! library does not. It is opened once, by that path, and never closed. Knows no communicator of
//! ours.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::path::Path;
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use spark_ccl::Communicator;
use spark_ccl_abi::failure::{Failure, Kind};
use spark_ccl_abi::groups::Progress;

use crate::ending::{Ending, await_at_exit};
use crate::status::Status;
use crate::types::{ncclComm_t, ncclUniqueId};

/// The variable that names the fallback.
const VARIABLE: &str = "SPARK_CCL_NCCL_FALLBACK";
/// The C library's flag: the opened library calls its own functions, even if this library has
/// functions of the same names.
const RTLD_DEEPBIND: c_int = 8;
/// The oldest version whose configurations of communicators begin as today's do.
const OLDEST: c_int = 2_18_00;

/// The fallback; an inner `None` if the variable is not set.
static REAL: OnceLock<Option<Real>> = OnceLock::new();

unsafe extern "C" {
    /// The function of this library itself.
    fn ncclGetVersion(version: *mut c_int) -> Status;
}

/// The fallback, opened.
#[derive(Debug)]
pub(crate) struct Real {
    library: Library,
    path: String,
    version: c_int,
}

/// Opens the fallback, if the variable names one.
///
/// # Errors
/// It cannot be opened, or is not NVIDIA's.
pub(crate) fn real() -> Result<Option<&'static Real>, Failure> {
    if let Some(known) = REAL.get() {
        return Ok(known.as_ref());
    }
    let builder = Communicator::builder();
    // SAFETY: it takes any number, and only reads the auxiliary vector of this process.
    let has_more_rights = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    let path = builder.get(VARIABLE).filter(|_| !has_more_rights);
    // If two threads open it at once, one drops its handle, and the library stays open for the
    // other.
    let real = path.map(Real::open).transpose()?;
    let known = REAL.get_or_init(|| {
        if real.is_some() {
            await_at_exit();
        }
        real
    });
    Ok(known.as_ref())
}

/// The fallback, if it was opened.
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
        // SAFETY: the user says that this library is NCCL, whose initialisers any process may run.
        let library = unsafe { Library::open(Some(path), flags) };
        let library = library.map_err(|error| refuse(format!("cannot be opened: {error}")))?;
        // SAFETY: NCCL's function has this type.
        let ask = unsafe { library.get::<Version>(b"ncclGetVersion\0") };
        let ask = ask.map_err(|error| refuse(format!("is not NCCL: {error}")))?;
        if std::ptr::addr_eq(*ask as *const (), ncclGetVersion as *const ()) {
            return Err(refuse("is this library itself: name NVIDIA's".to_owned()));
        }
        let mut version = 0;
        // SAFETY: `ncclGetVersion` writes one number, to a variable of this function.
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

    /// A function of the fallback.
    ///
    /// # Safety
    /// `F` is the type of NCCL's function of this name, or one that differs in enumerations, which
    /// are numbers, and in what pointers point to.
    ///
    /// # Errors
    /// The fallback has no function of this name.
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

    /// The fallback, described for people.
    pub(crate) fn name(&self) -> String {
        format!(
            "NCCL {} at {}, named by {VARIABLE}",
            written(self.version),
            self.path
        )
    }

    /// Begins or ends a group of the fallback's calls in this thread, by the function `name`.
    /// Returns whether the group goes on in the background.
    pub(crate) fn group(&self, name: &str) -> Result<Progress, Failure> {
        // SAFETY: both functions of groups have this type.
        let function = unsafe { self.function::<unsafe extern "C" fn() -> c_int>(name) }?;
        // SAFETY: the functions of groups take no arguments, and NCCL allows them at any time, on
        // any thread.
        let result = unsafe { function() };
        self.passed(name, result)?;
        Ok(match Status::from_code(result) {
            Status::InProgress => Progress::Background,
            _ => Progress::Done,
        })
    }

    /// A unique id of the fallback.
    pub(crate) fn unique_id(&self) -> Result<ncclUniqueId, Failure> {
        const NAME: &str = "ncclGetUniqueId";
        let mut id = ncclUniqueId { internal: [0; 128] };
        // SAFETY: NCCL's function has this type.
        let get =
            unsafe { self.function::<unsafe extern "C" fn(*mut ncclUniqueId) -> c_int>(NAME) }?;
        // SAFETY: `ncclGetUniqueId` writes one id, to a variable of this function.
        let got = unsafe { get(&raw mut id) };
        self.passed(NAME, got).map(|()| id)
    }

    /// Ends a communicator of the fallback by the function `name`: `ncclCommDestroy`, or
    /// `ncclCommAbort`.
    ///
    /// # Safety
    /// The name is one of these two. The communicator is one of the fallback, and not used again.
    pub(crate) unsafe fn end(&self, name: &str, comm: ncclComm_t) -> Result<(), Failure> {
        // SAFETY: both functions have this type, and `name` is one of them (this function's
        // contract).
        let end = unsafe { self.function::<unsafe extern "C" fn(ncclComm_t) -> c_int>(name) }?;
        let _ending = Ending::begin();
        // SAFETY: the communicator is one of the fallback, and not used again (this function's
        // contract).
        let ended = unsafe { end(comm) };
        self.passed(name, ended)
    }

    /// An error in the fallback's own words, if this result of the function `name` is one.
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

    /// The fallback's last error.
    fn last(&self) -> String {
        type Last = unsafe extern "C" fn(ncclComm_t) -> *const c_char;
        // SAFETY: NCCL's function has this type.
        let Ok(last) = (unsafe { self.function::<Last>("ncclGetLastError") }) else {
            return String::new();
        };
        // SAFETY: `ncclGetLastError` accepts null, which stands for no communicator.
        let text = unsafe { last(std::ptr::null_mut()) };
        if text.is_null() {
            return String::new();
        }
        // SAFETY: `text` is not null, so it is a text that ends in a null character. Only a later
        // call of this thread into the fallback changes it, and the text is copied before that.
        unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned()
    }
}

/// The library that this process's `malloc` is in, if it is not the C library. `None` for a
/// `malloc` in the executable: that may be the executable's entry for the one of the C library.
fn other_allocator() -> Option<String> {
    let this = Library::this();
    // SAFETY: the C library's function has this type, and so has any replacement. It is not called.
    let malloc = unsafe { this.get::<unsafe extern "C" fn(usize) -> *mut c_void>(b"malloc\0") };
    let (place, name) = home(*malloc.ok()? as *const c_void)?;
    // SAFETY: it takes any number, and only reads the auxiliary vector of this process.
    let program = unsafe { libc::getauxval(libc::AT_PHDR) } as *const c_void;
    let known = [program, libc::getauxval as *const c_void];
    let is_known = known.into_iter().filter_map(home).any(|own| own.0 == place);
    (!is_known).then_some(name)
}

/// The start and the name of the library or executable that an address is in.
fn home(address: *const c_void) -> Option<(usize, String)> {
    let mut found = MaybeUninit::zeroed();
    // SAFETY: `dladdr` takes any address, and writes to a variable of this function.
    let is_found = unsafe { libc::dladdr(address, found.as_mut_ptr()) } != 0;
    // SAFETY: the variable began as zeros, which are a valid `Dl_info`, and `dladdr` writes a valid
    // one.
    let found: libc::Dl_info = unsafe { found.assume_init() };
    if !is_found || found.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the name is not null, so it is a text that ends in a null character. It stays while
    // the library is mapped, and this process calls functions of that library, so it stays mapped.
    let name = unsafe { CStr::from_ptr(found.dli_fname) };
    Some((found.dli_fbase.addr(), name.to_string_lossy().into_owned()))
}

/// A version, as people write it.
fn written(version: c_int) -> String {
    // Before 2.9, a version had a digit for the middle part.
    let (major, minor, patch) = if version < 10_000 {
        (version / 1000, version / 100 % 10, version % 100)
    } else {
        (version / 10_000, version / 100 % 100, version % 100)
    };
    format!("{major}.{minor}.{patch}")
}
