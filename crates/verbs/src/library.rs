use std::path::{Path, PathBuf};

use crate::Error;
use crate::raw;

/// libibverbs, opened at run time.
///
/// It stays open until the process ends: it and its providers do not expect to be closed.
#[derive(Clone, Copy, Debug)]
pub struct Library {
    pub(crate) api: &'static Api,
}

impl Library {
    /// Opens `path`, or `libibverbs.so.1` where the system's loader finds it.
    ///
    /// # Errors
    ///
    /// The library, or a function of it, is missing.
    pub fn open(path: Option<&Path>) -> Result<Library, Error> {
        let path = path.unwrap_or(Path::new("libibverbs.so.1"));
        // SAFETY: the library's initialisers only read the environment and set up its own state; a
        // caller that names another file names one that it trusts as much.
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

/// The loader's own words, which name the file.
fn reason(error: &libloading::Error) -> String {
    match error {
        libloading::Error::DlOpen { source } => source.to_string(),
        other => other.to_string(),
    }
}

/// Declares [`Api`]: functions that all have, and those that came with a version of rdma-core.
macro_rules! api {
    ($($name:ident)*; $($late:ident from $version:literal,)*) => {
        /// The functions, of libibverbs or of a stand-in.
        #[derive(Debug)]
        pub(crate) struct Api {
            $(pub(crate) $name: raw::$name,)*
            $(pub(crate) $late: Option<raw::$late>,)*
        }

        impl Api {
            fn load(library: &libloading::Library, path: &Path) -> Result<Api, Error> {
                Ok(Api {
                    // SAFETY: the types are those of the functions of these names in verbs.h.
                    $($name: unsafe { find(library, concat!(stringify!($name), "\0")) }.ok_or_else(
                        || Error::Symbol { path: PathBuf::from(path), symbol: stringify!($name) },
                    )?,)*
                    // SAFETY: as above.
                    $($late: unsafe { find(library, concat!(stringify!($late), "\0")) },)*
                })
            }

            $(
                /// The function, where the library is new enough for it.
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

/// A function by its name, which ends with a zero byte.
///
/// # Safety
///
/// `F` is the type of a pointer to the function.
unsafe fn find<F: Copy>(library: &libloading::Library, name: &str) -> Option<F> {
    // SAFETY: as the caller says.
    unsafe { library.get::<F>(name.as_bytes()) }
        .ok()
        .map(|symbol| *symbol)
}
