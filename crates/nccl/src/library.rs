use std::ffi::{CStr, c_char};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::error::{CallError, Code, Refusal};
use crate::raw::Api;
use crate::{Error, Version};

/// NCCL, opened at run time.
///
/// It stays open until the process ends: it has threads of its own, and does not expect to be closed.
///
/// ```no_run
/// # use std::path::Path;
/// # use spark_ccl_nccl::Library;
/// let library = Library::open(None)?; // the system's
/// let library = Library::open(Some(Path::new("/venv/lib/python3.12/site-packages")))?; // PyTorch's
/// println!("NCCL {} from {}", library.version(), library.path().display());
/// # Ok::<(), spark_ccl_nccl::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct Library {
    pub(crate) api: &'static Api,
}

/// Where a PyTorch wheel, or NVIDIA's, has its copy, from `site-packages`, `nvidia/nccl` or its `lib`.
const IN_FOLDER: [&str; 3] = [
    "libnccl.so.2",
    "lib/libnccl.so.2",
    "nvidia/nccl/lib/libnccl.so.2",
];

/// What the system's loader is asked for: what packages and wheels install, then what only
/// development packages do.
const BY_NAME: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

impl Library {
    /// Opens `path`, a library or a folder with one (also a `site-packages` folder), and nothing
    /// else; or, without a path, `libnccl.so.2` or `libnccl.so` where the system's loader finds it.
    ///
    /// # Errors
    ///
    /// No library is found, what is found lacks functions, or it is older than
    /// [`Version::OLDEST`]. The error says what was tried, and how each try failed.
    pub fn open(path: Option<&Path>) -> Result<Self, Error> {
        let candidates = match path {
            Some(path) if path.is_dir() => IN_FOLDER.map(|name| path.join(name)).to_vec(),
            Some(path) => vec![path.to_owned()],
            None => BY_NAME.map(PathBuf::from).to_vec(),
        };
        let mut tried = Vec::new();
        for candidate in candidates {
            // SAFETY: the library's initialisers only read the environment and set up its own
            // state; a caller that names another file names one that it trusts as much.
            match unsafe { libloading::Library::new(&candidate) } {
                Ok(library) => return Self::with(library, &candidate),
                Err(error) => tried.push(Refusal::new(&candidate, &error)),
            }
        }
        Err(Error::Library { tried })
    }

    fn with(library: libloading::Library, path: &Path) -> Result<Self, Error> {
        let api = Api::find(&library, path)?;
        if api.version < Version::OLDEST {
            let (path, found) = (path.to_owned(), api.version);
            return Err(Error::TooOld { path, found });
        }
        std::mem::forget(library);
        Ok(Self::known(api))
    }

    /// The same for the same library, by whatever path it was opened.
    fn known(api: Api) -> Self {
        static KNOWN: Mutex<Vec<&'static Api>> = Mutex::new(Vec::new());
        let mut all = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let same =
            |other: &&&'static Api| std::ptr::fn_addr_eq(other.ncclGetVersion, api.ncclGetVersion);
        if let Some(api) = all.iter().find(same) {
            return Self { api };
        }
        let api = Box::leak(Box::new(api));
        all.push(api);
        Self { api }
    }

    /// What was opened: a path, or the name that the system's loader found.
    pub fn path(self) -> &'static Path {
        &self.api.path
    }

    /// The library's version.
    pub fn version(self) -> Version {
        self.api.version
    }

    /// The functions that this library is too old for, with the version that has each. What needs
    /// one of them returns [`Error::Unsupported`].
    pub fn missing(self) -> impl Iterator<Item = (&'static str, Version)> {
        let late = self.api.late().into_iter();
        late.filter_map(|(name, since, here)| (!here).then_some((name, since)))
    }

    /// NCCL's words for a result.
    pub fn error_text(self, code: Code) -> String {
        // SAFETY: it takes any number, and gives constants of a library that is never closed.
        unsafe { text_at((self.api.ncclGetErrorString)(code.0)) }
    }

    /// What NCCL says about the last error in this process; empty if there was none.
    pub fn last_error(self) -> String {
        // SAFETY: the communicator may be null; the text stands in a buffer of the library, which
        // has a zero at its end at all times.
        unsafe { text_at((self.api.ncclGetLastError)(std::ptr::null_mut())) }
    }

    /// Fails if this library is older than `since`.
    pub(crate) fn needs(self, what: &'static str, since: Version) -> Result<(), Error> {
        let found = self.version();
        if found < since {
            return Err(Error::Unsupported { what, since, found });
        }
        Ok(())
    }

    /// Turns the result of a call into an error; `ncclInProgress` is one.
    pub(crate) fn check(self, operation: &'static str, code: u32) -> Result<(), Error> {
        match Code(code) {
            Code::SUCCESS => Ok(()),
            code => Err(self.failed(operation, None, code)),
        }
    }

    pub(crate) fn failed(self, operation: &'static str, rank: Option<usize>, code: Code) -> Error {
        Error::Call(Box::new(CallError {
            operation,
            rank,
            code,
            text: self.error_text(code),
            last_error: self.last_error(),
        }))
    }
}

/// A text of the library; empty where there is none.
///
/// # Safety
///
/// `text` is null, or has a zero at its end until this returns.
unsafe fn text_at(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: as the caller says.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}

impl PartialEq for Library {
    /// Whether both are the same opened library.
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.api, other.api)
    }
}

impl Eq for Library {}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library")
            .field("path", &self.path())
            .field("version", &self.version())
            .finish()
    }
}
