//! What is refused, and that the error names rank and tensor.

use candle_core::{DType, Device, Tensor};
use candle_nn::VarMap;
use candle_nn::var_builder::Shard;
use spark_ccl_candle::llama::{Config, Llama};
use spark_ccl_candle::variables::Trainable;
use spark_ccl_candle::{Files, Form, Group};

use crate::files::folder;
use crate::{errors, numbers, ranks};

/// Asserts that each rank's error has these words and its rank.
fn all_say(errors: &[String], words: &[&str]) {
    for (rank, error) in errors.iter().enumerate() {
        let rank = format!("rank {rank} of {}", errors.len());
        for word in words.iter().chain([&&*rank]) {
            assert!(error.contains(word), "{word:?} is not in: {error}");
        }
    }
}

#[test]
fn tensors_that_are_not_contiguous() {
    let found = errors(2, |group| {
        group.all_reduce(&numbers(&[3, 4], 0).t()?, "turned")
    });
    all_say(
        &found,
        &["all_reduce of turned", "contiguous", "[4, 3]", "[1, 4]"],
    );
    let found = errors(2, |group| {
        group.all_gather(&numbers(&[3, 4], 0).t()?, 1, "turned")
    });
    all_say(&found, &["all_gather of turned", "contiguous"]);
}

#[test]
fn types_and_shapes_that_differ_between_ranks() {
    let types = [DType::F32, DType::BF16];
    let found = errors(2, |group| {
        let own = numbers(&[8], 0).to_dtype(types[group.rank()])?;
        group.all_reduce(&own, "mixed")
    });
    all_say(
        &found,
        &[
            "all_reduce of mixed",
            "rank 0",
            "rank 1",
            "count 8, float,",
            "count 8, bfloat16,",
        ],
    );
    let found = errors(2, |group| {
        group.all_reduce(&numbers(&[8 + group.rank()], 0), "long")
    });
    all_say(&found, &["all_reduce of long", "count 9"]);
    let found = errors(2, |group| {
        group.all_reduce(&numbers(&[8], 0), ["one", "other"][group.rank()])
    });
    all_say(&found, &["\"one\"", "\"other\""]);
}

#[test]
fn types_and_dimensions_that_calls_do_not_have() {
    let found = errors(2, |group| {
        let own = numbers(&[8], 0).to_dtype(DType::F8E4M3)?;
        group.all_reduce(&own, "small")
    });
    all_say(&found, &["all_reduce of small", "F8E4M3"]);
    let found = errors(2, |group| group.all_gather(&numbers(&[8], 0), 1, "flat"));
    all_say(&found, &["all_gather of flat", "no dimension 1", "[8]"]);
    let found = errors(2, |group| {
        group.all_gather(&Tensor::new(1_f32, &Device::Cpu)?, 0, "one")
    });
    all_say(&found, &["all_gather of one", "number"]);
}

#[test]
fn rows_that_ranks_cannot_share() {
    let found = errors(2, |group| group.reduce_scatter(&numbers(&[7], 0), 0, "odd"));
    all_say(&found, &["odd has 7 rows", "2 ranks cannot share evenly"]);
    let found = errors(4, |group| group.part(&numbers(&[3], 0), 0, "few"));
    all_say(&found, &["few has 3 rows", "4 ranks"]);
    // Nothing was sent: the group goes on.
    ranks(2, |group| {
        group
            .reduce_scatter(&numbers(&[7], 0), 0, "odd")
            .unwrap_err();
        group.all_reduce(&numbers(&[7], 0), "odd")
    });
}

#[test]
fn more_ranks_than_a_model_has_heads() {
    let folder = folder();
    let config = Config::of_folder(folder.path()).unwrap();
    let load = |group: &_| {
        let weights = Files::of_folder(folder.path())?.builder(DType::F32, &Device::Cpu);
        Llama::load(group, Form::Whole, &config, &weights)
    };
    // 4 heads of keys and values: each of 8 ranks would have half a head.
    let found = errors(8, load);
    all_say(
        &found,
        &["model.layers.0.self_attn", "4 heads of keys", "8 ranks"],
    );
    let found = errors(3, load);
    all_say(
        &found,
        &["model.embed_tokens.weight", "512 rows", "3 ranks"],
    );
}

#[test]
fn configurations_of_other_models() {
    let folder = folder();
    let config = Config::of_folder(folder.path()).unwrap();
    let refused = |change: fn(&mut Config), words: &str| {
        let mut config = config.clone();
        change(&mut config);
        let found = errors(1, |group| {
            let weights = Files::of_folder(folder.path())?.builder(DType::F32, &Device::Cpu);
            Llama::load(group, Form::Whole, &config, &weights)
        });
        assert!(found[0].contains(words), "{found:?}");
    };
    refused(|it| it.model_type = "gpt2".to_owned(), "gpt2");
    refused(|it| it.hidden_act = "gelu".to_owned(), "gelu");
    refused(|it| it.num_attention_heads = 0, "no heads");
    refused(
        |it| it.num_key_value_heads = Some(3),
        "8 heads of queries cannot share 3",
    );
    refused(
        |it| it.hidden_size = 64,
        "model.embed_tokens.weight has shape [512, 128]",
    );
    refused(
        |it| it.num_hidden_layers = 9,
        "no file has the tensor model.layers.4",
    );
}

#[test]
fn positions_that_are_unknown_or_impossible() {
    let folder = folder();
    let path = folder.path().join("config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let error = |positions: &str| {
        let added = format!("{{\"rope_parameters\": {{{positions}}},");
        std::fs::write(&path, text.replacen('{', &added, 1)).unwrap();
        Config::of_folder(folder.path()).unwrap_err().to_string()
    };
    for (positions, words) in [
        ("\"rope_type\": \"yarn\", \"factor\": 2.0", "yarn"),
        ("\"factor\": 2.0", "rope_type"),
        (
            "\"rope_type\": \"llama3\", \"factor\": 2.0",
            "low_freq_factor",
        ),
    ] {
        let error = error(positions);
        assert!(
            error.contains("config.json") && error.contains(words),
            "{error}"
        );
    }
    for (factor, low, high) in [(0.0, 1.0, 4.0), (8.0, 4.0, 4.0)] {
        let error = error(&format!(
            "\"rope_type\": \"llama3\", \"factor\": {factor}, \"low_freq_factor\": {low}, \
             \"high_freq_factor\": {high}, \"original_max_position_embeddings\": 64"
        ));
        assert!(error.contains("positions cannot turn by Llama3"), "{error}");
    }
}

#[test]
fn some_blocks_of_a_tied_model_that_is_trained() {
    let folder = folder();
    let mut config = Config::of_folder(folder.path()).unwrap();
    config.tie_word_embeddings = true;
    let group = Group::alone().unwrap();
    let files = || Files::of_folder(folder.path()).unwrap();
    let variables = VarMap::new();
    let weights = Trainable::builder(files(), &variables, DType::F32, &Device::Cpu);
    for blocks in [0..2, 1..3, 2..4] {
        let error = Llama::load_blocks(&group, Form::Whole, &config, &weights, blocks).unwrap_err();
        assert!(error.to_string().contains("tie_word_embeddings"), "{error}");
    }
    // Without variables, a tied model may be loaded in parts.
    let weights = files().builder(DType::F32, &Device::Cpu);
    for blocks in [0..2, 1..3, 2..4] {
        Llama::load_blocks(&group, Form::Whole, &config, &weights, blocks).unwrap();
    }
}

#[test]
fn tokens_and_caches_of_other_models() {
    let folder = folder();
    let config = Config::of_folder(folder.path()).unwrap();
    let found = errors(2, |group| {
        let weights = Files::of_folder(folder.path())?.builder(DType::F32, &Device::Cpu);
        let llama = Llama::load(group, Form::Whole, &config, &weights)?;
        llama.forward(
            &Tensor::new(&[[3_u32, 512]], &Device::Cpu)?,
            &mut llama.cache(),
        )
    });
    all_say(
        &found,
        &["model.embed_tokens.weight", "token 512 is none of the 512"],
    );
    let found = errors(1, |group| {
        let weights = Files::of_folder(folder.path())?.builder(DType::F32, &Device::Cpu);
        let llama = Llama::load(group, Form::Whole, &config, &weights)?;
        let part = Llama::load_blocks(group, Form::Whole, &config, &weights, 0..2)?;
        llama.forward(&Tensor::new(&[[3_u32]], &Device::Cpu)?, &mut part.cache())
    });
    assert!(found[0].contains("a cache of 2 blocks"), "{found:?}");
}

#[test]
fn parts_that_a_file_does_not_have() {
    let folder = folder();
    let weights = Files::of_folder(folder.path())
        .unwrap()
        .builder(DType::F32, &Device::Cpu);
    let shard = Shard {
        dim: 0,
        rank: 4,
        world_size: 5,
    };
    let error = weights
        .get_with_hints((512, 128), "lm_head.weight", shard)
        .unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("rank 4 of 5: lm_head.weight has 512"),
        "{error}"
    );
}
