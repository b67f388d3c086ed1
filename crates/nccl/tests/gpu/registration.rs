use spark_ccl_nccl::{
    Allocation, Communicator, Config, DType, DeviceSlice, Error, RedOp, WindowKind,
};

use crate::cuda::Gpu;
use crate::{Machine, machine, nonblocking, sum_of_ranks, supported, wait};

const LEN: usize = 1 << 20;

/// Device memory allocated by NCCL, if the library can. Memory left by a failed test is freed when
/// the process exits.
fn allocate(machine: &Machine, gpu: &Gpu) -> Option<(Allocation, DeviceSlice)> {
    gpu.enter();
    let allocation = supported(machine.library.allocate(LEN * DType::F32.size()))?;
    assert_eq!(allocation.bytes(), LEN * 4);
    // SAFETY: the allocation is freed after everything that uses it has run.
    let slice = unsafe { DeviceSlice::from_raw(allocation.start(), LEN, DType::F32, gpu.number) };
    Some((allocation, slice))
}

/// Sums ones in place: shows that the buffer works.
fn check(gpu: &Gpu, comm: &Communicator, buffer: DeviceSlice) {
    gpu.write(buffer, &vec![1.0_f32; LEN]);
    comm.all_reduce(buffer, buffer, RedOp::Sum, gpu.stream())
        .unwrap();
    wait(gpu, comm);
    let sum = comm.size().unwrap() as f32;
    assert!(gpu.read::<f32>(buffer) == vec![sum; LEN]);
}

fn free(allocation: Allocation) {
    // SAFETY: the communicator has ended on all ranks, so everything that used the memory has run.
    unsafe { allocation.free() }.unwrap();
}

#[test]
fn local() {
    let Some(machine) = machine(1) else { return };
    for config in [Config::default(), nonblocking(Config::default().timeout)] {
        let used = machine.each_rank(&config, |gpu, comm| {
            let (allocation, buffer) = allocate(&machine, gpu)?;
            let registration = comm.register(buffer).unwrap();
            check(gpu, &comm, buffer);
            comm.deregister(registration).unwrap();
            check(gpu, &comm, buffer);
            // A registration left open ends with the communicator.
            comm.register(buffer).unwrap();
            comm.finalize().unwrap();
            Some(allocation)
        });
        used.into_iter().flatten().for_each(free);
    }
}

#[test]
fn windows() {
    let Some(machine) = machine(1) else { return };
    for config in [Config::default(), nonblocking(Config::default().timeout)] {
        let used = machine.each_rank(&config, |gpu, comm| {
            let (allocation, buffer) = allocate(&machine, gpu)?;
            for kind in [WindowKind::Default, WindowKind::Symmetric] {
                let window = supported(comm.register_window(buffer, kind))?;
                println!("{kind:?}: used {}", window.is_used());
                check(gpu, &comm, buffer);
                comm.deregister_window(window).unwrap();
            }
            comm.finalize().unwrap();
            Some(allocation)
        });
        used.into_iter().flatten().for_each(free);
    }
}

#[test]
fn windows_of_one_thread() {
    let Some(machine) = machine(1) else { return };
    let devices: Vec<_> = machine.gpus.iter().map(|gpu| gpu.number).collect();
    let comms = Communicator::init_all(machine.library, &devices).unwrap();
    let allocate = |gpu| allocate(&machine, gpu);
    let Some(memory) = machine
        .gpus
        .iter()
        .map(allocate)
        .collect::<Option<Vec<_>>>()
    else {
        return;
    };
    let all = || comms.iter().zip(&memory);
    let register = |(comm, (_, buffer)): (&Communicator, &(_, DeviceSlice))| {
        comm.register_window(*buffer, WindowKind::Symmetric)
    };
    let registered = machine
        .library
        .group(|| all().map(register).collect::<Result<Vec<_>, _>>());
    if let Some(windows) = supported(registered) {
        let used: Vec<_> = windows
            .iter()
            .map(spark_ccl_nccl::Window::is_used)
            .collect();
        println!("used {used:?}");
        let deregister = |(comm, window)| Communicator::deregister_window(comm, window);
        let ended = machine
            .library
            .group(|| comms.iter().zip(windows).try_for_each(deregister));
        ended.unwrap();
    }
    Communicator::finalize_all(comms).unwrap();
    for (allocation, _) in memory {
        free(allocation);
    }
}

#[test]
fn memory_stats() {
    let Some(machine) = machine(1) else { return };
    machine.each_rank(&Config::default(), |gpu, comm| {
        sum_of_ranks(gpu, &comm);
        if let Some(stats) = supported(comm.memory_stats()) {
            println!("{stats:?}");
            assert!(stats.total > 0 && !stats.suspended);
            assert!(stats.suspendable <= stats.total && stats.persistent <= stats.total);
        }
        comm.finalize().unwrap();
    });
}

#[test]
fn too_much_memory() {
    let Some(machine) = machine(1) else { return };
    machine.gpus[0].enter();
    match machine.library.allocate(1 << 50) {
        Err(error) if error.is_unsupported() => println!("{error}"),
        result => {
            let error: Error = result.unwrap_err();
            println!("{error}");
            assert_eq!(error.code(), Some(spark_ccl_nccl::Code::CUDA));
        }
    }
}
