//! Parts of files, against the whole; and damaged files.

#[path = "../../examples/shared/making.rs"]
mod making;

use std::collections::HashMap;

use candle_core::{DType, Device, Tensor};
use candle_nn::var_builder::Shard;
use spark_ccl_candle::Files;
use tempfile::TempDir;

use crate::{apart, numbers};

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

fn opened(folder: &TempDir) -> candle_nn::var_builder::VarBuilderArgs<'static, Files> {
    let files = Files::of_folder(folder.path()).unwrap();
    files.builder(DType::F32, &Device::Cpu)
}

fn save(folder: &TempDir, file: &str, tensors: &[(&'static str, Tensor)]) {
    let tensors: HashMap<_, _> = tensors.iter().cloned().collect();
    candle_core::safetensors::save(&tensors, folder.path().join(file)).unwrap();
}

#[test]
fn several_files_are_one_model() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (
        numbers(&[4, 2], 1),
        Tensor::new(2.5_f32, &Device::Cpu).unwrap(),
    );
    save(&folder, "a.safetensors", &[("one", one.clone())]);
    save(&folder, "b.safetensors", &[("other", other)]);
    let weights = opened(&folder);
    assert_eq!(apart(&weights.get((4, 2), "one").unwrap(), &one), 0.0);
    let number = weights.get((), "other").unwrap();
    assert_eq!(number.to_scalar::<f32>().unwrap(), 2.5);

    save(&folder, "c.safetensors", &[("one", numbers(&[4, 2], 2))]);
    let error = Files::of_folder(folder.path()).err().unwrap().to_string();
    for word in ["a.safetensors", "c.safetensors", "the tensor one"] {
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn parts_that_no_rank_has() {
    let folder = tempfile::tempdir().unwrap();
    save(&folder, "a.safetensors", &[("one", numbers(&[4, 2], 1))]);
    let weights = opened(&folder);
    for (rank, world_size) in [(2, 2), (1, 1), (0, 0)] {
        let shard = Shard {
            dim: 0,
            rank,
            world_size,
        };
        let error = weights.get_with_hints((4, 2), "one", shard).unwrap_err();
        let words = format!("one in {world_size} parts has no part {rank}");
        assert!(error.to_string().contains(&words), "{error}");
    }
}

#[test]
fn offsets_that_lie() {
    let folder = tempfile::tempdir().unwrap();
    let error = |header: &str| {
        let bytes = [
            &(header.len() as u64).to_le_bytes()[..],
            header.as_bytes(),
            &[0; 8],
        ];
        std::fs::write(folder.path().join("a.safetensors"), bytes.concat()).unwrap();
        Files::of_folder(folder.path()).err().unwrap().to_string()
    };
    let tensor = |name: &str, count: u64, begin: u64, end: u64| {
        format!(
            "\"{name}\": {{\"dtype\": \"U8\", \"shape\": [{count}], \
             \"data_offsets\": [{begin}, {end}]}}"
        )
    };
    for (count, begin, end) in [(4, 0, 8), (8, 4, 12), (8, 8, 0), (16, 0, 16)] {
        let error = error(&format!("{{{}}}", tensor("one", count, begin, end)));
        assert!(error.contains("one") || error.contains("shape"), "{error}");
        assert!(error.contains("a.safetensors"), "{error}");
    }
    // The last one ends 8 bytes before the largest number: behind the header there is none. Tensors
    // come in any order, and each is refused: so some of these attempts begin with the last one.
    let each = (1 << 61) - 1;
    let all = (0..8).map(|at| tensor(&at.to_string(), each, at * each, (at + 1) * each));
    let header = format!("{{{}}}", all.collect::<Vec<_>>().join(","));
    for _ in 0..100 {
        let error = error(&header);
        assert!(error.contains("ends at byte"), "{error}");
    }
}
