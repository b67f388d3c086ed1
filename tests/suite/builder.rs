//! Settings that the program makes by typed functions.

use std::time::Duration;

use spark_ccl::{
    Algorithm, AlgorithmChoice, Builder, Carrier, Communicator, DType, Error, Net, Operation, Path,
};
use spark_ccl_testing::free_port;

use super::ranks::{Watchdog, run_with};

/// The algorithm of an `all_reduce` of registered memory, and the carrier to the other rank.
fn choices(builder: &Builder) -> (Algorithm, Carrier) {
    let result = run_with(builder, 2, |comm| {
        let explained = comm.explain(Operation::AllReduce, DType::F32, 1 << 20, true);
        let carrier = comm.links()[1 - comm.rank()].carrier;
        (explained.unwrap().algorithm, carrier)
    });
    assert_eq!(result[0], result[1]);
    result[0]
}

fn refusal(builder: &Builder) -> String {
    let error = builder.local(1).unwrap_err();
    assert!(matches!(error, Error::Config(_)), "{error:?}");
    error.to_string()
}

#[test]
fn rdma_that_cannot_be_had_names_the_rank_and_no_link_to_itself() {
    let library = "/nowhere/libibverbs.so.1";
    let builder = Communicator::builder()
        .shared_memory(false)
        .set("SPARK_CCL_NET", "rdma")
        .set("SPARK_CCL_IBVERBS_LIBRARY", library);
    let error = builder.local(2).unwrap_err().to_string();
    assert!(error.starts_with("setting up RDMA: rank 0 ("), "{error}");
    assert!(
        error.contains(") has no port that can be used ("),
        "{error}"
    );
    assert!(error.contains(library), "{error}");
}

#[test]
fn each_setting_takes_effect() {
    let builder = Communicator::builder;
    let (one_sided, memory) = (Algorithm::OneSided, Carrier::SharedMemory);
    assert_eq!(choices(&builder()), (one_sided, memory));
    let ring = builder().algorithms(Algorithm::Ring);
    assert_eq!(choices(&ring), (Algorithm::Ring, memory));
    let but: AlgorithmChoice = "^one-sided,ring".parse().unwrap();
    let (algorithm, _) = choices(&builder().algorithms(but));
    assert!(![one_sided, Algorithm::Ring].contains(&algorithm));
    let (algorithm, _) = choices(&builder().path(Path::Safe));
    assert_ne!(algorithm, one_sided);
    let (_, carrier) = choices(&builder().shared_memory(false).network(Net::Tcp));
    assert_eq!(carrier, Carrier::Tcp);
    let addresses = builder().interfaces("=lo").unique_id().unwrap().addresses();
    assert!(addresses.iter().all(|address| address.ip().is_loopback()));
}

#[test]
fn the_last_call_wins_by_whichever_method() {
    let builder = Communicator::builder;
    let ring = builder()
        .set("SPARK_CCL_ALGO", "no such thing")
        .algorithms(Algorithm::Ring);
    assert_eq!(choices(&ring).0, Algorithm::Ring);
    let direct = ring.set("SPARK_CCL_ALGO", "direct");
    assert_eq!(choices(&direct).0, Algorithm::Direct);
    let memory = builder()
        .set("NCCL_SHM_DISABLE", "1")
        .shared_memory(false)
        .shared_memory(true);
    assert_eq!(choices(&memory).1, Carrier::SharedMemory);
}

#[test]
fn values_that_are_not_allowed_are_errors() {
    let builder = Communicator::builder;
    for (timeout, name) in [
        (
            builder().operation_timeout(Duration::ZERO),
            "SPARK_CCL_TIMEOUT",
        ),
        (
            builder().init_timeout(Duration::ZERO),
            "SPARK_CCL_INIT_TIMEOUT",
        ),
    ] {
        let text = refusal(&timeout);
        let expected = format!(
            "{name}=\"0\" (from the program) is not valid: expected a positive number of seconds"
        );
        assert_eq!(text, expected);
    }
    let text = refusal(&builder().secret("hunter2"));
    assert!(
        text.contains("16 to 4096") && !text.contains("hunter2"),
        "{text}"
    );
    let error = builder().interfaces("=none7").unique_id().unwrap_err();
    let text = error.to_string();
    assert!(text.contains("SPARK_CCL_SOCKET_IFNAME==none7"), "{text}");
}

#[test]
fn values_that_exclude_each_other_are_an_error_that_names_them() {
    let builder = Communicator::builder()
        .path(Path::ZeroCopy)
        .shared_memory(false);
    assert!(builder.local(1).is_ok());
    let text = refusal(&builder.network(Net::Tcp));
    for part in [
        "SPARK_CCL_PATH=zero-copy (from the program)",
        "SPARK_CCL_SHM=false",
        "SPARK_CCL_NET=tcp",
        "needs shared memory or RDMA",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

/// The outcome of two ranks with these secrets.
fn meet(secrets: [&str; 2]) -> [Result<(), Error>; 2] {
    let _watchdog = Watchdog::new();
    let port = free_port();
    let rank = |rank: usize| {
        let builder = Communicator::builder()
            .init_timeout(Duration::from_secs(5))
            .secret(secrets[rank])
            .rank(rank)
            .size(2)
            .meet_at("127.0.0.1", port);
        builder.from_env()?.finalize()
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| rank(1));
        [rank(0), other.join().unwrap()]
    })
}

#[test]
fn a_secret_admits_who_has_the_same() {
    let secret = "swordfish-swordfish";
    for result in meet([secret, &format!(" {secret}\n")]) {
        result.unwrap();
    }
    for result in meet([secret, "hunter2-hunter2-hunter2"]) {
        let text = result.unwrap_err().to_string();
        assert!(
            text.contains("secret") && !text.contains("swordfish"),
            "{text}"
        );
    }
}
