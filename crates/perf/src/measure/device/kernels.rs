//! The kernels that fill memory for checked runs, and count wrong elements.

use std::sync::Arc;

use spark_ccl::Element;
use spark_ccl::cuda::DeviceSlice;
use spark_ccl_cuda::cudarc::driver::{
    CudaFunction, CudaSlice, CudaStream, DriverError, LaunchConfig, PushKernelArg,
};
use spark_ccl_cuda::{Error, Images, Kernels as Loaded, checked};

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
    /// By the size of elements: 1, 2, 4 and 8 bytes.
    repeat: [CudaFunction; 4],
    count: [CudaFunction; 4],
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
        let filled = self.repeat(part, pattern);
        checked("filling memory", self.stream.context().ordinal(), filled)
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
        let counted = self.count(part, pattern, tolerance);
        checked("checking memory", self.stream.context().ordinal(), counted)
    }

    fn repeat<T: Element>(
        &mut self,
        part: DeviceSlice<T>,
        pattern: &[T],
    ) -> Result<(), DriverError> {
        let (address, len) = (part.address(), part.len() as u64);
        let period = self.upload(pattern)?;
        let mut kernel = self.stream.launch_builder(&self.repeat[class::<T>()]);
        kernel.arg(&address).arg(&len).arg(&self.pattern);
        kernel.arg(&period);
        // SAFETY: the arguments are those that `check.cu` declares, for elements of this size.
        // `from_raw`'s caller promised that the part's memory is valid, and `upload` has stored
        // `period` elements of the pattern.
        unsafe { kernel.launch(grid(part.len())) }?;
        self.stream.synchronize()
    }

    fn count<T: Element>(
        &mut self,
        part: DeviceSlice<T>,
        pattern: &[T],
        tolerance: u64,
    ) -> Result<u64, DriverError> {
        let (address, len) = (part.address(), part.len() as u64);
        let period = self.upload(pattern)?;
        self.stream.memset_zeros(&mut self.wrong)?;
        let mut kernel = self.stream.launch_builder(&self.count[class::<T>()]);
        kernel.arg(&address).arg(&len).arg(&self.pattern);
        kernel.arg(&period).arg(&tolerance).arg(&mut self.wrong);
        // SAFETY: the arguments are those that `check.cu` declares, for elements of this size.
        // `from_raw`'s caller promised that the part's memory is valid, `upload` has stored
        // `period` elements of the pattern, and `wrong` has room for the count.
        unsafe { kernel.launch(grid(part.len())) }?;
        let mut wrong = [0];
        self.stream.memcpy_dtoh(&self.wrong, &mut wrong)?;
        self.stream.synchronize()?;
        Ok(wrong[0])
    }

    /// Copies the pattern to the device; returns its length.
    fn upload<T: Element>(&mut self, pattern: &[T]) -> Result<u64, DriverError> {
        let bytes: &[u8] = bytemuck::cast_slice(pattern);
        self.stream.memcpy_htod(bytes, &mut self.pattern)?;
        Ok(pattern.len() as u64)
    }
}

/// The kernel for each size of elements.
fn family(kernels: &Loaded, name: &str) -> Result<[CudaFunction; 4], Error> {
    let of = |bits: u32| kernels.function(&format!("{name}_{bits}"));
    Ok([of(8)?, of(16)?, of(32)?, of(64)?])
}

/// The index of the kernels for a type.
fn class<T>() -> usize {
    size_of::<T>().trailing_zeros() as usize
}

fn grid(len: usize) -> LaunchConfig {
    let blocks = len.div_ceil(PERIOD).clamp(1, MOST_BLOCKS);
    LaunchConfig {
        grid_dim: (blocks as u32, 1, 1),
        block_dim: (THREADS, 1, 1),
        shared_mem_bytes: 0,
    }
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
