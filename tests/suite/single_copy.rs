//! Messages that are read straight out of the sender's memory, until the kernel does not allow that any more.

use crate::processes::{alone, assert_all_ok, some_time, world};
use crate::ranks::run_with;
use spark_ccl::{Communicator, DType};

const SHM: (&str, &str) = ("SPARK_CCL_SHM", "1");
const ALWAYS: (&str, &str) = ("SPARK_CCL_SINGLE_COPY", "1");
/// What moves messages that are long enough to be read where they lie.
const CALLS: [&str; 4] = [
    "call f32 all_to_all 400000",
    "call f32 all_gather 100000",
    "call f32 broadcast 1 1000000",
    "call i32 all_reduce sum 300000",
];

#[test]
fn a_rank_that_may_not_be_read_any_more_sends_on() {
    let _alone = alone();
    for _ in 0..3 {
        let mut ranks = world(3, &[SHM, ALWAYS]);
        // A superuser may read anything.
        assert_all_ok(&mut ranks, "without-leave-to-trace");
        for call in CALLS {
            assert_all_ok(&mut ranks, call);
        }
        let moment = some_time(0..100).as_millis();
        assert_eq!(ranks[1].ask(&format!("undumpable-after {moment}")), "ok");
        for _ in 0..10 {
            for call in CALLS {
                assert_all_ok(&mut ranks, call);
            }
        }
        assert_eq!(ranks[1].ask("undumpable-after 0"), "ok");
        ranks[1].order("call f32 send 2 1000000");
        assert_eq!(ranks[2].ask("call f32 recv 1 1000000"), "ok");
        assert_eq!(ranks[1].hear(), "ok");
        assert_all_ok(&mut ranks, "finalize");
    }
}

/// A probe looks at a message, and takes nothing of it.
#[test]
fn what_was_probed_is_read_where_it_lies() {
    let builder = [SHM, ALWAYS]
        .into_iter()
        .fold(Communicator::builder(), |all, (name, value)| {
            all.set(name, value)
        });
    let sent: Vec<f64> = (0..300_000).map(f64::from).collect();
    run_with(&builder, 2, |comm| {
        for count in [0, 1, 3000, 300_000, 20_000, 300_000] {
            if comm.rank() == 0 {
                comm.send(&sent[..count], 1).run().unwrap();
                continue;
            }
            let found = loop {
                if let Some(found) = comm.probe(0).unwrap() {
                    break found;
                }
            };
            assert_eq!(found, (DType::F64, count));
            let mut seen = vec![0.0; count];
            comm.recv(&mut seen[..], 0).run().unwrap();
            assert!(seen == sent[..count], "{count}");
        }
    });
}
