//! The calls made to NCCL, with their arguments.

use spark_ccl_nccl::{
    Communicator, Config, CtaPolicy, DType, Progress, RedOp, ShrinkMode, Stream, WindowKind,
};

use crate::{Fake, floats, slice, stream};

#[test]
fn collectives() {
    let fake = Fake::new();
    let comm = fake.rank(&Config::default());
    let (a, b) = (floats(0x1000, 8), floats(0x2000, 8));
    let (two, four) = (floats(0x3000, 2), slice(0x4000, 4, DType::Bf16, 1));
    comm.all_reduce(a, b, RedOp::Avg, stream()).unwrap();
    comm.all_reduce(four, four, RedOp::Prod, Stream::null(1))
        .unwrap();
    comm.reduce(a, None, RedOp::Min, 0, stream()).unwrap();
    comm.reduce(a, Some(b), RedOp::Max, 1, stream()).unwrap();
    comm.broadcast(None, b, 2, stream()).unwrap();
    comm.broadcast(Some(b), b, 2, stream()).unwrap();
    comm.broadcast(Some(a), b, 1, stream()).unwrap();
    comm.all_gather(two, b, stream()).unwrap();
    comm.reduce_scatter(a, two, RedOp::Sum, stream()).unwrap();
    comm.all_to_all(a, b, stream()).unwrap();
    comm.gather(two, None, 3, stream()).unwrap();
    comm.scatter(None, two, 3, stream()).unwrap();
    comm.send(a, 0, stream()).unwrap();
    comm.recv(b, 3, stream()).unwrap();
    assert_eq!(
        fake.journal(),
        [
            "ncclAllReduce 0x1000 0x2000 8 type 7 op 4 #1 stream 0x99",
            "ncclAllReduce 0x4000 0x4000 4 type 9 op 1 #1 stream (nil)",
            "ncclReduce 0x1000 (nil) 8 type 7 op 3 root 0 #1 stream 0x99",
            "ncclReduce 0x1000 0x2000 8 type 7 op 2 root 1 #1 stream 0x99",
            "ncclBroadcast (nil) 0x2000 8 type 7 root 2 #1 stream 0x99",
            "ncclBroadcast 0x2000 0x2000 8 type 7 root 2 #1 stream 0x99",
            "ncclBroadcast 0x1000 0x2000 8 type 7 root 1 #1 stream 0x99",
            "ncclAllGather 0x3000 0x2000 2 type 7 #1 stream 0x99",
            "ncclReduceScatter 0x1000 0x3000 2 type 7 op 0 #1 stream 0x99",
            "ncclAlltoAll 0x1000 0x2000 2 type 7 #1 stream 0x99",
            "ncclGather 0x3000 (nil) 2 type 7 root 3 #1 stream 0x99",
            "ncclScatter (nil) 0x3000 2 type 7 root 3 #1 stream 0x99",
            "ncclSend 0x1000 8 type 7 peer 0 #1 stream 0x99",
            "ncclRecv 0x2000 8 type 7 peer 3 #1 stream 0x99",
        ]
    );
}

#[test]
fn any_library_moves_8_bit_floats_as_bytes() {
    for (version, dtype) in [(21_803, DType::F8E4M3), (23_007, DType::F8E5M2)] {
        let fake = Fake::of(version);
        let comm = fake.rank(&Config::default());
        let [a, b] = [0x1000, 0x2000].map(|at| slice(at, 8, dtype, 1));
        let two = slice(0x3000, 2, dtype, 1);
        comm.broadcast(Some(a), b, 1, stream()).unwrap();
        comm.all_gather(two, b, stream()).unwrap();
        comm.all_to_all(a, b, stream()).unwrap();
        comm.gather(two, Some(b), 1, stream()).unwrap();
        comm.scatter(Some(a), two, 1, stream()).unwrap();
        comm.send(a, 0, stream()).unwrap();
        comm.recv(b, 0, stream()).unwrap();
        let journal = fake.journal();
        let moves = journal.iter().filter(|line| !line.contains("Group"));
        assert!(moves.clone().count() >= 7, "{journal:?}");
        assert!(
            moves.clone().all(|line| line.contains(" type 1 ")),
            "{journal:?}"
        );
    }
}

#[test]
fn old_libraries_send_and_receive_instead() {
    let fake = Fake::of(22_707);
    let comm = fake.rank(&Config::default());
    let (a, b, one) = (floats(0x1000, 4), floats(0x2000, 4), floats(0x3000, 1));
    let calls = |call: &dyn Fn()| {
        call();
        let journal = fake.journal();
        assert_eq!(journal.first().unwrap(), "ncclGroupStart");
        assert_eq!(journal.last().unwrap(), "ncclGroupEnd");
        let inner = &journal[1..journal.len() - 1];
        let essence = |line: &String| line.replace(" type 7", "").replace(" #1 stream 0x99", "");
        inner.iter().map(essence).collect::<Vec<_>>()
    };
    let parts = |call: &str, buffer: &str| {
        let part = |peer: usize| format!("{call} {buffer}{:x} 1 peer {peer}", 4 * peer);
        (0..4).map(part).collect::<Vec<_>>()
    };
    let (sends, receives) = (parts("ncclSend", "0x100"), parts("ncclRecv", "0x200"));

    let all = calls(&|| comm.all_to_all(a, b, stream()).unwrap());
    assert_eq!(all, [sends.clone(), receives.clone()].concat());
    let own = vec!["ncclSend 0x3000 1 peer 1".to_owned()];
    let gathered = calls(&|| comm.gather(one, Some(b), 1, stream()).unwrap());
    assert_eq!(gathered, [own, receives].concat());
    let given = calls(&|| comm.gather(one, None, 2, stream()).unwrap());
    assert_eq!(given, ["ncclSend 0x3000 1 peer 2"]);
    let own = vec!["ncclRecv 0x3000 1 peer 1".to_owned()];
    let scattered = calls(&|| comm.scatter(Some(a), one, 1, stream()).unwrap());
    assert_eq!(scattered, [sends, own].concat());
    let taken = calls(&|| comm.scatter(None, one, 2, stream()).unwrap());
    assert_eq!(taken, ["ncclRecv 0x3000 1 peer 2"]);
}

#[test]
fn communicators_come_with_their_configuration() {
    let fake = Fake::new();
    let id = fake.library.unique_id().unwrap();
    assert_eq!(format!("{id:?}"), "UniqueId(..)");
    let config = Config {
        blocking: false,
        name: Some("gradients".into()),
        min_ctas: Some(2),
        max_ctas: Some(16),
        cta_policy: Some(CtaPolicy::Zero),
        net: Some("IB".into()),
        ..Config::default()
    };
    let comm = Communicator::init_scalable(fake.library, 3, &[id, id], 2, &config).unwrap();
    assert_eq!((comm.rank().unwrap(), comm.size().unwrap()), (2, 3));
    let unset = i32::MIN;
    assert_eq!(
        fake.journal(),
        [
            "ncclCommInitRankScalable rank 2 of 3 ids 2 last 1".to_owned(),
            format!(
                "  config 0xcafebeef 23004 blocking 0 cga {unset} ctas 2 16 net IB share {unset} \
             class {unset} name gradients policy 2"
            ),
        ]
    );

    let all = Communicator::init_all(fake.library, &[5, 3]).unwrap();
    let devices: Vec<_> = all.iter().map(|comm| comm.device().unwrap()).collect();
    assert_eq!((devices, all[1].rank().unwrap()), (vec![5, 3], 1));
}

#[test]
fn communicators_come_from_others() {
    let fake = Fake::new();
    let comm = fake.rank(&Config::default());
    let half = comm.split(Some(7), 1, None).unwrap().unwrap();
    assert_eq!(
        (
            half.rank().unwrap(),
            half.size().unwrap(),
            half.device().unwrap()
        ),
        (1, 2, 1)
    );
    assert!(comm.split(None, 0, None).unwrap().is_none());
    let small = comm.shrink(&[3, 0], ShrinkMode::Default, None).unwrap();
    assert_eq!(small.size().unwrap(), 2);
    let id = comm.growth_id().unwrap();
    let large = comm.grow(6, Some(id), None).unwrap();
    assert_eq!((large.rank().unwrap(), large.size().unwrap()), (1, 6));
    comm.grow(6, None, None).unwrap();
    fake.library.unique_id().unwrap();
    let joined = Communicator::init_grown(fake.library, 6, id, 5, &Config::default()).unwrap();
    assert_eq!(joined.rank().unwrap(), 5);
    let journal = fake.journal();
    let calls: Vec<_> = journal
        .iter()
        .filter(|line| !line.starts_with("  config"))
        .collect();
    assert_eq!(
        calls,
        [
            "ncclCommSplit #1 color 7 key 1",
            "ncclCommSplit #1 color -1 key 0",
            "ncclCommShrink #1 without 2 first 3 flags 0",
            "ncclCommGetUniqueId #1",
            "ncclCommGrow #1 to 6 id 1 rank -1",
            "ncclCommGrow #1 to 6 id -1 rank -1",
            "ncclCommAbort #1",
            "ncclCommGrow #-1 to 6 id 1 rank 5",
        ]
    );
    assert!(comm.grow(4, None, None).is_err());
    assert!(comm.shrink(&[4], ShrinkMode::Default, None).is_err());
    assert!(comm.split(Some(u32::MAX), 0, None).is_err());
}

#[test]
fn memory_and_reductions() {
    let fake = Fake::new();
    let comm = fake.rank(&Config::default());
    let memory = fake.library.allocate(4096).unwrap();
    let buffer = floats(memory.start() as usize, 1024);
    let registration = comm.register(buffer).unwrap();
    let window = comm.register_window(buffer, WindowKind::Symmetric).unwrap();
    assert!(window.is_used());
    let op = comm.pre_mul_sum(0.25_f32).unwrap();
    comm.all_reduce(buffer, buffer, RedOp::PreMulSum(&op), stream())
        .unwrap();
    // NCCL numbers the reductions made at run time consecutively.
    let second = comm.pre_mul_sum(1.0_f32).unwrap();
    comm.reduce(buffer, None, RedOp::PreMulSum(&second), 0, stream())
        .unwrap();
    comm.destroy_op(op).unwrap();
    comm.deregister_window(window).unwrap();
    comm.deregister(registration).unwrap();
    // SAFETY: the fake has not used the memory.
    unsafe { memory.free() }.unwrap();
    let stats = comm.memory_stats().unwrap();
    assert_eq!(
        (
            stats.total,
            stats.suspendable,
            stats.persistent,
            stats.suspended
        ),
        (4, 1, 3, true)
    );
    assert_eq!(comm.async_error().unwrap(), Progress::Done);
    assert_eq!(
        fake.journal()[..10],
        [
            "ncclMemAlloc 4096",
            "ncclCommRegister 0x7000 4096 #1",
            "ncclCommWindowRegister 0x7000 4096 flags 1 #1",
            "ncclRedOpCreatePreMulSum 0.25 type 7 residence 1 #1",
            "ncclAllReduce 0x7000 0x7000 1024 type 7 op 9 #1 stream 0x99",
            "ncclRedOpCreatePreMulSum 1 type 7 residence 1 #1",
            "ncclReduce 0x7000 (nil) 1024 type 7 op 14 root 0 #1 stream 0x99",
            "ncclRedOpDestroy 9 #1",
            "ncclCommWindowDeregister 0x61 #1",
            "ncclCommDeregister 0x51 #1",
        ]
    );
}
