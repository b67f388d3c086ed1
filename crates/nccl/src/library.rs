//! Finds and loads libnccl.

use std::ffi::c_char;
use std::fmt;
use std::path::{Path, PathBuf};

use spark_ccl_log::Mutex;
use spark_ccl_types::DType;

use crate::error::{CallError, Code, Refusal};
use crate::raw::Api;
use crate::{Error, Version};

/// NCCL, loaded at run time.
///
/// It is never unloaded: it runs threads of its own, and does not support being unloaded.
///
/// ```no_run
/// # use std::path::Path;
/// # use spark_ccl_nccl::Library;
/// let library = Library::open()?; // the system's
/// // SAFETY: PyTorch's is NCCL.
/// let library = unsafe { Library::open_at(Path::new("/venv/lib/python3.12/site-packages")) }?;
/// println!("NCCL {} from {}", library.version(), library.path().display());
/// # Ok::<(), spark_ccl_nccl::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct Library {
    pub(crate) api: &'static Api,
}

/// The places of the library in PyTorch's and NVIDIA's wheels, relative to `site-packages`,
/// `nvidia/nccl` or its `lib`.
const IN_FOLDER: [&str; 3] = [
    "libnccl.so.2",
    "lib/libnccl.so.2",
    "nvidia/nccl/lib/libnccl.so.2",
];

/// The names passed to the system's loader. Packages and wheels install the first, development
/// packages the second as well.
const BY_NAME: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// The longest text to read. NCCL's buffer for its last error has one byte more.
const LONGEST: usize = 1023;

impl Library {
    /// Loads `libnccl.so.2` or `libnccl.so` from where the system's loader finds it.
    ///
    /// # Errors
    ///
    /// No library is found, it lacks functions, or it is older than [`Version::OLDEST`]. The error
    /// lists each attempt with its reason.
    pub fn open() -> Result<Self, Error> {
        // SAFETY: by these names, the system's loader finds NCCL, as for a program that is linked
        // with it.
        unsafe { Self::open_first(&BY_NAME.map(PathBuf::from)) }
    }

    /// Loads the library at `path`, which may also be a folder that contains one, or a
    /// `site-packages` folder; nothing else is tried.
    ///
    /// # Safety
    ///
    /// The library's initialisers must be sound to run in this process, and those of its functions
    /// that have names of NCCL's must be NCCL's.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open).
    pub unsafe fn open_at(path: &Path) -> Result<Self, Error> {
        // SAFETY: whatever library is at this path, its initialisers are sound to run in this
        // process, and its functions with NCCL's names are NCCL's (this function's contract).
        unsafe {
            if path.is_dir() {
                Self::open_first(&IN_FOLDER.map(|name| path.join(name)))
            } else {
                Self::open_first(&[path.to_owned()])
            }
        }
    }

    /// Loads the first of several libraries that can be loaded.
    ///
    /// # Safety
    ///
    /// The initialisers of each candidate must be sound to run in this process, and those of its
    /// functions that have names of NCCL's must be NCCL's.
    unsafe fn open_first(candidates: &[PathBuf]) -> Result<Self, Error> {
        let mut tried = Vec::new();
        for candidate in candidates {
            // SAFETY: each candidate's initialisers are sound to run in this process (this
            // function's contract).
            match unsafe { libloading::Library::new(candidate) } {
                Ok(library) => return Self::with(library, candidate),
                Err(error) => tried.push(Refusal::new(candidate, &error)),
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
        Ok(Self::shared(api))
    }

    /// Returns the same `Api` for the same library, whatever path it was loaded by.
    fn shared(api: Api) -> Self {
        static KNOWN: Mutex<Vec<&'static Api>> = Mutex::new(Vec::new());
        let mut all = KNOWN.lock();
        let same =
            |other: &&&'static Api| std::ptr::fn_addr_eq(other.ncclGetVersion, api.ncclGetVersion);
        if let Some(api) = all.iter().find(same) {
            return Self { api };
        }
        let api = Box::leak(Box::new(api));
        all.push(api);
        Self { api }
    }

    /// The path that was loaded, or the name found by the system's loader.
    pub fn path(self) -> &'static Path {
        &self.api.path
    }

    /// The library's version.
    pub fn version(self) -> Version {
        self.api.version
    }

    /// The functions that this library is too old for, with the version that added each. A call
    /// that needs one of them returns [`Error::Unsupported`].
    pub fn missing(self) -> impl Iterator<Item = (&'static str, Version)> {
        let late = self.api.late().into_iter();
        late.filter_map(|(name, since, here)| (!here).then_some((name, since)))
    }

    /// Whether it is new enough to reduce elements of a type, by any reduction; every type can be
    /// moved. For 8-bit floats, the GPUs of all ranks must also have compute capability 9.0 or
    /// later, which NCCL itself checks.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if it is too old.
    pub fn reduces(self, dtype: DType) -> Result<(), Error> {
        match dtype {
            DType::F8E4M3 | DType::F8E5M2 => self.needs(dtype.name(), Version::new(2, 24, 3)),
            DType::I8
            | DType::U8
            | DType::I32
            | DType::U32
            | DType::I64
            | DType::U64
            | DType::F16
            | DType::F32
            | DType::F64
            | DType::Bf16 => Ok(()),
        }
    }

    /// NCCL's text for a result.
    pub fn error_text(self, code: Code) -> String {
        // SAFETY: the function takes any number, and returns null or a constant string of a library
        // that is never unloaded.
        unsafe { text_at((self.api.ncclGetErrorString)(code.0)) }
    }

    /// NCCL's description of the last error in this process; empty if there was none. It may be
    /// about a call of another thread, and garbled if that call fails right now.
    pub fn last_error(self) -> String {
        // SAFETY: NCCL accepts a null communicator here. It returns a buffer of the library, which
        // is never unloaded, and is longer than the longest text.
        unsafe { text_at((self.api.ncclGetLastError)(std::ptr::null_mut())) }
    }

    /// Fails if the library is older than `since`.
    pub(crate) fn needs(self, what: &'static str, since: Version) -> Result<(), Error> {
        let found = self.version();
        if found < since {
            return Err(Error::Unsupported { what, since, found });
        }
        Ok(())
    }

    /// Turns the result of a call into a `Result`; `ncclInProgress` is an error here.
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

/// Copies a string of the library, which other threads of the library may be changing; empty if the
/// pointer is null.
///
/// # Safety
///
/// `text` must be null, or memory of [`LONGEST`] bytes, or up to a zero, that stays valid until
/// this returns.
unsafe fn text_at(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // Each byte is read once, and the copy is checked: there is no reference to bytes that may
    // change.
    let bytes = (0..LONGEST).map(|at| {
        // SAFETY: `text` is not null, no byte before `at` was zero, and `at` is less than
        // `LONGEST`. So the byte is part of the memory that this function requires, which stays
        // valid until it returns.
        unsafe { text.cast::<u8>().add(at).read_volatile() }
    });
    let bytes: Vec<u8> = bytes.take_while(|&byte| byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

impl PartialEq for Library {
    /// Whether both are the same loaded library.
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
