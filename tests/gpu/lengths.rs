//! Untyped calls whose buffers are as long as their memory, or longer: blocks of the library's,
//! allocations of the program's, and mappings that follow each other.

use std::mem::zeroed;

use spark_ccl::cuda::DeviceCall;
use spark_ccl::cuda::cudarc::driver::{result, sys};
use spark_ccl::{Communicator, DType, Error, Operation, RedOp, UntypedCall};
use spark_ccl_testing::{Need, has};

use super::{builder, gpus, text};

/// Sums bytes in place.
fn sum(comm: &Communicator, address: u64, bytes: usize) -> Result<(), Error> {
    let start = std::ptr::without_provenance_mut::<u8>(address as usize);
    let call = UntypedCall::new(Operation::AllReduce, DType::U8)
        .reduction(RedOp::Sum)
        .in_place(start, bytes);
    let stream = std::ptr::null_mut();
    let calls = [DeviceCall {
        comm,
        call: &call,
        stream,
    }];
    // SAFETY: the default stream always exists, and is waited for before this returns. The test
    // keeps the memory until then, and nothing else uses it. A call that is longer than its memory
    // is refused before anything is enqueued, which is what is tested.
    unsafe {
        Communicator::enqueue_untyped(&calls)?;
        comm.wait_raw(stream)
    }
}

/// A call of all these bytes is done; one of more is refused, with both numbers.
fn ends_after(comm: &Communicator, address: u64, bytes: usize) {
    sum(comm, address, bytes).unwrap();
    for more in [1, 12 << 20] {
        let said = text(sum(comm, address, bytes + more));
        for part in [
            "all_reduce",
            "in-place buffer of rank 0",
            &format!("has {} bytes", bytes + more),
            &format!("only {bytes}:"),
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
}

#[test]
fn blocks_end_where_they_were_asked_to_end() {
    let Some(_gpus) = gpus(1) else { return };
    let comm = builder().local(1).unwrap().remove(0);
    let memory = comm.alloc_device::<u8>(64).unwrap();
    ends_after(&comm, memory.address(), 64);
    ends_after(&comm, memory.address() + 60, 4);
    comm.finalize().unwrap();
}

#[test]
fn allocations_of_the_program_end_where_the_driver_says() {
    let Some(_gpus) = gpus(1) else { return };
    let comm = builder().local(1).unwrap().remove(0);
    comm.context().unwrap().bind_to_thread().unwrap();
    // SAFETY: a context is current, which is all that an allocation needs. The memory is freed
    // once, at the end of this test.
    let address = unsafe { result::malloc_sync(100) }.unwrap();
    ends_after(&comm, address, 100);
    ends_after(&comm, address + 36, 64);
    // SAFETY: `malloc_sync` returned the address, this frees it once, and `ends_after` has waited
    // for the calls on it.
    unsafe { result::free_sync(address) }.unwrap();
    comm.finalize().unwrap();
}

/// The number is that of the program's memory, wherever the library's next block begins.
#[test]
fn a_block_behind_an_allocation_of_the_program_does_not_make_it_longer() {
    // A driver decides where blocks lie, and may put all of them in front of the program's memory.
    if !has(Need::FakeGpus) {
        return;
    }
    let Some(_gpus) = gpus(1) else { return };
    let comm = builder().local(1).unwrap().remove(0);
    comm.context().unwrap().bind_to_thread().unwrap();
    let (mut own, mut blocks) = (Vec::new(), Vec::new());
    let (address, block) = (0..64)
        .find_map(|_| {
            // SAFETY: a context is current, which is all that an allocation needs. The memory is
            // freed once, at the end of this test.
            own.push(unsafe { result::malloc_sync(100) }.unwrap());
            blocks.push(comm.alloc_device::<u8>(1 << 20).unwrap());
            let mut pairs = own
                .iter()
                .flat_map(|&own| blocks.iter().map(move |block| (own, block.address())));
            pairs.find(|(own, block)| own < block)
        })
        .expect("a block behind an allocation");
    let bytes = (block - address) as usize + 1;
    let said = text(sum(&comm, address, bytes));
    for part in [format!("has {bytes} bytes"), "only 100:".to_owned()] {
        assert!(said.contains(&part), "{part}: {said}");
    }
    for address in own {
        // SAFETY: `malloc_sync` returned the address, this frees it once, and no call on it was
        // enqueued.
        unsafe { result::free_sync(address) }.unwrap();
    }
    comm.finalize().unwrap();
}

/// Addresses that are reserved, of which the first are mapped piece by piece: as PyTorch's
/// expandable segments.
struct Segment {
    start: u64,
    page: usize,
    mapped: Vec<sys::CUmemGenericAllocationHandle>,
}

/// How many pages are reserved.
const PAGES: usize = 16;

impl Segment {
    fn new() -> Self {
        let (kind, mut page, mut start) = (kind(), 0, 0);
        let finest = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        // SAFETY: the driver reads `kind`, and writes a number to `page` and an address to `start`:
        // all three are variables of this function.
        unsafe {
            sys::cuMemGetAllocationGranularity(&raw mut page, &raw const kind, finest)
                .result()
                .unwrap();
            sys::cuMemAddressReserve(&raw mut start, PAGES * page, 0, 0, 0)
                .result()
                .unwrap();
        }
        Self {
            start,
            page,
            mapped: Vec::new(),
        }
    }

    fn grow(&mut self) {
        let (kind, mut memory) = (kind(), 0);
        let end = self.start + (self.mapped.len() * self.page) as u64;
        let access = sys::CUmemAccessDesc {
            location: kind.location,
            flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: `PAGES` pages are reserved at `start`, and the tests map no more. `end` is behind
        // the last that is mapped, so nothing is mapped there. The driver reads `kind` and
        // `access`, and writes `memory`: variables of this function.
        unsafe {
            sys::cuMemCreate(&raw mut memory, self.page, &raw const kind, 0)
                .result()
                .unwrap();
            sys::cuMemMap(end, self.page, 0, memory, 0)
                .result()
                .unwrap();
            sys::cuMemSetAccess(end, self.page, &raw const access, 1)
                .result()
                .unwrap();
        }
        self.mapped.push(memory);
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        for (place, memory) in self.mapped.drain(..).enumerate() {
            // SAFETY: `grow` mapped this memory at this place, this releases it once, and the calls
            // on it have run.
            unsafe {
                sys::cuMemUnmap(self.start + (place * self.page) as u64, self.page);
                sys::cuMemRelease(memory);
            }
        }
        // SAFETY: `new` reserved these pages, this frees them once, and nothing is mapped there any
        // more.
        unsafe { sys::cuMemAddressFree(self.start, PAGES * self.page) };
    }
}

fn kind() -> sys::CUmemAllocationProp {
    // SAFETY: the structure has numbers, a pointer, and enumerations that have a value 0.
    let mut kind: sys::CUmemAllocationProp = unsafe { zeroed() };
    kind.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    kind.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    kind
}

#[test]
fn mappings_that_follow_each_other_are_one_memory() {
    let Some(_gpus) = gpus(1) else { return };
    let comm = builder()
        .set("SPARK_CCL_DEVICE", "0")
        .local(1)
        .unwrap()
        .remove(0);
    comm.context().unwrap().bind_to_thread().unwrap();
    let mut segment = Segment::new();
    let page = segment.page;
    for pages in 1..4 {
        segment.grow();
        ends_after(&comm, segment.start, pages * page);
        ends_after(&comm, segment.start + 3, pages * page - 3);
    }
    ends_after(&comm, segment.start + page as u64 + 1, 2 * page - 1);
    comm.finalize().unwrap();
}
