//! Making communicators on real GPUs.

use std::sync::OnceLock;

use spark_ccl_nccl::{Communicator, Config, ShrinkMode, UniqueId, Version};

use crate::cuda::Gpu;
use crate::{machine, nonblocking, sum_of_ranks, sum_to, supported};

#[test]
fn version() {
    let Some(machine) = machine(0) else { return };
    let version = machine.library.version();
    println!("NCCL {version}");
    assert!(version >= Version::OLDEST);
    for (function, since) in machine.library.missing() {
        println!("  without {function}, which came with {since}");
        assert!(version < since, "{function}");
    }
}

#[test]
fn all_of_one_process() {
    let Some(machine) = machine(1) else { return };
    let devices: Vec<_> = machine.gpus.iter().map(|gpu| gpu.number).collect();
    let comms = Communicator::init_all(machine.library, &devices).unwrap();
    for (rank, comm) in comms.iter().enumerate() {
        assert_eq!(comm.rank().unwrap(), rank);
        assert_eq!(comm.size().unwrap(), devices.len());
        assert_eq!(comm.device().unwrap(), devices[rank]);
    }
    Communicator::finalize_all(comms).unwrap();
}

#[test]
fn all_in_one_group() {
    let Some(machine) = machine(1) else { return };
    let (library, size) = (machine.library, machine.gpus.len());
    for config in [Config::default(), nonblocking(Config::default().timeout)] {
        let id = library.unique_id().unwrap();
        let make = |(rank, gpu): (usize, &Gpu)| {
            gpu.enter();
            Communicator::init_rank(library, size, id, rank, &config)
        };
        let all = || {
            machine
                .gpus
                .iter()
                .enumerate()
                .map(make)
                .collect::<Result<Vec<_>, _>>()
        };
        let comms = library.group(all).unwrap();
        for (comm, gpu) in comms.iter().zip(machine.gpus) {
            assert_eq!(comm.device().unwrap(), gpu.number);
        }
        Communicator::finalize_all(comms).unwrap();
    }
}

#[test]
fn with_several_ids() {
    let Some(machine) = machine(2) else { return };
    let library = machine.library;
    let ids = [(); 2].map(|()| library.unique_id().unwrap());
    machine.each_gpu(|rank, gpu| {
        let size = machine.gpus.len();
        let made = Communicator::init_scalable(library, size, &ids, rank, &Config::default());
        let Some(comm) = supported(made) else { return };
        assert_eq!(sum_of_ranks(gpu, &comm), sum_to(size));
        comm.finalize().unwrap();
    });
}

#[test]
fn split() {
    let Some(machine) = machine(2) else { return };
    for config in [Config::default(), nonblocking(Config::default().timeout)] {
        machine.each_rank(&config, |gpu, comm| {
            let (size, rank) = (comm.size().unwrap(), comm.rank().unwrap());
            let reversed = comm.split(Some(7), -(rank as i32), None).unwrap().unwrap();
            assert_eq!(reversed.rank().unwrap(), size - 1 - rank);
            assert_eq!(reversed.device().unwrap(), gpu.number);
            assert_eq!(sum_of_ranks(gpu, &reversed), sum_to(size));
            reversed.finalize().unwrap();

            let last = rank == size - 1;
            let named = Config {
                name: Some("some".into()),
                ..config.clone()
            };
            let color = (!last).then_some(0);
            let part = comm.split(color, 0, Some(&named)).unwrap();
            assert_eq!(part.is_some(), !last);
            if let Some(part) = part {
                assert_eq!(part.size().unwrap(), size - 1);
                assert_eq!(sum_of_ranks(gpu, &part), sum_to(size - 1));
                part.finalize().unwrap();
            }
            assert_eq!(sum_of_ranks(gpu, &comm), sum_to(size));
            comm.finalize().unwrap();
        });
    }
}

#[test]
fn shrink() {
    let Some(machine) = machine(2) else { return };
    for config in [Config::default(), nonblocking(Config::default().timeout)] {
        machine.each_rank(&config, |gpu, comm| {
            let last = comm.size().unwrap() - 1;
            if comm.rank().unwrap() != last {
                let shrunk = comm.shrink(&[last], ShrinkMode::Default, None);
                if let Some(shrunk) = supported(shrunk) {
                    assert_eq!(shrunk.size().unwrap(), last);
                    assert_eq!(sum_of_ranks(gpu, &shrunk), sum_to(last));
                    shrunk.finalize().unwrap();
                }
            }
            comm.finalize().unwrap();
        });
    }
}

#[test]
fn grow() {
    let Some(machine) = machine(2) else { return };
    let (library, size) = (machine.library, machine.gpus.len());
    let first = library.unique_id().unwrap();
    let shared: OnceLock<Option<UniqueId>> = OnceLock::new();
    let config = Config::default();
    machine.each_gpu(|rank, gpu| {
        let grown = if rank == size - 1 {
            let Some(id) = *shared.wait() else { return };
            Communicator::init_grown(library, size, id, rank, &config).unwrap()
        } else {
            let comm = Communicator::init_rank(library, size - 1, first, rank, &config).unwrap();
            if rank == 0 {
                shared.set(supported(comm.growth_id())).unwrap();
            }
            let Some(id) = *shared.wait() else { return };
            comm.grow(size, (rank == 0).then_some(id), None).unwrap()
        };
        assert_eq!(grown.rank().unwrap(), rank);
        assert_eq!(sum_of_ranks(gpu, &grown), sum_to(size));
        grown.finalize().unwrap();
    });
}
