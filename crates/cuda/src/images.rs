//! Loads compiled kernels into a context, once each, and finds their functions. The pack's format
//! is in `pack.rs`.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};
use cudarc::driver::{CudaContext, result};

use crate::current::make_current;
use crate::ids::context_id;
use crate::pack::{Capability, choose, images};
use crate::stream::relaxed;
use crate::{Error, Function, checked};

/// The compiled images of one kernel source, as packed by `kernels/build.sh`: cubins for some
/// compute capabilities, and PTX for later ones.
///
/// ```no_run
/// use spark_ccl_cuda::Images;
///
/// # const PACKED: &[u8] = &[];
/// /// Of `include_bytes!("../kernels/fill.images")`.
/// static FILL: Images = Images::new("fill", PACKED);
///
/// let kernels = FILL.load(&spark_ccl_cuda::context(0)?)?;
/// let fill = kernels.function("fill_32")?;
/// # Ok::<(), spark_ccl_cuda::Error>(())
/// ```
#[derive(Debug)]
pub struct Images {
    name: &'static str,
    pack: &'static [u8],
    /// The modules, by the driver's numbers of their contexts.
    loaded: Mutex<BTreeMap<u64, Module>>,
}

/// A module, which the driver unloads when its context ends. Nothing here unloads it: a driver
/// (580.95) loses 31 KB of the GPU's memory each time that 11 kernels are unloaded and loaded
/// again.
#[derive(Debug, Clone, Copy)]
struct Module(sys::CUmodule);

// SAFETY: the driver accepts a module on any thread, and the handle is never dereferenced here.
unsafe impl Send for Module {}

/// Kernels loaded in a context. They stay loaded as long as it exists.
#[derive(Debug, Clone)]
pub struct Kernels {
    module: Module,
    context: Arc<CudaContext>,
    name: &'static str,
}

impl Images {
    /// The images that the source `name` was compiled to.
    pub const fn new(name: &'static str, pack: &'static [u8]) -> Self {
        Self {
            name,
            pack,
            loaded: Mutex::new(BTreeMap::new()),
        }
    }

    /// Loads the kernels into a context that lacks them: a cubin for the device's major compute
    /// capability and no later minor one, or else PTX, which the driver compiles.
    ///
    /// # Errors
    /// There is no image for the device, or the driver refuses it.
    pub fn load(&self, context: &Arc<CudaContext>) -> Result<Kernels, Error> {
        let device = make_current(context)?;
        let id = context_id(context)?;
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let module = match loaded.get(&id) {
            Some(module) => *module,
            None => self.load_anew(context, device)?,
        };
        loaded.insert(id, module);
        Ok(Kernels {
            module,
            context: Arc::clone(context),
            name: self.name,
        })
    }

    fn load_anew(&self, context: &Arc<CudaContext>, device: usize) -> Result<Module, Error> {
        let capability = capability(context, device)?;
        let images = images(self.pack).unwrap_or_default();
        let refused = |reason: String| Error::Kernels {
            name: self.name,
            device,
            capability: capability.to_string(),
            images: images
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(", "),
            reason,
        };
        let image = choose(&images, capability);
        let image = image.ok_or_else(|| refused("none is for it".to_owned()))?;
        let bytes = image.unpack();
        let bytes = bytes.ok_or_else(|| refused(format!("{image} is damaged")))?;
        // Loading must not invalidate captures of other threads.
        let _relaxed = relaxed(device)?;
        // SAFETY: the image is a cubin, or text that ends with a zero, as packs have them; the
        // driver copies it.
        let module = unsafe { result::module::load_data(bytes.as_ptr().cast()) };
        let module = checked("cuModuleLoadData", device, module).map(Module);
        module.map_err(|error| refused(format!("{image}: {error}")))
    }
}

impl Kernels {
    /// A kernel. The driver loads it now, and not at its first launch, which would wait for kernels
    /// that run.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn function(&self, name: &str) -> Result<Function, Error> {
        let device = make_current(&self.context)?;
        let _relaxed = relaxed(device)?;
        let function = CString::new(name).unwrap_or_default();
        // SAFETY: `self.module` was loaded in the context that `self` keeps, and stays loaded as
        // long as it. `get_function` owns the name, a C string, until the driver has read it.
        let function = unsafe { result::module::get_function(self.module.0, function) };
        let function = checked("cuModuleGetFunction", device, function);
        let function = function.map_err(|error| Error::Kernel {
            name: name.to_owned(),
            kernels: self.name,
            error: Box::new(error),
        })?;
        Ok(Function::new(function, &self.context))
    }
}

pub(crate) fn capability(context: &CudaContext, device: usize) -> Result<Capability, Error> {
    let number = |attribute| {
        // SAFETY: `context` was made for a device that exists. The driver writes one number, to a
        // variable of `get_attribute`.
        let number = unsafe { result::device::get_attribute(context.cu_device(), attribute) };
        checked("cuDeviceGetAttribute", device, number).map(|number| number as u32)
    };
    let major = number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    Ok(Capability(major, minor))
}

#[cfg(test)]
mod tests {
    use spark_ccl_testing::{Need, has};

    use super::*;
    use crate::pack::tests::pack;

    const PTX: &[u8] = b".version 6.0\n.target sm_50\n.address_size 64\n\
        .visible .entry nothing() { ret; }\n.visible .entry nothing_either() { ret; }\n\0";

    /// The kernels in `PTX`, for capabilities from `target` on.
    fn images(image: &[u8], target: u32) -> Images {
        Images::new(
            "nothing.cu",
            Box::leak(pack(&[(true, target, image)]).into()),
        )
    }

    #[test]
    fn a_context_loads_kernels_once() {
        if !has(Need::Gpus(1)) {
            return;
        }
        let (images, context) = (images(PTX, 50), crate::context(0).unwrap());
        let kernels = images.load(&context).unwrap();
        let again = images.load(&context).unwrap();
        assert_eq!(kernels.module.0, again.module.0);
        let first = kernels.module.0;
        drop((kernels, again));
        let anew = images.load(&context).unwrap();
        assert_eq!(anew.module.0, first);
        anew.function("nothing_either").unwrap();
        let said = anew.function("something").unwrap_err().to_string();
        assert!(said.contains("no kernel something in nothing.cu"), "{said}");
    }

    #[test]
    fn what_cannot_be_loaded_is_said() {
        if !has(Need::Gpus(1)) {
            return;
        }
        // A context object of this test's own, without stored errors of other tests.
        crate::open().unwrap();
        let context = CudaContext::new(0).unwrap();
        context.record_err(Err::<(), _>(cudarc::driver::DriverError(
            cudarc::driver::sys::CUresult::CUDA_ERROR_UNKNOWN,
        )));
        for (images, reason) in [
            (
                images(PTX, 990),
                "none is for it; there are images for compute_990",
            ),
            (
                images(b"no image\0", 50),
                "compute_50: cuModuleLoadData on device 0",
            ),
        ] {
            let said = images.load(&context).unwrap_err().to_string();
            assert!(said.contains(reason), "{said}");
            assert!(
                said.contains("nothing.cu cannot be loaded on device 0"),
                "{said}"
            );
        }
        // The error of another call is still stored in the context.
        assert!(context.check_err().is_err());
    }
}
