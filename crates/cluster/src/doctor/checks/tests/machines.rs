//! Limits, software, cards, clocks.

use spark_ccl_topology::{BUILT_WITHOUT_CUDA, ConfFile, Disk, Library, Limit};

use super::*;
use crate::doctor::checks::Pinned;

const DEVICE: &str = "roceP2p1s0f0";

#[test]
fn limits_are_low() {
    let fix = "/etc/security/limits.d";
    planted(Status::Fail, "limits.memlock", fix, |host| {
        host.limits.memlock = Limit::Most(8 << 20);
    });
    planted(Status::Warn, "limits.memlock", fix, |host| {
        host.limits.memlock = Limit::Most(4 << 30);
    });
    let contained = |host: &mut Host| {
        host.limits.memlock = Limit::Most(8 << 20);
        host.system.container = Some("docker".to_owned());
    };
    let one = planted(
        Status::Fail,
        "limits.memlock",
        "--ulimit memlock=-1",
        contained,
    );
    assert_eq!(one.command(), None);
    planted(Status::Warn, "limits.files", "ulimit -n", |host| {
        host.limits.files = Limit::Most(256);
    });
    planted(Status::Warn, "limits.buffers", "sysctl", |host| {
        host.limits.send_buffer = Some(65536);
    });
    planted(Status::Unknown, "limits.memlock", "not told", |host| {
        host.limits.memlock = Limit::Unknown;
    });
}

/// Findings about settings that jobs on both hosts will have, of which the second host's table
/// has moved its entries from 2 and 3 to 4 and 5.
fn pinned(settings: &[(&str, &str)]) -> Vec<Finding> {
    let mut hosts = pair();
    for gid in &mut hosts[1].port_mut(DEVICE).gids {
        gid.index += 2;
    }
    let settings = settings
        .iter()
        .map(|(name, value)| ((*name).into(), (*value).into()));
    let pinned = [Pinned {
        from: "jobs.env".to_owned(),
        settings: settings.collect(),
    }];
    let subject = Subject {
        cluster: &Cluster::of(&hosts),
        clocks: &[None; 2],
        pinned: &pinned,
    };
    let found = all(&subject).into_iter();
    found.filter(|one| one.id == "settings.pinned").collect()
}

#[test]
fn settings_name_what_is_not_there() {
    assert_eq!(pinned(&[]), []);
    assert_eq!(
        pinned(&[("NCCL_DEBUG", "INFO"), ("NCCL_IB_HCA", "rocep1s0f0")]),
        []
    );
    let is_ipv4 = |gid: &&Gid| gid.ip().is_ipv4() && gid.roce == Roce::V2;
    let index = pair()[1]
        .port_mut(DEVICE)
        .gids
        .iter()
        .find(is_ipv4)
        .unwrap()
        .index
        .to_string();
    for name in ["NCCL_IB_GID_INDEX", "SPARK_CCL_IB_GID_INDEX"] {
        let found = pinned(&[(name, &index)]);
        assert_eq!((found.len(), &*found[0].hosts[0]), (1, "spark-2"));
        let text = found[0].to_string();
        assert!(
            text.contains(&format!("{name} (from jobs.env) is {index}")),
            "{text}"
        );
        assert!(text.contains(DEVICE), "{text}");
    }
    // The other device's table is as it was.
    let other = ("NCCL_IB_HCA", "=rocep1s0f0");
    assert_eq!(pinned(&[("NCCL_IB_GID_INDEX", &index), other]), []);
    for (name, value, known) in [
        ("NCCL_SOCKET_IFNAME", "eth0", "enp1s0f0np0"),
        ("NCCL_IB_HCA", "mlx5_0,mlx5_1", "rocep1s0f0"),
        ("NCCL_IB_TIMEOUT", "soon", "1 to 31"),
    ] {
        let found = pinned(&[(name, value)]);
        assert_eq!(found.len(), 2, "{found:#?}");
        for (one, host) in found.iter().zip(["spark-1", "spark-2"]) {
            let text = one.to_string();
            assert!(one.status == Status::Fail && one.hosts == [host], "{text}");
            let parts = [name, value, known, "jobs.env"];
            assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        }
    }
}

#[test]
fn nccl_may_hang() {
    for (version, may) in [
        ("2.28.9", true),
        ("2.9.9", true),
        ("2.29.2", true),
        ("2.29.3", false),
        ("2.30.1", false),
    ] {
        let mut hosts = pair();
        for host in &mut hosts {
            host.nccl_mut().version = Some(version.to_owned());
        }
        let expected = vec![(Status::Warn, "nccl.version"); if may { 2 } else { 0 }];
        let found = wrong(&hosts);
        assert_eq!(ids(&found), expected, "{version}");
        assert!(found.iter().all(|one| one.command().is_none()));
    }
    let one = planted(Status::Warn, "nccl.version", "2.29.5", |host| {
        host.software.nccl.push(Library {
            path: "/usr/local/nccl/lib/libnccl.so.2.29.5".to_owned(),
            version: Some("2.29.5".to_owned()),
            bytes: 10,
        });
        // The newest is the one to compare.
        host.software.nccl[0].version = Some("2.30.7".to_owned());
    });
    assert_eq!(one.command(), None);
}

#[test]
fn nccl_is_nowhere_that_is_searched() {
    let mut host = testing::spark("spark-1", 1).host();
    host.software.nccl.clear();
    let found = wrong(std::slice::from_ref(&host));
    assert_eq!(ids(&found), [(Status::Unknown, "nccl.version")]);
    let text = found[0].to_string();
    assert!(text.contains("torch.cuda.nccl.version()"), "{text}");
    // Without GPUs, nobody needs it.
    host.gpus.clear();
    assert_eq!(wrong(&[host]), []);
}

#[test]
fn builds_of_nccl_differ() {
    planted(Status::Warn, "cluster.nccl", "bytes", |host| {
        host.nccl_mut().bytes += 1;
    });
    planted(Status::Warn, "cluster.nccl", "2.31.0", |host| {
        host.nccl_mut().version = Some("2.31.0".to_owned());
    });
    planted(Status::Warn, "cluster.driver", "580.82.09", |host| {
        host.software.driver = Some("580.82.09".to_owned());
    });
}

#[test]
fn toolkits_differ() {
    let toolkit = |version: &str| Library {
        path: format!("/usr/local/cuda-{version}"),
        version: Some(version.to_owned()),
        bytes: 0,
    };
    let both = |versions: [&str; 2]| {
        let mut hosts = testing::hosts(&testing::pair());
        for (host, version) in hosts.iter_mut().zip(versions) {
            host.software.toolkits = vec![toolkit(version)];
        }
        ids(&wrong(&hosts))
    };
    assert_eq!(both(["13.0.2", "13.0.2"]), []);
    assert_eq!(
        both(["13.0.2", "12.9.1"]),
        [(Status::Warn, "cluster.toolkit")]
    );
}

#[test]
fn all_files_of_settings_are_told() {
    let one = planted(
        Status::Warn,
        "nccl.conf",
        "/etc/nccl.conf: NCCL_IB_GID_INDEX=3",
        |host| {
            for (path, name) in [
                ("/root/.nccl.conf", "NCCL_DEBUG"),
                ("/etc/nccl.conf", "NCCL_IB_GID_INDEX"),
            ] {
                host.software.conf.push(ConfFile {
                    path: path.to_owned(),
                    settings: vec![(name.to_owned(), "3".to_owned())],
                });
            }
        },
    );
    assert!(one.seen.contains("/root/.nccl.conf: NCCL_DEBUG=3"), "{one}");
    assert_eq!(one.command(), None);
}

#[test]
fn the_driver_does_not_answer() {
    planted(Status::Fail, "gpu.driver", "nvidia-smi", |host| {
        host.software.cuda_problem = Some("cuInit: system not yet initialized".to_owned());
    });
    planted(
        Status::Unknown,
        "gpu.driver",
        "CUDA was not asked",
        |host| {
            host.software.cuda_problem = Some(BUILT_WITHOUT_CUDA.to_owned());
        },
    );
    planted(
        Status::Unknown,
        "gpu.memory",
        "CUDA_VISIBLE_DEVICES",
        |host| {
            host.gpus[0].cuda = None;
        },
    );
}

/// No log says why.
#[test]
fn a_kernel_on_which_cuda_cannot_start_is_named() {
    let fault = |host: &mut Host| {
        host.software.cuda_problem = Some("cuInit: initialization error (3)".to_owned());
        host.system.smmu_sva = Some(false);
    };
    let text = "initialization error (3); Linux 6.17.0-1014-nvidia has no CONFIG_ARM_SMMU_V3_SVA";
    planted(Status::Fail, "gpu.driver", text, fault);
    // Other GPUs have no part in the page tables of processes, and one that answers needs nothing.
    planted(Status::Fail, "gpu.driver", "nvidia-smi", |host| {
        fault(host);
        host.gpus[0].name = Some("NVIDIA L4".to_owned());
    });
    let mut hosts = pair();
    hosts[1].system.smmu_sva = Some(false);
    assert_eq!(wrong(&hosts), []);
}

/// The files are those of a Spark with a kernel that hands memory over, and Linux' own default.
#[test]
fn files_of_a_machine_in_trouble() {
    let said = |path: &str, text: &str| {
        let mut recorded = testing::spark("spark-1", 1);
        recorded.set(path, text);
        wrong(&[recorded.host()])
    };
    let meminfo = "MemTotal:       125513216 kB\nMemAvailable:   118112256 kB\n\
                   CmaTotal:              0 kB\nCmaFree:         9961472 kB";
    let found = said("proc/meminfo", meminfo);
    assert_eq!(ids(&found), [(Status::Fail, "host.kernel")]);
    assert!(
        found[0].seen.contains("CmaFree 9.5 GiB of CmaTotal 0 B"),
        "{}",
        found[0]
    );
    let found = said("proc/sys/vm/compaction_proactiveness", "20");
    assert_eq!(ids(&found), [(Status::Warn, "host.compaction")]);
    let command = "sudo sysctl -w vm.compaction_proactiveness=0";
    assert_eq!(found[0].command(), Some(command));
}

#[test]
fn pages_are_moved_under_a_gpu() {
    planted(Status::Warn, "host.compaction", "130 ms", |host| {
        host.system.compaction = Some(20);
    });
    // Other GPUs have memory of their own.
    let mut server = testing::nvlink_server("h200").host();
    server.system.compaction = Some(20);
    assert_eq!(wrong(&[server]), []);
}

#[test]
fn the_machine_is_in_trouble() {
    planted(Status::Fail, "host.memory", "ps -eo", |host| {
        host.memory.available = 2 << 30;
    });
    planted(Status::Warn, "host.memory", "ps -eo", |host| {
        host.memory.available = 4 << 30;
    });
    planted(Status::Fail, "host.kernel", "kho=off", |host| {
        host.memory.cma = Some((0, 4096));
    });
    planted(Status::Warn, "host.governor", "performance", |host| {
        host.cpus[0].governor = Some("powersave".to_owned());
    });
    let mut hosts = pair();
    for host in &mut hosts {
        host.system.kernel = "7.0.0-1019-nvidia".to_owned();
    }
    hosts[0].system.boot.push("kho=off".to_owned());
    assert_eq!(ids(&wrong(&hosts)), [(Status::Fail, "host.kernel")]);
}

#[test]
fn a_disk_is_full() {
    let disk = |path: &str, available: u64| Disk {
        path: path.to_owned(),
        total: 1 << 40,
        available,
    };
    planted(Status::Fail, "host.disk", "/tmp: 1 MiB", |host| {
        host.disks = vec![disk("/", 2 << 30), disk("/tmp", 1 << 20)];
    });
    planted(Status::Warn, "host.disk", "du -xh", |host| {
        host.disks = vec![disk("/", 1 << 29)];
    });
    let contained = |host: &mut Host| {
        host.disks = vec![disk("/dev/shm", 64 << 20)];
        host.system.container = Some("docker".to_owned());
    };
    planted(Status::Warn, "host.disk", "--shm-size", contained);
    planted(Status::Fail, "host.disk", "ls -l /dev/shm", |host| {
        host.disks = vec![disk("/dev/shm", 0)];
    });
    let mut hosts = pair();
    hosts[0].disks = vec![disk("/", 1 << 30), disk("/dev/shm", 128 << 20)];
    assert_eq!(wrong(&hosts), []);
}

#[test]
fn nothing_that_is_printed_restarts_a_machine() {
    let mut hosts = pair();
    hosts[1].system.kernel = "7.0.0-1019-nvidia".to_owned();
    hosts[1].software.driver = Some("1.2.3".to_owned());
    hosts[1].software.cuda_problem = Some("cuInit".to_owned());
    hosts[1].nccl_mut().version = Some("2.28.9".to_owned());
    let found = wrong(&hosts);
    assert!(found.len() > 4);
    for one in found {
        assert!(
            one.command()
                .is_none_or(|it| !it.contains("reboot") && !it.contains("upgrade")),
            "{one}"
        );
    }
}

#[test]
fn a_network_card_is_in_trouble() {
    planted(Status::Warn, "nic.pcie", "fwupdmgr", |host| {
        let mut functions = host.pci.iter_mut();
        let function = functions.find(|one| one.address == "0002:01:00.0");
        function.unwrap().link.as_mut().unwrap().width = 2;
    });
    planted(Status::Warn, "nic.link", "sits well", |host| {
        host.port_mut("rocep1s0f0").rate = Some(100_000);
    });
    planted(
        Status::Warn,
        "nic.link",
        "sudo ethtool enp1s0f0np0",
        |host| {
            for (device, _) in functions(0) {
                host.port_mut(&device).rate = Some(100_000);
            }
        },
    );
    // A device of software is as fast as what it is made of.
    let mut hosts = pair();
    for device in &mut hosts[1].rdma {
        device.pci = None;
        device.ports[0].rate = Some(2_500);
    }
    let found = wrong(&hosts).into_iter();
    assert_eq!(found.filter(|one| one.id == "nic.link").count(), 0);
    planted(Status::Fail, "nic.files", "ib_uverbs", |host| {
        host.system.rdma_files = Some(false);
    });
    let contained = |host: &mut Host| {
        host.system.rdma_files = Some(false);
        host.system.container = Some("docker".to_owned());
    };
    planted(
        Status::Fail,
        "nic.files",
        "--device=/dev/infiniband",
        contained,
    );
    let mut host = testing::spark("spark-1", 1).host();
    host.rdma.clear();
    assert_eq!(ids(&wrong(&[host])), [(Status::Warn, "nic.driver")]);
}

#[test]
fn errors_are_put_against_what_arrived() {
    let count = |errors: u64, words: u64| {
        move |host: &mut Host| {
            let counters = &mut host.port_mut("rocep1s0f0").counters;
            counters.insert("out_of_sequence".to_owned(), errors);
            counters.insert("port_rcv_data".to_owned(), words);
        }
    };
    planted(Status::Warn, "nic.errors", "rdma_bw", count(7, 1 << 28));
    planted(Status::Warn, "nic.errors", "rdma_bw", count(1, 0));
    let mut hosts = pair();
    count(7, 1 << 40)(&mut hosts[1]);
    assert_eq!(wrong(&hosts), []);
    // A missing counter is not zero.
    planted(Status::Unknown, "nic.errors", "no counter", |host| {
        host.port_mut("rocep1s0f0").counters.clear();
    });
}

#[test]
fn a_clock_is_off() {
    let found = with_clocks(&pair(), &[Some((0.0, 0.0)), Some((-40.0, 0.3))]);
    assert_eq!(ids(&found), [(Status::Warn, "cluster.clock")]);
    assert_eq!(found[0].hosts, ["spark-2"]);
    assert_eq!(found[0].seen, "40.0 s behind this machine's clock (+-0.3)");
    // A host that was slow to answer: the clock may be right or not.
    let found = with_clocks(&pair(), &[Some((0.0, 0.0)), Some((8.0, 10.0))]);
    assert_eq!(ids(&found), [(Status::Unknown, "cluster.clock")]);
    let found = with_clocks(&pair(), &[Some((0.0, 0.0)), Some((18.0, 10.0))]);
    assert_eq!(ids(&found), [(Status::Warn, "cluster.clock")]);
}
