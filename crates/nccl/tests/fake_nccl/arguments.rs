//! Arguments refused before NCCL is called.

use spark_ccl_nccl::{
    ArgumentError, Communicator, Config, CtaPolicy, DType, Error, RedOp, Stream, WindowKind,
};

use crate::{Fake, floats, slice, stream};

/// The argument error; checks that NCCL was not called.
fn refused(fake: &Fake, result: Result<(), Error>) -> ArgumentError {
    assert_eq!(fake.journal(), [""; 0]);
    match result.unwrap_err() {
        Error::Argument {
            rank: Some(1),
            error,
            ..
        } => error,
        other => panic!("another error: {other}"),
    }
}

#[test]
fn lengths() {
    let fake = Fake::new();
    let comm = fake.rank(&Config::default());
    let (eight, two) = (floats(0x1000, 8), floats(0x2000, 2));
    let length = |buffer, expected, seen| ArgumentError::Length {
        buffer,
        expected,
        seen,
    };
    let refused = |result| refused(&fake, result);
    assert_eq!(
        refused(comm.all_reduce(eight, two, RedOp::Sum, stream())),
        length("receive", 8, 2)
    );
    assert_eq!(
        refused(comm.reduce(eight, Some(two), RedOp::Sum, 1, stream())),
        length("receive", 8, 2)
    );
    assert_eq!(
        refused(comm.broadcast(Some(eight), two, 1, stream())),
        length("send", 2, 8)
    );
    assert_eq!(
        refused(comm.all_gather(eight, two, stream())),
        ArgumentError::Shares {
            buffer: "receive",
            seen: 2,
            ranks: 4
        }
    );
    assert_eq!(
        refused(comm.all_gather(eight, eight, stream())),
        length("send", 2, 8)
    );
    assert_eq!(
        refused(comm.reduce_scatter(eight, eight, RedOp::Max, stream())),
        length("receive", 2, 8)
    );
    assert_eq!(
        refused(comm.all_to_all(eight, two, stream())),
        length("receive", 8, 2)
    );
    assert_eq!(
        refused(comm.gather(eight, Some(floats(0x2000, 8)), 1, stream())),
        length("send", 2, 8)
    );
    assert_eq!(
        refused(comm.scatter(Some(eight), floats(0x2000, 3), 1, stream())),
        length("receive", 2, 3)
    );
}

#[test]
fn devices_types_and_ranks() {
    let fake = Fake::new();
    let comm = fake.rank(&Config::default());
    let refused = |result| refused(&fake, result);
    let (send, recv) = (floats(0x1000, 8), floats(0x2000, 8));
    let device = |what, seen| ArgumentError::Device {
        what,
        expected: 1,
        seen,
    };
    assert_eq!(
        refused(comm.all_reduce(slice(0x1000, 8, DType::F32, 0), recv, RedOp::Sum, stream())),
        device("send", 0)
    );
    assert_eq!(
        refused(comm.all_reduce(send, recv, RedOp::Sum, Stream::null(2))),
        device("stream", 2)
    );
    let ints = slice(0x2000, 8, DType::I32, 1);
    assert_eq!(
        refused(comm.all_reduce(send, ints, RedOp::Sum, stream())),
        ArgumentError::DType {
            what: "receive",
            expected: DType::F32,
            seen: DType::I32
        }
    );
    let rank = |what| ArgumentError::Rank {
        what,
        seen: 4,
        ranks: 4,
    };
    assert_eq!(
        refused(comm.broadcast(Some(send), recv, 4, stream())),
        rank("root")
    );
    assert_eq!(refused(comm.send(send, 4, stream())), rank("peer"));
    assert_eq!(refused(comm.recv(send, 4, stream())), rank("peer"));
    assert_eq!(
        refused(comm.gather(floats(0x1000, 2), None, 1, stream())),
        ArgumentError::Missing {
            buffer: "receive",
            root: 1
        }
    );
    assert_eq!(
        refused(
            comm.register_window(floats(0x1004, 2), WindowKind::Default)
                .map(drop)
        ),
        ArgumentError::Alignment {
            address: 0x1004,
            needs: 4096
        }
    );
}

#[test]
fn overlaps() {
    let fake = Fake::new();
    let comm = fake.rank(&Config::default());
    let all = floats(0x1000, 8);
    let part = |offset, len| all.part(offset, len).unwrap();
    let overlap = |result| match refused(&fake, result) {
        ArgumentError::Overlap { in_place } => in_place,
        other => panic!("another error: {other}"),
    };
    let [low, high] = [part(0, 5), part(3, 5)];
    assert_eq!(
        overlap(comm.all_reduce(low, high, RedOp::Sum, stream())),
        Some("the same")
    );
    assert!(overlap(comm.all_gather(part(0, 2), all, stream())).is_some());
    assert!(overlap(comm.reduce_scatter(all, part(4, 2), RedOp::Sum, stream())).is_some());
    assert_eq!(overlap(comm.all_to_all(all, all, stream())), None);
    // Calls in place.
    comm.all_reduce(all, all, RedOp::Sum, stream()).unwrap();
    comm.all_gather(part(2, 2), all, stream()).unwrap();
    comm.reduce_scatter(all, part(2, 2), RedOp::Sum, stream())
        .unwrap();
    comm.scatter(Some(all), part(2, 2), 1, stream()).unwrap();
    comm.gather(part(2, 2), Some(all), 1, stream()).unwrap();
    assert!(all.part(3, 6).is_none());
}

#[test]
fn objects_of_other_communicators_are_refused() {
    let fake = Fake::new();
    let [comm, other] = [(); 2].map(|()| fake.rank(&Config::default()));
    let (send, recv) = (floats(0x1000, 8), floats(0x2000, 8));
    let op = other.pre_mul_sum(2.0_f32).unwrap();
    let registration = other.register(send).unwrap();
    let window = other.register_window(send, WindowKind::Symmetric).unwrap();
    fake.journal();
    let what = |result| match refused(&fake, result) {
        ArgumentError::OtherCommunicator { what } => what,
        other => panic!("another error: {other}"),
    };
    let sum = RedOp::PreMulSum(&op);
    assert_eq!(
        what(comm.all_reduce(send, recv, sum, stream())),
        "reduction"
    );
    assert_eq!(what(comm.deregister(registration)), "registration");
    assert_eq!(what(comm.deregister_window(window)), "window");
    assert_eq!(what(comm.destroy_op(op)), "reduction");

    let op = comm.pre_mul_sum(2.0_f32).unwrap();
    fake.journal();
    let (send, recv) = (
        slice(0x1000, 8, DType::F64, 1),
        slice(0x2000, 8, DType::F64, 1),
    );
    assert_eq!(
        refused(
            &fake,
            comm.all_reduce(send, recv, RedOp::PreMulSum(&op), stream())
        ),
        ArgumentError::DType {
            what: "reduction",
            expected: DType::F64,
            seen: DType::F32
        }
    );
}

#[test]
fn arguments_are_checked_before_creation() {
    let fake = Fake::new();
    let id = fake.library.unique_id().unwrap();
    let init = |size, rank, config: &Config| {
        let made = Communicator::init_rank(fake.library, size, id, rank, config);
        let text = made.unwrap_err().to_string();
        assert_eq!(fake.journal(), [""; 0]);
        text
    };
    let default = Config::default();
    assert!(init(2, 2, &default).contains("the rank is 2, but there are 2 ranks"));
    assert!(init(0, 0, &default).contains("the number of ranks is 0"));
    let config = Config {
        name: Some("a\0b".into()),
        ..default.clone()
    };
    assert!(init(2, 0, &config).contains("Config::name has a zero byte"));
    let mut config = Config {
        min_ctas: Some(u32::MAX),
        ..default
    };
    let said = init(2, 0, &config);
    assert!(
        said.contains("Config::min_ctas needs Config::max_ctas as well"),
        "{said}"
    );
    config.max_ctas = config.min_ctas;
    assert!(init(2, 0, &config).contains("Config::min_ctas is 4294967295"));
}

#[test]
fn an_old_library_refuses_unsupported_settings() {
    let fake = Fake::of(21_803);
    let id = fake.library.unique_id().unwrap();
    let configs = [
        Config {
            name: Some("gradients".into()),
            ..Config::default()
        },
        Config {
            cta_policy: Some(CtaPolicy::Zero),
            ..Config::default()
        },
        Config {
            traffic_class: Some(3),
            ..Config::default()
        },
    ];
    for config in configs {
        let made = Communicator::init_rank(fake.library, 2, id, 0, &config);
        assert!(made.unwrap_err().is_unsupported());
    }
    let comm = fake.rank(&Config::default());
    let small = slice(0x1000, 8, DType::F8E4M3, 1);
    let error = comm
        .all_reduce(small, small, RedOp::Sum, stream())
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "f8e4m3 is not in NCCL 2.18.3; it needs 2.24.3 or newer"
    );
    let error = comm.pre_mul_sum_of(DType::F8E5M2, [0; 8]).unwrap_err();
    assert!(error.to_string().starts_with("f8e5m2 is not in NCCL"));
    assert!(comm.memory_stats().unwrap_err().is_unsupported());
    assert!(comm.revoke().unwrap_err().is_unsupported());
    assert!(
        comm.register(floats(0x1000, 1))
            .unwrap_err()
            .is_unsupported()
    );
    assert_eq!(fake.journal(), [""; 0]);
}
