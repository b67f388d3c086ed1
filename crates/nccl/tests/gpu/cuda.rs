//! The part of CUDA needed by the tests: the driver's functions, device memory and streams.

use std::error::Error;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;

use spark_ccl_nccl::{DType, DeviceSlice, Element, Stream};

type Handle = *mut c_void;

macro_rules! driver {
    ($($name:ident = $symbol:literal ($($argument:ty),*);)*) => {
        /// The driver's functions.
        struct Driver {
            $($name: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Driver {
            fn find(library: &libloading::Library) -> Result<Self, libloading::Error> {
                Ok(Self {
                    // SAFETY: each field has the type that cuda.h declares for the function of its
                    // name.
                    $($name: *unsafe { library.get($symbol) }?,)*
                })
            }
        }
    };
}

driver! {
    init = "cuInit" (c_uint);
    error_name = "cuGetErrorName" (c_int, *mut *const c_char);
    version = "cuDriverGetVersion" (*mut c_int);
    device_count = "cuDeviceGetCount" (*mut c_int);
    device_name = "cuDeviceGetName" (*mut c_char, c_int, c_int);
    retain_context = "cuDevicePrimaryCtxRetain" (*mut Handle, c_int);
    set_context = "cuCtxSetCurrent" (Handle);
    allocate = "cuMemAlloc_v2" (*mut Handle, usize);
    to_device = "cuMemcpyHtoDAsync_v2" (Handle, *const c_void, usize, Handle);
    to_host = "cuMemcpyDtoHAsync_v2" (*mut c_void, Handle, usize, Handle);
    create_stream = "cuStreamCreate" (*mut Handle, c_uint);
    query_stream = "cuStreamQuery" (Handle);
    wait_for_stream = "cuStreamSynchronize" (Handle);
}

impl Driver {
    fn check(&self, code: c_int) -> Result<(), String> {
        let mut name = ptr::null();
        match code {
            0 => Ok(()),
            // SAFETY: CUDA writes the address of a constant string, or null, to `name`.
            _ if unsafe { (self.error_name)(code, &raw mut name) } != 0 => {
                Err(format!("CUDA's error {code}"))
            }
            // SAFETY: the call succeeded, so `name` is a constant string with a zero at its end.
            _ => Err(unsafe { CStr::from_ptr(name) }
                .to_string_lossy()
                .into_owned()),
        }
    }
}

/// A GPU, with a stream of its own. Neither the stream nor any memory is ever freed, so nothing
/// enqueued can outlive them.
pub(crate) struct Gpu {
    driver: &'static Driver,
    pub(crate) number: i32,
    context: Handle,
    stream: Handle,
}

// SAFETY: CUDA accepts its handles on any thread.
unsafe impl Send for Gpu {}
// SAFETY: CUDA accepts its handles on several threads at once.
unsafe impl Sync for Gpu {}

/// All GPUs, or the reason why there are none.
pub(crate) fn gpus() -> Result<Vec<Gpu>, String> {
    // SAFETY: the initialisers of the driver's library only set up its own state.
    let library = unsafe { libloading::Library::new("libcuda.so.1") };
    let library = library.map_err(|error| explained(&error))?;
    let driver = Driver::find(&library).map_err(|error| explained(&error))?;
    std::mem::forget(library);
    let driver: &'static Driver = Box::leak(Box::new(driver));
    let (mut count, mut version) = (0, 0);
    // SAFETY: the functions take values, or pointers to numbers that they write.
    unsafe {
        driver.check((driver.init)(0))?;
        driver.check((driver.version)(&raw mut version))?;
        driver.check((driver.device_count)(&raw mut count))?;
    }
    println!("CUDA {version} with {count} GPUs");
    (0..count).map(|number| Gpu::open(driver, number)).collect()
}

/// The loader's own message, which is the source of the error.
fn explained(error: &libloading::Error) -> String {
    error
        .source()
        .map_or_else(|| error.to_string(), ToString::to_string)
}

impl Gpu {
    fn open(driver: &'static Driver, number: i32) -> Result<Self, String> {
        const WITHOUT_NULL_STREAM: c_uint = 1;
        let (mut context, mut stream) = (ptr::null_mut(), ptr::null_mut());
        let mut name = [0; 100];
        // SAFETY: the functions write handles, and at most 100 bytes of text with a zero at its
        // end.
        unsafe {
            driver.check((driver.device_name)(name.as_mut_ptr(), 100, number))?;
            println!("{number}: {:?}", CStr::from_ptr(name.as_ptr()));
            driver.check((driver.retain_context)(&raw mut context, number))?;
            driver.check((driver.set_context)(context))?;
            driver.check((driver.create_stream)(&raw mut stream, WITHOUT_NULL_STREAM))?;
        }
        Ok(Self {
            driver,
            number,
            context,
            stream,
        })
    }

    /// Makes it the current device of this thread.
    pub(crate) fn enter(&self) {
        // SAFETY: the context is never destroyed.
        self.done(unsafe { (self.driver.set_context)(self.context) });
    }

    pub(crate) fn stream(&self) -> Stream {
        // SAFETY: the stream is never destroyed.
        unsafe { Stream::from_raw(self.stream, self.number) }
    }

    /// Whether everything in the stream has run.
    pub(crate) fn is_idle(&self) -> bool {
        const NOT_READY: c_int = 600;
        // SAFETY: the stream is never destroyed.
        match unsafe { (self.driver.query_stream)(self.stream) } {
            NOT_READY => false,
            code => {
                self.done(code);
                true
            }
        }
    }

    /// New memory that holds `values`.
    pub(crate) fn buffer<T: Element>(&self, values: &[T]) -> DeviceSlice {
        let buffer = self.allocate(values.len(), T::DTYPE);
        self.write(buffer, values);
        buffer
    }

    /// New memory.
    pub(crate) fn allocate(&self, len: usize, dtype: DType) -> DeviceSlice {
        self.enter();
        let mut start = ptr::null_mut();
        // SAFETY: CUDA writes the address to `start`.
        self.done(unsafe { (self.driver.allocate)(&raw mut start, len * dtype.size()) });
        // SAFETY: the memory is never freed.
        unsafe { DeviceSlice::from_raw(start, len, dtype, self.number) }
    }

    pub(crate) fn write<T: Element>(&self, to: DeviceSlice, values: &[T]) {
        assert_eq!((to.len(), to.dtype()), (values.len(), T::DTYPE));
        self.enter();
        let from = values.as_ptr().cast();
        // SAFETY: both ranges have the same length, and live until the stream has drained.
        self.done(unsafe {
            (self.driver.to_device)(to.start(), from, size_of_val(values), self.stream)
        });
        self.wait();
    }

    pub(crate) fn read<T: Element>(&self, from: DeviceSlice) -> Vec<T> {
        assert_eq!(from.dtype(), T::DTYPE);
        self.enter();
        let mut values = vec![T::default(); from.len()];
        let to = values.as_mut_ptr().cast();
        // SAFETY: both ranges have the same length, and live until the stream has drained. Any
        // bytes are a valid value of `T`.
        self.done(unsafe { (self.driver.to_host)(to, from.start(), from.bytes(), self.stream) });
        self.wait();
        values
    }

    fn wait(&self) {
        // SAFETY: the stream is never destroyed.
        self.done(unsafe { (self.driver.wait_for_stream)(self.stream) });
    }

    fn done(&self, code: c_int) {
        self.driver.check(code).unwrap();
    }
}
