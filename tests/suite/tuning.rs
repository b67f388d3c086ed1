//! Measured choices of algorithms: rank 0's count, and bad ones do no harm.

use std::path::{Path, PathBuf};

use spark_ccl::{Layout, Links, Operation};
use spark_ccl_config::{Tuning, TuningEntry, TuningStep};

use crate::processes::{Rank, all, assert_all_ok, join, place};

/// A file that names `algorithm` as the fastest for `all_reduce` between two ranks.
fn file(name: &str, algorithm: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut tuning = Tuning::default();
    tuning.put(TuningEntry {
        layout: Layout {
            links: Links::SharedMemory,
            ranks: 2,
            hosts: 1,
        },
        collective: Operation::AllReduce,
        steps: vec![TuningStep {
            up_to: 64,
            algorithm: algorithm.parse().unwrap(),
        }],
    });
    tuning.save(&path).unwrap();
    path
}

/// Two ranks, with a file each.
fn pair(files: [&Path; 2]) -> Vec<Rank> {
    let start = |file: &Path| Rank::start(&[("SPARK_CCL_TUNING", file.to_str().unwrap())]);
    let mut ranks: Vec<Rank> = files.into_iter().map(start).collect();
    join(&mut ranks);
    ranks
}

fn assert_chosen(ranks: &mut [Rank], words: [&str; 2]) {
    for answer in all(ranks, "explain ordinary 1000") {
        for word in words {
            assert!(answer.contains(word), "{answer}");
        }
    }
    for count in [1, 1000, 100_000] {
        assert_all_ok(ranks, &format!("call f32 all_reduce sum {count}"));
    }
    assert_all_ok(ranks, "finalize");
}

#[test]
fn what_rank_0_has_measured_counts() {
    let _place = place();
    let trees = file("trees.json", "double-tree");
    let halves = file("halves.json", "halving-doubling");
    let measured = "measured by spark-perf tune";
    assert_chosen(&mut pair([&trees, &halves]), ["double-tree (", measured]);
    assert_chosen(
        &mut pair([&halves, &trees]),
        ["halving-doubling (", measured],
    );
    let off = Path::new("off");
    assert_chosen(&mut pair([&halves, off]), ["halving-doubling (", measured]);
    assert_chosen(&mut pair([off, &halves]), ["direct (", "few ranks"]);
}

#[test]
fn files_that_make_no_sense_change_nothing() {
    let _place = place();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    // Cargo makes this folder where it builds, which may be elsewhere.
    std::fs::create_dir_all(folder).unwrap();
    let bad = folder.join("bad.json");
    std::fs::write(&bad, "{\"version\": 1, \"entries\": 3}").unwrap();
    for file in [
        &bad,
        &folder.join("missing.json"),
        folder,
        Path::new("/dev/zero"),
    ] {
        assert_chosen(&mut pair([file, file]), ["direct (", "few ranks"]);
    }
}
