//! The options of calls: reads the user's structure, of any version.

use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;
use std::time::Duration;

use spark_ccl::cuda::cudarc::driver::sys::CUstream;
use spark_ccl_abi::failure::Failure;

/// `spark_ccl_options`.
///
/// Later versions append members. No member goes into the padding behind `registered`, which older
/// users do not initialise, and no member leaves padding at the end, which users would have to
/// clear.
///
/// # Valid options
/// A call's pointer to options is null, or points to a `spark_ccl_options` of as many bytes as its
/// `struct_size` says. `request` is null or can be written. `name` is null or a string that ends in
/// a null character. `factor` is null or points to an element of the call's type, where the
/// reduction uses it. Nobody else writes any of these until the call returns.
///
/// If they say that the call is on a device, its buffers are device memory, and the call is done
/// when it has run in `stream`. This is a default stream, or one that lives until the call is
/// enqueued: when the function returns, or at the end of the thread's group.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Options {
    pub(crate) struct_size: usize,
    pub(crate) request: *mut u64,
    pub(crate) name: *const c_char,
    pub(crate) factor: *const c_void,
    pub(crate) registered: c_int,
    pub(crate) stream: CUstream,
    pub(crate) on_device: usize,
    pub(crate) timeout: usize,
}

impl Options {
    /// How long the call may take; `None` for the communicator's timeout.
    pub(crate) fn limit(&self) -> Option<Duration> {
        (self.timeout != 0).then(|| Duration::from_millis(self.timeout as u64))
    }

    /// The stream that the call is for; `None` for a call on memory of the host.
    ///
    /// # Errors
    /// The options contradict each other.
    pub(crate) fn device_stream(&self) -> Result<Option<CUstream>, Failure> {
        let problem = match (self.on_device != 0, self.registered != 0) {
            (false, _) if !self.stream.is_null() => {
                "a stream, and on_device is 0: set on_device for buffers in device memory, on all \
                 ranks"
            }
            (false, _) => return Ok(None),
            (true, true) => {
                "both registered and on_device, and registered is of memory of spark_ccl_alloc: \
                 leave it 0"
            }
            (true, false) if !self.request.is_null() => {
                "a request, and on_device: such a call is enqueued, and its stream says when it is \
                 done"
            }
            (true, false) => return Ok(Some(self.stream)),
        };
        Err(Failure::invalid(format!("the options have {problem}")))
    }
}

/// The size in the first version: no user's structure is shorter.
const FIRST: usize = offset_of!(Options, registered) + size_of::<usize>();
/// No version's structure will be longer: a larger size comes from uninitialised memory.
const MOST: usize = 4096;

/// The options that a caller has set.
pub(crate) struct Given {
    /// The options that the caller's version has; the others are at their defaults.
    pub(crate) own: Options,
    /// Why the call is refused: it has options of a newer version.
    pub(crate) newer: Option<Failure>,
}

/// The caller's options.
///
/// # Safety
/// `options` is null, or points to `struct_size`. If that is at least `FIRST` and at most `MOST`,
/// that many bytes are there in all, initialised but for the padding behind `registered`. Nobody
/// writes them until this returns.
pub(crate) unsafe fn read(options: *const Options) -> Result<Given, Failure> {
    let mut own = Options {
        struct_size: size_of::<Options>(),
        request: std::ptr::null_mut(),
        name: std::ptr::null(),
        factor: std::ptr::null(),
        registered: 0,
        stream: std::ptr::null_mut(),
        on_device: 0,
        timeout: 0,
    };
    if options.is_null() {
        return Ok(Given { own, newer: None });
    }
    let start = options.cast::<u8>();
    // SAFETY: `options` is not null, so it points to `struct_size` (this function's contract),
    // which is the first member. The read needs no alignment.
    let size = unsafe { start.cast::<usize>().read_unaligned() };
    if !(FIRST..=MOST).contains(&size) {
        return Err(Failure::invalid(format!(
            "struct_size of the options is {size}, and no version of them has that (expected \
             {FIRST} to {MOST}): begin with SPARK_CCL_OPTIONS_INIT"
        )));
    }
    let known = size.min(size_of::<Options>());
    // SAFETY: `size` is within the bounds, so `size` bytes are there, which nobody writes until
    // this returns (this function's contract). `known` is at most `size`, so the slice is the last
    // of these bytes. It is behind all padding, so it is initialised.
    let newer = unsafe { std::slice::from_raw_parts(start.wrapping_add(known), size - known) };
    let newer = newer.iter().position(|&byte| byte != 0).map(|at| {
        Failure::invalid(format!(
            "the options have {size} bytes, of which version {} of this library knows {known}, and \
             byte {} is not 0: it is an option of a newer version; link with that one, or leave \
             the option at its default",
            env!("CARGO_PKG_VERSION"),
            known + at
        ))
    });
    // SAFETY: `known` is at most `size`, and `size` bytes are at `start` (this function's
    // contract). It is also at most the size of `own`. That is a variable of this function, so the
    // two do not overlap. All bytes are valid in pointers and numbers.
    unsafe { start.copy_to_nonoverlapping((&raw mut own).cast(), known) };
    Ok(Given { own, newer })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: usize = size_of::<Options>();

    /// Options of a user of another version.
    #[repr(C)]
    struct Other<const MORE: usize> {
        known: Options,
        more: [u8; MORE],
    }

    fn other<const MORE: usize>(struct_size: usize) -> Other<MORE> {
        let known = Options {
            struct_size,
            request: std::ptr::dangling_mut(),
            name: c"a name".as_ptr(),
            factor: std::ptr::null(),
            registered: 1,
            stream: std::ptr::null_mut(),
            on_device: 0,
            timeout: 0,
        };
        let more = [0; MORE];
        Other { known, more }
    }

    fn seen<const MORE: usize>(options: &Other<MORE>) -> Result<Options, String> {
        let start = (&raw const *options).cast();
        // SAFETY: `options` is a reference, so `struct_size` is there. No test passes a size from
        // `FIRST` to `MOST` that is larger than the structure; other sizes are refused before
        // anything else is read.
        let given = unsafe { read(start) }.map_err(|failure| failure.message().to_owned())?;
        match given.newer {
            None => Ok(given.own),
            Some(failure) => {
                // The request is known nevertheless, so it can be cleared.
                assert!(!given.own.request.is_null());
                Err(failure.message().to_owned())
            }
        }
    }

    #[test]
    fn the_first_size_and_later_ones_are_known() {
        const { assert!(FIRST <= KNOWN) };
        for size in [FIRST, KNOWN, KNOWN + 1, MOST] {
            let own = seen(&other::<{ MOST - KNOWN }>(size)).unwrap();
            assert!(!own.name.is_null() && !own.request.is_null(), "{size}");
            assert_eq!(own.registered, 1, "{size}");
        }
        // SAFETY: the pointer is null, which the contract of `read` allows.
        let none = unsafe { read(std::ptr::null()) }.unwrap().own;
        assert!(none.name.is_null() && none.request.is_null() && none.registered == 0);
    }

    #[test]
    fn sizes_that_no_version_has_are_refused() {
        for size in [0, 4, 8, 12, FIRST - 8, FIRST - 1, MOST + 1, usize::MAX] {
            let problem = seen(&other::<0>(size)).unwrap_err();
            assert!(
                problem.contains(&format!("struct_size of the options is {size},")),
                "{problem}"
            );
        }
    }

    #[test]
    fn what_only_a_newer_version_knows_is_not_ignored() {
        let mut newer = other::<24>(KNOWN + 16);
        // The options are a copy by now.
        newer.more[16] = 1;
        seen(&newer).unwrap();
        for at in [0, 15] {
            newer.more[..16].fill(0);
            newer.more[at] = 1;
            let problem = seen(&newer).unwrap_err();
            let byte = format!("byte {} is not 0", KNOWN + at);
            assert!(
                problem.contains(&byte) && problem.contains("newer version"),
                "{problem}"
            );
        }
    }
}
