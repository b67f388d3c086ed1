//! Fuzz targets: the files of checkpoints.

use std::path::Path;

use spark_ccl::DType;

use crate::checkpoint::loading::Loading;
use crate::checkpoint::manifest::{Manifest, ShardEntry};
use crate::checkpoint::shard::{Record, Shard};
use crate::model::{Model, TensorInfo, to_json};
use crate::optimizer::AdamW;
use crate::sampler::{LastBatch, Sampler};
use crate::shares::Share;

/// A target's name, the function that must accept any bytes, and valid inputs to start from.
pub type Target = (&'static str, fn(&[u8]), fn() -> Vec<Vec<u8>>);

/// All targets of this crate.
pub const TARGETS: &[Target] = &[
    ("checkpoint-manifest", manifest, || vec![some_manifest()]),
    ("checkpoint-shard", shard, || vec![some_shard().encode()]),
];

/// A manifest that is read is consistent, so it is read again as it is written.
fn manifest(bytes: &[u8]) {
    if let Ok(manifest) = Manifest::parse(bytes) {
        assert_eq!(Manifest::parse(&to_json(&manifest)), Ok(manifest));
    }
}

/// There is one way to write a shard. What is taken of it is whole, or refused.
fn shard(bytes: &[u8]) {
    let Ok(shard) = Shard::decode(bytes) else {
        return;
    };
    assert_eq!(shard.encode(), bytes);
    let tensor = TensorInfo::new("a", DType::F32, &[4]);
    let Ok(model) = Model::new(vec![tensor]) else {
        return;
    };
    // This rank has the middle of the tensor.
    let share = Share {
        range: 1..3,
        parameters: vec![f32::NAN; 2],
        states: vec![vec![f32::NAN; 2]; 2],
    };
    let mut loading = Loading::new(&model, vec![share]);
    let file = Path::new("shard");
    let mut records = shard.records.iter();
    let taken = records.try_for_each(|record| loading.take(file, &model, record));
    if taken
        .and_then(|()| loading.check_whole(file, &model))
        .is_ok()
    {
        let bits = |numbers: &[f32]| numbers.iter().map(|it| it.to_bits()).collect::<Vec<_>>();
        let own = &loading.shares[0].parameters;
        assert_eq!(bits(own), bits(&loading.parameters[0][1..3]));
    }
}

fn some_manifest() -> Vec<u8> {
    let tensor = TensorInfo::new("a", DType::F32, &[2, 3]);
    let Ok(model) = Model::new(vec![tensor]) else {
        return Vec::new();
    };
    let shard = ShardEntry {
        file: "shard-0-of-1".to_owned(),
        bytes: 120,
        sha256: "00".to_owned(),
    };
    let sampler = Sampler::new(10, 4, 1, LastBatch::Padded).ok();
    let optimizer = AdamW::new(0.1);
    to_json(&Manifest::new(
        &model,
        &optimizer,
        3,
        2,
        vec![shard],
        sampler.as_ref(),
    ))
}

fn some_shard() -> Shard {
    let record = |begin| Record {
        tensor: 0,
        begin,
        parameters: vec![1.0, 2.0],
        states: vec![vec![3.0, 4.0], vec![5.0, 6.0]],
    };
    Shard {
        rank: 0,
        ranks: 1,
        step: 3,
        fingerprint: [7; 32],
        records: vec![record(0), record(2)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_inputs_to_start_from_are_valid() {
        assert_eq!(Shard::decode(&some_shard().encode()), Ok(some_shard()));
        assert!(Manifest::parse(&some_manifest()).is_ok());
    }
}

#[cfg(test)]
#[test]
fn any_bytes_are_read_or_refused() {
    spark_ccl_testing::fuzz(TARGETS);
}
