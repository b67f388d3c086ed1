//! Tests with NVIDIA's libraries, as far as they work without a GPU. `tests/nccl.sh` fetches the
//! oldest and the newest supported version, and lists their folders in `SPARK_CCL_TEST_NCCL`,
//! oldest first.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::HashSet;
use std::env;

use spark_ccl_nccl::{Code, Communicator, Config, Error, Library, Version};
use spark_ccl_testing::{Need, has};

/// The libraries; empty if they have not been fetched.
fn libraries() -> Vec<Library> {
    if !has(Need::Nccl) {
        return Vec::new();
    }
    env::split_paths(&env::var_os("SPARK_CCL_TEST_NCCL").unwrap())
        // SAFETY: `SPARK_CCL_TEST_NCCL` has the folders into which a script fetched NVIDIA's
        // libraries, whose initialisers any process may run.
        .map(|folder| unsafe { Library::open_at(&folder) }.unwrap())
        .collect()
}

#[test]
fn functions_are_there_from_their_version_on() {
    for library in libraries() {
        println!("{library:?}");
        let folder = library.path().parent().unwrap();
        let named = folder.file_name().unwrap().to_str().unwrap();
        assert_eq!(library.version().to_string(), named);
        assert!(library.version() >= Version::OLDEST);
        for (function, since) in library.missing() {
            println!("  {function} is missing; it came with {since}");
            assert!(library.version() < since, "{function}");
        }
    }
    if let Some(newest) = libraries().last() {
        assert_eq!(newest.missing().count(), 0);
    }
}

#[test]
fn every_result_has_a_text() {
    for library in libraries() {
        let known = [
            Code::SUCCESS,
            Code::CUDA,
            Code::SYSTEM,
            Code::INTERNAL,
            Code::INVALID_ARGUMENT,
            Code::INVALID_USAGE,
            Code::REMOTE,
            Code::IN_PROGRESS,
        ];
        let texts: HashSet<_> = known.map(|code| library.error_text(code)).into();
        println!("{texts:?}");
        assert_eq!(texts.len(), known.len());
        assert!(texts.iter().all(|text| text.len() > 5));
        assert_eq!(library.error_text(Code(77)), "unknown result code");
    }
}

#[test]
fn a_group_may_be_empty() {
    for library in libraries() {
        let nested = library.group(|| library.group(|| Ok::<_, Error>(1)));
        assert_eq!(nested.unwrap(), 1);
    }
}

#[test]
fn without_a_gpu_nothing_can_be_made() {
    if !has(Need::NoGpus) {
        return;
    }
    for library in libraries() {
        let id = library.unique_id().unwrap();
        assert_ne!(id.as_bytes(), &[0; 128]);
        let blocking = Config::default();
        let other = Config {
            blocking: false,
            net: Some("Socket".into()),
            ..Config::default()
        };
        for config in [blocking, other] {
            let error = Communicator::init_rank(library, 1, id, 0, &config).unwrap_err();
            println!("{error}");
            assert_eq!(error.code(), Some(Code::CUDA), "{error}");
            let named = "ncclCommInitRankConfig on rank 0";
            assert!(error.to_string().contains(named), "{error}");
        }
    }
}
