//! Programs that set their ranks themselves.

use spark_ccl::{Builder, Communicator, Error, RedOp};
use spark_ccl_testing::free_port;

use super::ranks::Watchdog;

/// Variables of a launcher that the program overrides.
fn launched_elsewhere() -> Builder {
    Communicator::builder()
        .set("RANK", "0")
        .set("WORLD_SIZE", "9")
        .set("MASTER_ADDR", "192.0.2.1")
        .set("MASTER_PORT", "1")
}

#[test]
fn what_the_program_says_wins() {
    let _watchdog = Watchdog::new();
    let port = free_port();
    let builder = launched_elsewhere().size(2).meet_at("127.0.0.1", port);
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let builder = builder.clone().rank(rank);
            scope.spawn(move || {
                let comm = builder.from_env().unwrap();
                assert_eq!((comm.rank(), comm.size()), (rank, 2));
                let mut sum = [rank as u64 + 5];
                comm.all_reduce_in_place(&mut sum, RedOp::Sum)
                    .run()
                    .unwrap();
                assert_eq!(sum, [11]);
                comm.finalize().unwrap();
            });
        }
    });
}

#[test]
fn a_rank_beyond_the_last_is_refused() {
    let error = launched_elsewhere().size(2).rank(2).from_env().unwrap_err();
    assert!(
        matches!(&error, Error::Launcher(text) if text == "rank 2 of 2 ranks: ranks are 0 to 1")
    );
}

#[test]
fn ranks_that_a_launcher_has_numbered_meet_by_its_numbers() {
    let launched = Communicator::builder()
        .set("PMI_RANK", "1")
        .set("PMI_SIZE", "4")
        .set("PMI_FD", "9");
    for builder in [launched.clone().rank(2), launched.size(2)] {
        let error = builder.from_env().unwrap_err();
        assert!(matches!(&error, Error::Launcher(text) if text.contains("meet_at")));
    }
}
