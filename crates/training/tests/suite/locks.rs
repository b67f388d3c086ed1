//! One run saves into a folder: another is refused, and this one goes on whatever happens to its
//! lock.

use std::sync::Barrier;

use spark_ccl::Communicator;
use spark_ccl_testing::Sleeper;
use spark_ccl_training::{AdamW, Checkpoints, DataParallel, Sharing};

use crate::checkpoints::begun;
use crate::data_parallel::{options, parameters};
use crate::ranks::{error_of_all, ranks};

#[test]
fn a_second_run_does_not_save_into_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let results = ranks(2, |comm| {
        let (training, _) = begun(comm, 1);
        let first = Checkpoints::new(folder.path());
        training.save(comm, &first, None).unwrap();
        training.save(comm, &first.clone(), None).unwrap();
        let second = Checkpoints::new(folder.path());
        let refused = training.save(comm, &second, None).map(drop);
        drop(first);
        training.save(comm, &second, None).unwrap();
        refused
    });
    let text = error_of_all(&results);
    let owner = format!("process {} on ", std::process::id());
    assert!(text.contains(".lock") && text.contains(&owner), "{text}");
    assert!(text.contains("saves into this folder"), "{text}");
}

/// Rank 0 is left behind with its lock, as if it hung. The others go on, now with another rank 0.
#[test]
fn a_run_goes_on_when_its_rank_with_the_lock_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let stages = Barrier::new(3);
    let results = ranks(3, |comm| {
        let (training, _) = begun(comm, 1);
        let store = Checkpoints::new(folder.path());
        training.save(comm, &store, None).unwrap();
        if comm.rank() == 0 {
            stages.wait();
            drop(store);
            stages.wait();
            return None;
        }
        let rest = comm.shrink(&[0]).unwrap();
        let (mut own, adamw) = (parameters(), AdamW::new(0.05));
        let options = options(Sharing::Sharded);
        let resumed = DataParallel::resume(&rest, &mut own, adamw, options, &store, None);
        let training = resumed.unwrap().unwrap();
        let other = Checkpoints::new(folder.path());
        // Nothing panics here, where rank 0 would wait for ever.
        let first = training.save(&rest, &store, None);
        let before = training.save(&rest, &other, None).map(drop);
        stages.wait();
        stages.wait();
        first.unwrap();
        // The lock is free, and this run takes it.
        training.save(&rest, &store, None).unwrap();
        let after = training.save(&rest, &other, None).map(drop);
        rest.finalize().unwrap();
        Some([before, after])
    });
    let mut results = results.into_iter().flatten();
    let [first, second] = [results.next().unwrap(), results.next().unwrap()];
    for (one, other) in first.into_iter().zip(second) {
        let text = error_of_all(&[one, other]);
        assert!(text.contains("saves into this folder"), "{text}");
    }
}

#[test]
fn a_folder_that_was_removed_is_locked_anew() {
    let folder = tempfile::tempdir().unwrap();
    let comm = Communicator::local(1).unwrap().remove(0);
    let (training, _) = begun(&comm, 1);
    let store = Checkpoints::new(folder.path().join("checkpoints"));
    let other = Checkpoints::new(store.folder());
    training.save(&comm, &store, None).unwrap();
    std::fs::remove_dir_all(store.folder()).unwrap();
    training.save(&comm, &store, None).unwrap();
    training.save(&comm, &other, None).unwrap_err();
    // Removing the lock's file gives the folder away: the error says when to do that.
    std::fs::remove_file(store.folder().join(".lock")).unwrap();
    training.save(&comm, &other, None).unwrap();
    let error = training.save(&comm, &store, None).unwrap_err().to_string();
    assert!(error.contains("remove this file"), "{error}");
}

#[test]
fn a_forked_child_does_not_keep_the_lock() {
    let folder = tempfile::tempdir().unwrap();
    let comm = Communicator::local(1).unwrap().remove(0);
    let (training, _) = begun(&comm, 1);
    let store = Checkpoints::new(folder.path());
    training.save(&comm, &store, None).unwrap();
    let _child = Sleeper::fork();
    drop(store);
    let other = Checkpoints::new(folder.path());
    training.save(&comm, &other, None).unwrap();
}
