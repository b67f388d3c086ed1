//! Checkpoints: read by any number of ranks, and refused if anything is wrong with them.

use std::path::{Path, PathBuf};

use spark_ccl::Communicator;
use spark_ccl_training::{
    AdamW, Checkpoints, DataParallel, Error, HostTensor, LastBatch, Options, Parameters, Sampler,
    Sgd, Sharing, Values, compare,
};

use crate::data_parallel::{assert_close, options, parameters, train};
use crate::ranks::{Broken, error_of_all, ranks};

type Resumed = Result<Option<(DataParallel<AdamW>, Sampler)>, Error>;

fn sampler() -> Sampler {
    Sampler::new(10, 4, 1, LastBatch::Padded).unwrap()
}

fn resume(
    comm: &Communicator,
    own: &mut impl Parameters,
    at: &Path,
    (sharing, mut sampler): (Sharing, Sampler),
) -> Resumed {
    let (store, optimizer, options) = (Checkpoints::new(at), AdamW::new(0.05), options(sharing));
    let sampler_of_it = Some(&mut sampler);
    let training = DataParallel::resume(comm, own, optimizer, options, &store, sampler_of_it)?;
    Ok(training.map(|training| (training, sampler)))
}

/// A folder with a checkpoint of step 3 by two ranks.
fn saved(sharing: Sharing) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let mut paths = ranks(2, |comm| {
        let mut own = parameters();
        let optimizer = AdamW::new(0.05);
        let mut training = DataParallel::new(comm, &mut own, optimizer, options(sharing)).unwrap();
        train(comm, &mut training, &mut own, 3);
        let mut sampler = sampler();
        sampler.next_batch(comm);
        let store = Checkpoints::new(folder.path());
        training.save(comm, &store, Some(&sampler)).unwrap()
    });
    assert_eq!(paths[0], paths[1]);
    (folder, paths.swap_remove(0))
}

/// Steps that changed nothing are among those before it.
#[test]
fn an_optimizer_goes_on_with_as_many_changes_as_it_has_made() {
    let folder = tempfile::tempdir().unwrap();
    ranks(2, |comm| {
        let (mut own, adamw) = (parameters(), AdamW::new(0.05));
        let options = Options {
            find_non_finite: true,
            ..options(Sharing::Sharded)
        };
        let mut training = DataParallel::new(comm, &mut own, adamw.clone(), options.clone());
        let training = training.as_mut().unwrap();
        for gradient in [f32::NAN, 1.0, f32::NAN] {
            training.ready(comm, 0, &[gradient; 7]).unwrap();
            let step = training.step(comm, &mut own);
            assert_eq!(step.is_err(), gradient.is_nan());
        }
        let store = Checkpoints::new(folder.path());
        training.save(comm, &store, None).unwrap();
        let mut read = parameters();
        let resumed = DataParallel::resume(comm, &mut read, adamw, options, &store, None);
        let mut resumed = resumed.unwrap().unwrap();
        assert_eq!((resumed.steps(), &read), (3, &own));
        for (training, own) in [(training, &mut own), (&mut resumed, &mut read)] {
            training.ready(comm, 0, &[2.0_f32; 7]).unwrap();
            training.step(comm, own).unwrap();
        }
        assert_eq!(read, own);
    });
}

#[test]
fn any_number_of_ranks_goes_on_where_others_were() {
    let mut whole = ranks(1, |comm| {
        let mut own = parameters();
        let optimizer = AdamW::new(0.05);
        let options = options(Sharing::Replicated);
        let mut training = DataParallel::new(comm, &mut own, optimizer, options).unwrap();
        train(comm, &mut training, &mut own, 6);
        own
    });
    let whole = whole.swap_remove(0);
    for before in [Sharing::Replicated, Sharing::Sharded] {
        let (folder, _) = saved(before);
        for (size, sharing) in [
            (1, Sharing::Replicated),
            (2, Sharing::Sharded),
            (3, Sharing::Sharded),
            (3, Sharing::Replicated),
        ] {
            ranks(size, |comm| {
                // Other parameters, which must not matter.
                let mut own = parameters();
                own[2].values.bytes_mut().fill(0);
                let resumed = resume(comm, &mut own, folder.path(), (sharing, sampler()));
                let (mut training, mut resumed) = resumed.unwrap().unwrap();
                assert_eq!(training.steps(), 3);
                let mut expected = sampler();
                expected.next_batch(comm);
                assert_eq!(resumed.next_batch(comm), expected.next_batch(comm));
                compare(comm, &own).unwrap();
                train(comm, &mut training, &mut own, 6);
                compare(comm, &own).unwrap();
                assert_close(&own, &whole);
            });
        }
    }
}

#[test]
fn without_a_checkpoint_there_is_nothing_to_go_on_from() {
    let folder = tempfile::tempdir().unwrap();
    let resumed = ranks(2, |comm| {
        let at = folder.path().join("none");
        resume(comm, &mut parameters(), &at, (Sharing::Sharded, sampler()))
            .unwrap()
            .is_none()
    });
    assert_eq!(resumed, [true, true]);
}

#[test]
fn old_checkpoints_and_unfinished_ones_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join(".writing-1")).unwrap();
    std::fs::write(folder.path().join(".writing-1/shard-0-of-2"), "half").unwrap();
    ranks(2, |comm| {
        let mut own = parameters();
        let optimizer = AdamW::new(0.05);
        let options = options(Sharing::Sharded);
        let mut training = DataParallel::new(comm, &mut own, optimizer, options).unwrap();
        let store = Checkpoints::new(folder.path()).keeping(2);
        let kind = (Sharing::Sharded, sampler());
        assert!(
            resume(comm, &mut parameters(), folder.path(), kind)
                .unwrap()
                .is_none()
        );
        for step in [1, 2, 3, 3] {
            train(comm, &mut training, &mut own, step);
            training.save(comm, &store, None).unwrap();
        }
    });
    let entries = std::fs::read_dir(folder.path()).unwrap();
    let mut names: Vec<_> = entries.map(|it| it.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, [".lock", "step-3-0", "step-3-1"]);
}

#[test]
fn a_run_that_begins_anew_does_not_save_among_later_steps() {
    let (folder, path) = saved(Sharing::Replicated);
    let results = ranks(2, |comm| {
        let mut own = parameters();
        let options = options(Sharing::Replicated);
        let mut training = DataParallel::new(comm, &mut own, AdamW::new(0.05), options).unwrap();
        train(comm, &mut training, &mut own, 1);
        let store = Checkpoints::new(folder.path()).keeping(1);
        training.save(comm, &store, None)
    });
    assert!(matches!(results[0], Err(Error::Checkpoint(_))));
    let text = error_of_all(&results);
    let file = path.display().to_string();
    assert!(
        text.contains(&file) && text.contains("only at step 1"),
        "{text}"
    );
    assert!(path.is_dir());
}

/// The error of all ranks for a checkpoint that was changed so, whose file it names. Nothing is
/// replaced.
fn refused(change: impl Fn(&Path), file: &str) -> String {
    let (folder, path) = saved(Sharing::Sharded);
    change(&path);
    let results = ranks(2, |comm| {
        let mut own = parameters();
        let kind = (Sharing::Replicated, sampler());
        let outcome = resume(comm, &mut own, folder.path(), kind).map(drop);
        assert_eq!(own, parameters());
        outcome
    });
    assert!(matches!(results[0], Err(Error::Checkpoint(_))));
    let text = error_of_all(&results);
    assert!(
        text.contains(&path.join(file).display().to_string()),
        "{text}"
    );
    text
}

fn replace(file: &Path, from: &str, to: &str) {
    let text = std::fs::read_to_string(file).unwrap();
    assert!(text.contains(from), "{text}");
    std::fs::write(file, text.replacen(from, to, 1)).unwrap();
}

#[test]
fn damaged_and_foreign_files_are_refused_by_name() {
    let shorten = |file: &Path| {
        let bytes = std::fs::read(file).unwrap();
        std::fs::write(file, &bytes[..bytes.len() - 1]).unwrap();
    };
    let (manifest, shard) = ("manifest.json", "shard-1-of-2");
    let text = refused(|path| shorten(&path.join(manifest)), manifest);
    assert!(text.contains("truncated"), "{text}");
    let text = refused(|path| shorten(&path.join(shard)), shard);
    assert!(text.contains("truncated"), "{text}");
    let text = refused(
        |path| std::fs::remove_file(path.join(shard)).unwrap(),
        shard,
    );
    assert!(text.contains("No such file"), "{text}");
    let flip = |path: &Path| {
        let mut bytes = std::fs::read(path.join(shard)).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        std::fs::write(path.join(shard), bytes).unwrap();
    };
    let text = refused(flip, shard);
    assert!(text.contains("hash"), "{text}");
    let future = |path: &Path| replace(&path.join(manifest), "\"version\":1", "\"version\":2");
    let text = refused(future, manifest);
    assert!(
        text.contains("version 2") && text.contains("reads 1 to 1"),
        "{text}"
    );
    let foreign = |path: &Path| std::fs::write(path.join(manifest), "{\"a\": 1}").unwrap();
    let text = refused(foreign, manifest);
    assert!(text.contains("no manifest"), "{text}");
    let renamed = |path: &Path| replace(&path.join(manifest), "\"tensor 2\"", "\"tensor x\"");
    let text = refused(renamed, manifest);
    assert!(text.contains("fingerprint"), "{text}");
    let absurd = |path: &Path| replace(&path.join(manifest), "\"position\":4", "\"position\":5");
    let text = refused(absurd, manifest);
    assert!(text.contains("begins or ends at 5"), "{text}");
    let step = |path: &Path| {
        replace(
            &path.join(manifest),
            "\"step\":3",
            "\"step\":9999999999999999",
        );
    };
    let text = refused(step, manifest);
    assert!(text.contains("no run reaches step"), "{text}");
    let escaping = |path: &Path| replace(&path.join(manifest), "shard-0-of-2", "../shard");
    let text = refused(escaping, manifest);
    assert!(text.contains("../shard"), "{text}");
}

#[test]
fn another_model_or_optimizer_is_refused_by_name() {
    let (folder, _) = saved(Sharing::Sharded);
    let results = ranks(2, |comm| {
        let mut own = parameters();
        own[4] = HostTensor::new("tensor 4", &[14], Values::F32(vec![0.0; 14])).unwrap();
        resume(comm, &mut own, folder.path(), (Sharing::Sharded, sampler())).map(drop)
    });
    let text = error_of_all(&results);
    let expected = "it has shape [14], but [13] in the checkpoint";
    assert!(
        text.contains("\"tensor 4\"") && text.contains(expected),
        "{text}"
    );
    assert!(text.contains("manifest.json"), "{text}");
    let results = ranks(2, |comm| {
        let store = Checkpoints::new(folder.path());
        let (mut own, sgd) = (parameters(), Sgd::new(0.1, 0.0));
        DataParallel::resume(comm, &mut own, sgd, Options::default(), &store, None).map(drop)
    });
    let text = error_of_all(&results);
    assert!(text.contains("adamw") && text.contains("not sgd"), "{text}");
}

#[test]
fn a_folder_that_cannot_be_written_names_rank_and_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a file");
    std::fs::write(&file, "").unwrap();
    let results = ranks(2, |comm| {
        let mut own = parameters();
        let optimizer = AdamW::new(0.05);
        let options = options(Sharing::Sharded);
        let mut training = DataParallel::new(comm, &mut own, optimizer, options).unwrap();
        train(comm, &mut training, &mut own, 1);
        // Rank 1 has another folder, as on a host without the shared file system.
        let own_folder = folder.path().join(comm.rank().to_string());
        let elsewhere = training.save(comm, &Checkpoints::new(own_folder), None);
        let nowhere = training.save(comm, &Checkpoints::new(&file), None);
        train(comm, &mut training, &mut own, 2);
        [elsewhere.map(drop), nowhere.map(drop)]
    });
    let [elsewhere, nowhere]: [Vec<_>; 2] =
        results
            .into_iter()
            .fold([Vec::new(), Vec::new()], |mut all, [elsewhere, nowhere]| {
                all[0].push(elsewhere);
                all[1].push(nowhere);
                all
            });
    let text = error_of_all(&elsewhere);
    assert!(
        text.contains("rank 1") && text.contains("same file system"),
        "{text}"
    );
    let text = error_of_all(&nowhere);
    assert!(text.contains("rank 0") && text.contains("a file"), "{text}");
}

#[test]
fn a_step_that_is_not_finished_is_not_saved() {
    let folder = tempfile::tempdir().unwrap();
    let comm = Communicator::local(1).unwrap().remove(0);
    let mut own = parameters();
    let options = options(Sharing::Replicated);
    let mut training = DataParallel::new(&comm, &mut own, AdamW::new(0.1), options).unwrap();
    training.accumulate(1, &[1.0_f32]).unwrap();
    let error = training
        .save(&comm, &Checkpoints::new(folder.path()), None)
        .unwrap_err();
    assert!(
        error.to_string().contains("step 1 is not finished"),
        "{error}"
    );
}

/// Training of two ranks, which have taken these steps.
pub(crate) fn begun(comm: &Communicator, steps: u64) -> (DataParallel<AdamW>, Vec<HostTensor>) {
    let (mut own, options) = (parameters(), options(Sharing::Sharded));
    let mut training = DataParallel::new(comm, &mut own, AdamW::new(0.05), options).unwrap();
    train(comm, &mut training, &mut own, steps);
    (training, own)
}

/// Nobody waits for a rank that cannot save by itself, and the next checkpoint is saved.
#[test]
fn a_rank_that_is_not_as_the_others_saves_nothing_and_all_hear_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let results = ranks(2, |comm| {
        let (mut training, mut own) = begun(comm, 1);
        let store = Checkpoints::new(folder.path());
        let (is_odd, mut sampler) = (comm.rank() == 1, sampler());
        if is_odd {
            training.set_steps(5).unwrap();
        }
        let step = training.save(comm, &store, Some(&sampler)).map(drop);
        training.set_steps(1).unwrap();
        if is_odd {
            sampler.next_batch(comm);
        }
        let other = training.save(comm, &store, Some(&sampler)).map(drop);
        if is_odd {
            training.accumulate(0, &[1.0_f32; 7]).unwrap();
        }
        let open = training.save(comm, &store, None).map(drop);
        training.step(comm, &mut own).unwrap();
        training.save(comm, &store, None).unwrap();
        [step, other, open]
    });
    let [first, second]: [[Result<(), Error>; 3]; 2] = results.try_into().unwrap();
    let expected = [
        "another number of steps",
        "sampler in another state",
        "not finished",
    ];
    for ((one, other), expected) in first.into_iter().zip(second).zip(expected) {
        let text = error_of_all(&[one, other]);
        assert!(
            text.contains("rank 1 (") && text.contains(expected),
            "{text}"
        );
    }
}

#[test]
fn another_data_set_is_refused_by_name() {
    let (folder, _) = saved(Sharing::Sharded);
    let results = ranks(2, |comm| {
        let samples = if comm.rank() == 1 { 11 } else { 10 };
        let sampler = Sampler::new(samples, 4, 1, LastBatch::Padded).unwrap();
        let kind = (Sharing::Sharded, sampler);
        resume(comm, &mut parameters(), folder.path(), kind).map(drop)
    });
    let text = error_of_all(&results);
    let expected = "has a sampler of 10 samples in batches of 4";
    assert!(
        text.contains("rank 1 (") && text.contains(expected),
        "{text}"
    );
    assert!(text.contains("this run has 11 samples"), "{text}");
    // Without a sampler, the data set does not matter; a sampler that was not saved does.
    ranks(2, |comm| {
        let (mut own, options) = (parameters(), options(Sharing::Sharded));
        let store = Checkpoints::new(folder.path());
        let adamw = AdamW::new(0.05);
        let resumed = DataParallel::resume(comm, &mut own, adamw, options, &store, None).unwrap();
        resumed.unwrap().save(comm, &store, None).unwrap();
        let error = resume(comm, &mut own, folder.path(), (Sharing::Sharded, sampler()));
        let error = error.map(drop).unwrap_err().to_string();
        assert!(error.contains("has no sampler"), "{error}");
    });
}

#[test]
fn a_rank_that_reads_another_manifest_is_named() {
    let (folder, _) = saved(Sharing::Sharded);
    let (other, path) = saved(Sharing::Sharded);
    replace(&path.join("manifest.json"), "\"seed\":1", "\"seed\":2");
    let results = ranks(2, |comm| {
        let at = if comm.rank() == 1 { &other } else { &folder };
        let kind = (Sharing::Sharded, sampler());
        resume(comm, &mut parameters(), at.path(), kind).map(drop)
    });
    let text = error_of_all(&results);
    let file = path.join("manifest.json").display().to_string();
    assert!(text.contains("rank 1 (") && text.contains(&file), "{text}");
    assert!(text.contains("not what rank 0 has read"), "{text}");
}

#[test]
fn a_tensor_that_a_rank_cannot_replace_is_an_error_of_all() {
    let (folder, _) = saved(Sharing::Replicated);
    let results = ranks(2, |comm| {
        let mut own = Broken::not(parameters());
        own.frozen = (comm.rank() == 1).then_some(4);
        resume(comm, &mut own, folder.path(), (Sharing::Sharded, sampler())).map(drop)
    });
    assert!(matches!(&results[0], Err(Error::Unable(it)) if it.rank == 1));
    let text = error_of_all(&results);
    assert!(
        text.contains("\"tensor 4\": could not be written"),
        "{text}"
    );
}
