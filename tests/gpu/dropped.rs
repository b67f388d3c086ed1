//! Pinned memory that is dropped while a kernel waits for a rank: the driver frees none meanwhile,
//! and would hold up all threads that use the GPU. Here one thread drives all ranks of a GPU.

use std::sync::Arc;
use std::time::{Duration, Instant};

use spark_ccl::cuda::DeviceMemory;
use spark_ccl::cuda::cudarc::driver::{CudaContext, CudaStream};
use spark_ccl::{Builder, Communicator, RedOp};
use spark_ccl_cuda::set_aside_bytes;

use super::{BACKEND, builder, gpus, in_another_process, of_fakes, text};

/// For what happens soon, on a machine that has much else to do.
const SOON: Duration = Duration::from_secs(30);
/// The guards have looked a few times.
const A_WHILE: Duration = Duration::from_millis(300);
const LEN: usize = 1000;

/// Ranks of one GPU.
fn on_one_gpu() -> Builder {
    builder()
        .set("SPARK_CCL_DEVICE", "0")
        .set("SPARK_CCL_GPU_PINNED", "1")
        .operation_timeout(SOON)
}

/// The same. What is dropped is freed as soon as no call is in flight.
fn keeping_nothing() -> Builder {
    on_one_gpu().set("SPARK_CCL_GPU_SET_ASIDE", "0")
}

/// A rank, a stream of its own, and its memory.
struct Rank {
    memory: DeviceMemory<u32>,
    stream: Arc<CudaStream>,
    comm: Communicator,
}

impl Rank {
    fn new(comm: Communicator) -> Self {
        let mut memory = comm.alloc_device(LEN).unwrap();
        memory.write(&[comm.rank() as u32 + 1; LEN]).unwrap();
        let stream = comm.context().unwrap().new_stream().unwrap();
        Self {
            memory,
            stream,
            comm,
        }
    }

    fn enqueue(&mut self) {
        let call = self.comm.all_reduce_in_place(&mut self.memory, RedOp::Max);
        call.on(&self.stream).unwrap();
    }

    fn finish(&mut self) {
        self.comm.wait(&self.stream).unwrap();
        let mut seen = [0; LEN];
        self.memory.read(&mut seen).unwrap();
        assert_eq!(seen, [self.comm.size() as u32; LEN]);
    }
}

fn ranks(builder: &Builder) -> Vec<Rank> {
    let all = builder.local(2).unwrap();
    all.into_iter().map(Rank::new).collect()
}

/// Has `meanwhile` run while the first rank's kernel waits for the others, which this thread calls
/// afterwards.
fn while_one_waits(ranks: &mut [Rank], meanwhile: impl FnOnce(&[Rank])) {
    ranks[0].enqueue();
    meanwhile(ranks);
    std::thread::sleep(A_WHILE);
    for rank in &mut ranks[1..] {
        rank.enqueue();
    }
    ranks.iter_mut().for_each(Rank::finish);
}

/// The threads of this process of this name.
fn threads(named: &str) -> usize {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let name = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("comm"));
    let names = threads.filter_map(|thread| name(thread.ok()?).ok());
    names.filter(|name| name.trim_end() == named).count()
}

fn drop_some(ranks: &[Rank]) {
    for rank in ranks {
        for len in [1, 5000, 3 << 20, 100_000, 5000] {
            let mut memory = rank.comm.alloc_device::<u8>(len).unwrap();
            memory.write(&vec![7; len]).unwrap();
        }
    }
}

/// A kernel of the program's runs on the GPU until this is dropped.
struct Occupied(extern "C" fn(i32) -> i32);

impl Occupied {
    /// `None` where the GPU is no fake one.
    fn new() -> Option<Self> {
        let occupy = of_fakes(c"fake_occupy")?;
        occupy(0);
        Some(Self(occupy))
    }
}

impl Drop for Occupied {
    fn drop(&mut self) {
        self.0(-1);
    }
}

/// Runs something that should come back soon.
fn soon<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, done) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(run()).unwrap());
    done.recv_timeout(SOON).unwrap()
}

/// The driver waits for that kernel before it frees memory. It may be of another library, and wait
/// for what this thread launches.
#[test]
fn kernels_of_the_program_may_wait_for_a_launch_after_memory_was_dropped() {
    let Some(_gpus) = gpus(1) else { return };
    // Also after tests that have set much aside.
    let mut ranks = ranks(&on_one_gpu().set("SPARK_CCL_GPU_SET_ASIDE", "4G"));
    let memory = ranks[0].comm.alloc_device::<u8>(1 << 20).unwrap();
    // Communicators of tests before this one may still free theirs.
    for frees in ["spark-gpu-end", "spark-gpu-free"] {
        until_none_is_there(frees);
    }
    let Some(occupied) = Occupied::new() else {
        return;
    };
    drop(memory);
    std::thread::sleep(A_WHILE);
    let mut ranks = soon(move || {
        ranks.iter_mut().for_each(Rank::enqueue);
        ranks
    });
    drop(occupied);
    ranks.iter_mut().for_each(Rank::finish);
}

/// Where more is set aside than may be, it is freed all the same.
#[test]
fn a_call_waits_for_what_is_freed_no_longer_than_it_may_take() {
    let Some(_gpus) = gpus(1) else { return };
    let mut ranks = ranks(&keeping_nothing().operation_timeout(Duration::from_secs(1)));
    let context = Arc::clone(ranks[0].comm.context().unwrap());
    until_all_is_freed(&context);
    until_none_is_there("spark-gpu-free");
    let memory = ranks[0].comm.alloc_device::<u8>(1 << 20).unwrap();
    let Some(occupied) = Occupied::new() else {
        return;
    };
    drop(memory);
    // A thread has taken it, and waits for the driver.
    until_all_is_freed(&context);
    // With the ranks: they end when the kernel has.
    let (said, _ranks) = soon(move || {
        let rank = &mut ranks[0];
        let call = rank.comm.all_reduce_in_place(&mut rank.memory, RedOp::Max);
        (text(call.on(&rank.stream)), ranks)
    });
    drop(occupied);
    for part in [
        "rank 0",
        "could be launched on device 0",
        "SPARK_CCL_GPU_SET_ASIDE",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

/// The driver waits for that kernel before it frees memory.
#[test]
fn ranks_that_enqueue_nothing_do_not_wait_for_the_programs_kernels() {
    let Some(_gpus) = gpus(1) else { return };
    let mut ranks = ranks(&keeping_nothing());
    while_one_waits(&mut ranks, |_| ());
    until_all_is_freed(ranks[0].comm.context().unwrap());
    // A thread that has taken it frees it piece by piece, and others take nothing meanwhile.
    until_none_is_there("spark-gpu-free");
    let memory = ranks[0].comm.alloc_device::<u8>(1 << 20).unwrap();
    let Some(occupied) = Occupied::new() else {
        return;
    };
    drop(memory);
    // A thread has taken it, and waits for the driver.
    until_all_is_freed(ranks[0].comm.context().unwrap());
    let (mut last, checked) = soon(|| {
        let last = ranks.pop().unwrap();
        last.comm.set_timeout(SOON).unwrap();
        drop(ranks);
        let checked = last.comm.check();
        (last, checked)
    });
    checked.unwrap();
    drop(occupied);
    last.finish();
}

#[test]
fn one_thread_drives_ranks_that_drop_memory() {
    let Some(_gpus) = gpus(1) else { return };
    let mut ranks = ranks(&on_one_gpu());
    for _ in 0..5 {
        while_one_waits(&mut ranks, drop_some);
    }
    drop(keeping_nothing().local(1));
    until_all_is_freed(ranks[0].comm.context().unwrap());
}

fn until_all_is_freed(context: &Arc<CudaContext>) {
    until_at_most(context, 0);
}

fn until_at_most(context: &Arc<CudaContext>, bytes: usize) {
    let end = Instant::now() + SOON;
    while set_aside_bytes(context) > bytes {
        assert!(Instant::now() < end, "{} bytes", set_aside_bytes(context));
        std::thread::sleep(A_WHILE);
    }
}

/// The guard of a rank goes with it. A thread that has ended is listed for another moment.
fn until_none_is_there(named: &str) {
    let end = Instant::now() + SOON;
    while threads(named) > 0 {
        assert!(Instant::now() < end, "there is {named}");
        std::thread::sleep(A_WHILE);
    }
}

/// What is kept for later allocations is not kept from one that finds no memory.
#[test]
fn memory_that_is_kept_is_freed_for_an_allocation_that_fails() {
    let Some(_gpus) = gpus(1) else { return };
    let context = {
        let comm = keeping_nothing().local(1).unwrap().remove(0);
        Arc::clone(comm.context().unwrap())
    };
    until_all_is_freed(&context);
    let comm = on_one_gpu().local(1).unwrap().remove(0);
    let Some(refuse) = of_fakes(c"fake_refuse_slots") else {
        return;
    };
    drop(comm.alloc_device::<u8>(100_000).unwrap());
    std::thread::sleep(A_WHILE);
    assert!(set_aside_bytes(&context) > 0);
    // The driver takes a while to free it, and has nothing before.
    of_fakes(c"fake_refuse_until_freed").unwrap()(0);
    let memory = comm.alloc_device::<u8>(1 << 20);
    refuse(0);
    drop(memory.unwrap());
    let said = text(comm.alloc_device::<u8>(3 << 20));
    refuse(-1);
    assert!(said.contains("3145728 bytes of pinned memory"), "{said}");
    assert_eq!(set_aside_bytes(&context), 0);
}

/// Allocations are refused above the limit: memory is freed before.
#[test]
fn memory_is_freed_above_half_of_the_limit() {
    let Some(_gpus) = gpus(1) else { return };
    drop(keeping_nothing().local(1));
    let builder = on_one_gpu().set("SPARK_CCL_GPU_SET_ASIDE", "4M");
    let comm = builder.local(1).unwrap().remove(0);
    let context = comm.context().unwrap();
    until_at_most(context, 1 << 20);
    drop(comm.alloc_device::<u8>(3 << 20).unwrap());
    until_at_most(context, 1 << 20);
}

#[test]
fn memory_that_outlives_all_communicators_is_freed() {
    let Some(_gpus) = gpus(1) else { return };
    let comm = keeping_nothing().local(1).unwrap().remove(0);
    let context = Arc::clone(comm.context().unwrap());
    let blocks = [1 << 20, 5000].map(|len| comm.alloc_device::<u8>(len).unwrap());
    drop(comm);
    until_none_is_there("spark-gpu-guard");
    for block in blocks {
        drop(block);
        until_all_is_freed(&context);
    }
}

/// A thread that waits for the driver holds a rank's engine, and would be ended with the process.
/// Its driver never says again that anything has run.
#[test]
fn memory_of_a_gpu_that_has_failed_keeps_no_thread() {
    let Some(_gpus) = gpus(1) else { return };
    if of_fakes(c"fake_break").is_some() {
        in_another_process("dropped::after_a_failure");
    }
}

/// In another process: the memory is never freed.
#[test]
#[ignore = "a process that another test starts"]
fn after_a_failure() {
    let Some(fail) = of_fakes(c"fake_break") else {
        return;
    };
    let mut ranks = ranks(&on_one_gpu());
    ranks.iter_mut().for_each(Rank::enqueue);
    let (memories, comms): (Vec<_>, Vec<_>) = ranks
        .into_iter()
        .map(|rank| (rank.memory, rank.comm))
        .unzip();
    drop(comms);
    until_none_is_there("spark-gpu-guard");
    fail(0);
    drop(memories);
    until_none_is_there("spark-gpu-rest");
}

#[test]
fn ranks_say_goodbye_although_a_thread_frees_their_memory() {
    let Some(_gpus) = gpus(1) else { return };
    let comms = keeping_nothing().local(2).unwrap();
    let context = Arc::clone(comms[0].context().unwrap());
    let memory = comms[0].alloc_device::<u8>(1 << 20).unwrap();
    until_all_is_freed(&context);
    let Some(_occupied) = Occupied::new() else {
        return;
    };
    drop(memory);
    // A thread takes it soon, unless it waits for the driver before that; it holds the engine in
    // both cases.
    let soon = Instant::now() + Duration::from_secs(2);
    while set_aside_bytes(&context) > 0 && Instant::now() < soon {
        std::thread::sleep(A_WHILE);
    }
    drop(comms);
    // It serves ranks until they have left.
    until_none_is_there("spark-monitor");
}

#[test]
fn many_drops_take_no_threads() {
    let Some(_gpus) = gpus(1) else { return };
    let mut ranks = ranks(&on_one_gpu());
    while_one_waits(&mut ranks, |ranks| {
        let context = ranks[0].comm.context().unwrap();
        let before = set_aside_bytes(context);
        for _ in 0..2000 {
            drop(ranks[0].comm.alloc_device::<u8>(4096).unwrap());
        }
        let more = set_aside_bytes(context).saturating_sub(before);
        assert!(more <= 2 * 4096, "{more} bytes more wait to be freed");
        let threads = threads("spark-gpu-free");
        assert!(threads <= ranks.len(), "{threads} threads");
    });
}

/// The memory of a communicator's own, too: slots, and what ranks share and register.
#[test]
fn one_thread_ends_communicators_while_another_waits() {
    let Some(_gpus) = gpus(1) else { return };
    let mut ranks = ranks(&on_one_gpu());
    let sharing = Communicator::builder()
        .backend(BACKEND)
        .set("SPARK_CCL_SHARE_GPU", "1")
        .set("SPARK_CCL_DEVICE", "0")
        .set("SPARK_CCL_PATH", "safe");
    for (ended, path) in [
        (on_one_gpu(), "staged"),
        (sharing, "pinned memory of the host"),
    ] {
        while_one_waits(&mut ranks, |_| {
            let others = self::ranks(&ended);
            let said = others[0].comm.device_path().unwrap();
            assert!(said.contains(path), "{said}");
            drop(others);
        });
    }
}

/// The one before has set memory aside when it is made.
#[test]
fn a_communicator_waits_until_there_is_room_for_pinned_memory() {
    let Some(_gpus) = gpus(1) else { return };
    let builder = Communicator::builder()
        .backend(BACKEND)
        .set("SPARK_CCL_SHARE_GPU", "1")
        .set("SPARK_CCL_DEVICE", "0")
        .set("SPARK_CCL_GPU_SET_ASIDE", "1")
        .set("SPARK_CCL_PATH", "safe");
    for _ in 0..3 {
        let ranks = ranks(&builder);
        let said = ranks[0].comm.device_path().unwrap();
        assert!(said.contains("pinned memory of the host"), "{said}");
    }
}

#[test]
fn memory_that_waits_to_be_freed_is_bounded() {
    let Some(_gpus) = gpus(1) else { return };
    let mut ranks = ranks(&on_one_gpu());
    let bounded = on_one_gpu()
        .set("SPARK_CCL_GPU_SET_ASIDE", "1M")
        .operation_timeout(Duration::from_secs(1))
        .local(1)
        .unwrap()
        .remove(0);
    // Of tests before this one.
    until_at_most(bounded.context().unwrap(), 1 << 20);
    while_one_waits(&mut ranks, |_| {
        drop(bounded.alloc_device::<u8>(4 << 20).unwrap());
        let said = text(bounded.alloc_device::<u8>(64 << 20));
        for part in [
            "67108864 bytes of pinned memory",
            "wait to be freed",
            "more than 1048576",
            "SPARK_CCL_GPU_SET_ASIDE",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
        // What was dropped is used again.
        drop(bounded.alloc_device::<u8>(3 << 20).unwrap());
    });
    drop(bounded.alloc_device::<u8>(64 << 20).unwrap());
}
