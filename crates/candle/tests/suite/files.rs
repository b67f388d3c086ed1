//! Parts of files, against the whole; and damaged files.

#[path = "../../examples/shared/making.rs"]
mod making;

use candle_core::{DType, Device};
use candle_nn::var_builder::Shard;
use spark_ccl_candle::Files;
use tempfile::TempDir;

use crate::apart;

/// A folder with a small model.
pub(crate) fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    making::make(folder.path()).unwrap();
    folder
}

#[test]
fn a_rank_reads_its_part() {
    let folder = folder();
    let path = folder.path().join("model.safetensors");
    let all = candle_core::safetensors::load(path, &Device::Cpu).unwrap();
    let weights = Files::of_folder(folder.path())
        .unwrap()
        .builder(DType::BF16, &Device::Cpu);
    for name in [
        "lm_head.weight",
        "model.layers.3.mlp.down_proj.weight",
        "model.norm.weight",
    ] {
        let whole = all[name].to_dtype(DType::BF16).unwrap();
        assert_eq!(
            apart(&weights.get(whole.shape(), name).unwrap(), &whole),
            0.0
        );
        for dim in 0..whole.rank() {
            for rank in 0..4 {
                let shard = Shard {
                    dim,
                    rank,
                    world_size: 4,
                };
                let part = weights.get_with_hints(whole.shape(), name, shard).unwrap();
                let count = whole.dims()[dim] / 4;
                let expected = whole.narrow(dim, count * rank, count).unwrap();
                assert_eq!(apart(&part, &expected), 0.0, "{name} {dim} {rank}");
            }
        }
    }
}

#[test]
fn damaged_files_are_named() {
    let folder = folder();
    let path = folder.path().join("model.safetensors");
    let whole = std::fs::read(&path).unwrap();
    let error = || match Files::of_folder(folder.path()) {
        Ok(_) => panic!("the file is damaged"),
        Err(error) => error.to_string(),
    };
    for length in [0, 7, 8, 100, whole.len() - 1] {
        std::fs::write(&path, &whole[..length]).unwrap();
        assert!(
            error().contains("model.safetensors"),
            "{length}: {}",
            error()
        );
    }
    let mut longer = whole.clone();
    longer[..8].fill(0xff);
    std::fs::write(&path, longer).unwrap();
    assert!(error().contains("truncated"), "{}", error());
    std::fs::write(&path, [&8_u64.to_le_bytes()[..], b"not json"].concat()).unwrap();
    assert!(error().contains("model.safetensors"));
    std::fs::remove_file(&path).unwrap();
    assert!(
        error().contains("there are no files *.safetensors"),
        "{}",
        error()
    );
}
