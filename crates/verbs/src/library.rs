//! Loads libibverbs and looks up its functions.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::Error;
use crate::raw;

/// libibverbs, opened at run time.
///
/// It stays open until the process ends: libibverbs and its providers do not support being
/// unloaded.
#[derive(Clone, Copy, Debug)]
pub struct Library {
    pub(crate) api: &'static Api,
}

impl Library {
    /// Opens the `libibverbs.so.1` that the system's loader finds.
    ///
    /// # Errors
    ///
    /// The library, or a function of it, is missing.
    pub fn open() -> Result<Library, Error> {
        // Each opening keeps a table of functions until the process ends.
        static OPENED: OnceLock<Library> = OnceLock::new();
        if let Some(opened) = OPENED.get() {
            return Ok(*opened);
        }
        // SAFETY: by this name, the system's loader finds libibverbs, as for a program that is
        // linked with it.
        let opened = unsafe { Self::open_at(Path::new("libibverbs.so.1")) }?;
        Ok(*OPENED.get_or_init(|| opened))
    }

    /// Opens the library at `path`.
    ///
    /// # Safety
    ///
    /// The library's initialisers must be sound to run in this process, and those of its functions
    /// that have names of libibverbs' must be libibverbs'.
    ///
    /// # Errors
    ///
    /// The library, or a function of it, is missing.
    pub unsafe fn open_at(path: &Path) -> Result<Library, Error> {
        // SAFETY: the library's initialisers are sound to run in this process, as this function
        // requires.
        let library = unsafe { libloading::Library::new(path) };
        let library = library.map_err(|error| Error::Library {
            tried: format!("{}: {}", path.display(), reason(&error)),
        })?;
        let api = Api::load(&library, path)?;
        std::mem::forget(library);
        Ok(Library {
            api: Box::leak(Box::new(api)),
        })
    }
}

/// The loader's message, which names the file.
fn reason(error: &libloading::Error) -> String {
    match error {
        libloading::Error::DlOpen { source } => source.to_string(),
        other => other.to_string(),
    }
}

/// Declares [`Api`]: functions that every version has, and those added by a version of rdma-core.
macro_rules! api {
    ($($name:ident)*; $($late:ident from $version:literal,)*) => {
        /// The functions of libibverbs, or of a fake.
        #[derive(Debug)]
        pub(crate) struct Api {
            $(pub(crate) $name: raw::$name,)*
            $(pub(crate) $late: Option<raw::$late>,)*
        }

        impl Api {
            fn load(library: &libloading::Library, path: &Path) -> Result<Api, Error> {
                Ok(Api {
                    // SAFETY: each type was generated from the declaration of the function of that
                    // name in verbs.h, the code that opened the library vouches for its functions,
                    // and the name ends with a zero byte.
                    $($name: unsafe { find(library, concat!(stringify!($name), "\0")) }.ok_or_else(
                        || Error::Symbol { path: PathBuf::from(path), symbol: stringify!($name) },
                    )?,)*
                    // SAFETY: each type was generated from the declaration of the function of that
                    // name in verbs.h, the code that opened the library vouches for its functions,
                    // and the name ends with a zero byte.
                    $($late: unsafe { find(library, concat!(stringify!($late), "\0")) },)*
                })
            }

            $(
                /// The function; an error if the library is too old to have it.
                pub(crate) fn $late(&self) -> Result<raw::$late, Error> {
                    let too_old = Error::TooOld { call: stringify!($late), needs: $version };
                    self.$late.ok_or(too_old)
                }
            )*
        }
    };
}

api! {
    ibv_get_device_list ibv_free_device_list ibv_get_device_name ibv_get_device_guid
    ibv_open_device ibv_close_device ibv_query_device ibv_query_port
    ibv_get_async_event ibv_ack_async_event
    ibv_alloc_pd ibv_dealloc_pd
    ibv_reg_mr ibv_dereg_mr
    ibv_create_comp_channel ibv_destroy_comp_channel ibv_get_cq_event ibv_ack_cq_events
    ibv_create_cq ibv_destroy_cq
    ibv_create_qp ibv_modify_qp ibv_query_qp ibv_destroy_qp;
    ibv_reg_mr_iova2 from "28",
    _ibv_query_gid_table from "32",
    ibv_reg_dmabuf_mr from "34",
}

/// Looks a function up by its name, which ends with a zero byte.
///
/// # Safety
///
/// `F` is the type of a pointer to the function.
unsafe fn find<F: Copy>(library: &libloading::Library, name: &str) -> Option<F> {
    // SAFETY: `F` is the type of a pointer to this function, as this function requires; `name` ends
    // with a zero byte. The library is never closed, so the pointer stays valid.
    unsafe { library.get::<F>(name.as_bytes()) }
        .ok()
        .map(|symbol| *symbol)
}
