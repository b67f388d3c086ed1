//! The kernels that fill memory for checked runs, and count wrong elements.

use std::sync::Arc;

use spark_ccl::Element;
use spark_ccl::cuda::DeviceSlice;
use spark_ccl_cuda::cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DriverError};
use spark_ccl_cuda::{Error, Function, Images, Kernels as Loaded, checked};

use crate::exact::PERIOD;

static CHECK: Images = Images::new("check.cu", include_bytes!("../../../kernels/check.images"));
const THREADS: u32 = 512;
/// More blocks than any GPU runs at once; each block processes several parts of a longer range.
const MOST_BLOCKS: usize = 1 << 14;

/// The kernels on one device, and the memory that they need. The functions return when the kernels
/// are done.
#[derive(Debug)]
pub(super) struct Kernels {
    stream: Arc<CudaStream>,
    /// The kernels by the size of elements: 1, 2, 4 and 8 bytes.
    repeat: [Function; 4],
    count: [Function; 4],
    pattern: CudaSlice<u8>,
    wrong: CudaSlice<u64>,
}

impl Kernels {
    /// Loads the kernels for use in a stream.
    pub(super) fn load(stream: &Arc<CudaStream>) -> Result<Self, Error> {
        let device = stream.context().ordinal();
        let kernels = CHECK.load(stream.context())?;
        let of_sizes = |name| family(&kernels, name);
        Ok(Self {
            repeat: of_sizes("repeat")?,
            count: of_sizes("count")?,
            pattern: checked("cuMemAlloc", device, stream.alloc_zeros(8 * PERIOD))?,
            wrong: checked("cuMemAlloc", device, stream.alloc_zeros(1))?,
            stream: Arc::clone(stream),
        })
    }

    /// Fills a part of memory with a repeated pattern.
    pub(super) fn fill<T: Element>(
        &mut self,
        part: DeviceSlice<T>,
        pattern: &[T],
    ) -> Result<(), Error> {
        if part.is_empty() {
            return Ok(());
        }
        let (address, len) = (part.address(), part.len() as u64);
        let period = self.upload(pattern)?;
        let (pattern, _read) = self.pattern.device_ptr(&self.stream);
        let kernel = &self.repeat[class::<T>()];
        // SAFETY: the arguments are those that `check.cu` declares, for elements of this size.
        // `from_raw`'s caller promised that the part's memory is valid, and `upload` has stored
        // `period` elements of the pattern. Both stay until the kernel has run, which is waited
        // for.
        unsafe {
            launch(
                kernel,
                &self.stream,
                part.len(),
                [address, len, pattern, period],
            )
        }?;
        self.done("cuStreamSynchronize", self.stream.synchronize())
    }

    /// Counts the elements that differ from a repeated pattern by more than `tolerance`, as bits.
    pub(super) fn wrong<T: Element>(
        &mut self,
        part: DeviceSlice<T>,
        pattern: &[T],
        tolerance: u64,
    ) -> Result<u64, Error> {
        if part.is_empty() {
            return Ok(0);
        }
        let (address, len) = (part.address(), part.len() as u64);
        let period = self.upload(pattern)?;
        let zeroed = self.stream.memset_zeros(&mut self.wrong);
        self.done("cuMemsetD8Async", zeroed)?;
        let kernel = &self.count[class::<T>()];
        {
            let (pattern, _read) = self.pattern.device_ptr(&self.stream);
            let (wrong, _written) = self.wrong.device_ptr(&self.stream);
            let arguments = [address, len, pattern, period, tolerance, wrong];
            // SAFETY: the arguments are those that `check.cu` declares, for elements of this size.
            // `from_raw`'s caller promised that the part's memory is valid, `upload` has stored
            // `period` elements of the pattern, and `wrong` has room for the count. All of it stays
            // until the kernel has run: the copy of the count is waited for.
            unsafe { launch(kernel, &self.stream, part.len(), arguments) }?;
        }
        let mut wrong = [0];
        let copied = self.stream.memcpy_dtoh(&self.wrong, &mut wrong);
        self.done("cuMemcpyDtoHAsync", copied)?;
        self.done("cuStreamSynchronize", self.stream.synchronize())?;
        Ok(wrong[0])
    }

    /// Copies the pattern to the device; returns its length.
    fn upload<T: Element>(&mut self, pattern: &[T]) -> Result<u64, Error> {
        let bytes: &[u8] = bytemuck::cast_slice(pattern);
        let copied = self.stream.memcpy_htod(bytes, &mut self.pattern);
        self.done("cuMemcpyHtoDAsync", copied)?;
        Ok(pattern.len() as u64)
    }

    fn done(&self, operation: &'static str, done: Result<(), DriverError>) -> Result<(), Error> {
        checked(operation, self.stream.context().ordinal(), done)
    }
}

/// Launches a kernel on a range of this many elements.
///
/// # Safety
/// The kernel's parameters must be of 64 bits, in this order. All memory that they name must be
/// there until it has run.
unsafe fn launch<const N: usize>(
    kernel: &Function,
    stream: &CudaStream,
    len: usize,
    mut arguments: [u64; N],
) -> Result<(), Error> {
    let blocks = len.div_ceil(PERIOD).clamp(1, MOST_BLOCKS) as u32;
    let mut parameters = arguments
        .each_mut()
        .map(|value| std::ptr::from_mut(value).cast());
    // SAFETY: each parameter points to a number of 64 bits, as the kernel has them. All memory that
    // they name is there until it has run. This function requires both.
    unsafe { kernel.launch(stream, [blocks, THREADS], &mut parameters) }
}

/// The kernel for each size of elements.
fn family(kernels: &Loaded, name: &str) -> Result<[Function; 4], Error> {
    let of = |bits: u32| kernels.function(&format!("{name}_{bits}"));
    Ok([of(8)?, of(16)?, of(32)?, of(64)?])
}

/// The index of the kernels for a type.
fn class<T>() -> usize {
    size_of::<T>().trailing_zeros() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_have_the_kernels_of_their_size() {
        assert_eq!([class::<u8>(), class::<f32>(), class::<f64>()], [0, 2, 3]);
    }

    #[test]
    fn wrong_elements_are_found_on_a_gpu() {
        if !spark_ccl_testing::has(spark_ccl_testing::Need::Gpus(1)) {
            return;
        }
        let context = spark_ccl_cuda::context(0).unwrap();
        let stream = context.new_stream().unwrap();
        let mut kernels = Kernels::load(&stream).unwrap();
        let len = 5 * PERIOD + 77;
        let memory = stream.alloc_zeros::<u16>(len).unwrap();
        // SAFETY: the memory lives until the end of this test, and nothing else uses it.
        let part = |offset: usize, len: usize| unsafe {
            use spark_ccl_cuda::cudarc::driver::DevicePtr;
            let (address, _guard) = memory.device_ptr(&stream);
            DeviceSlice::<spark_ccl::f16>::from_raw(address + 2 * offset as u64, len, 0)
        };
        let pattern: Vec<_> = (0..PERIOD)
            .map(|index| spark_ccl::f16::from_bits(((index * 7919) >> 3) as u16))
            .collect();
        kernels.fill(part(0, len), &pattern).unwrap();
        assert_eq!(kernels.wrong(part(0, len), &pattern, 0).unwrap(), 0);
        for index in [0, PERIOD - 1, 3 * PERIOD, len - 1] {
            let right = pattern[index % PERIOD].to_bits();
            let spoiled = [spark_ccl::f16::from_bits(right.wrapping_add(2))];
            kernels.fill(part(index, 1), &spoiled).unwrap();
        }
        assert_eq!(kernels.wrong(part(0, len), &pattern, 1).unwrap(), 4);
        assert_eq!(kernels.wrong(part(0, len), &pattern, 2).unwrap(), 0);
        assert_eq!(
            kernels
                .wrong(part(1, PERIOD - 2), &pattern[1..], 0)
                .unwrap(),
            0
        );
    }
}
