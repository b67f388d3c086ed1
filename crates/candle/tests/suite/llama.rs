//! The model against candle-transformers' Llama, and divided models against one rank.

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{Module, VarBuilder, VarMap, loss};
use candle_transformers::models::llama as theirs;
use spark_ccl_candle::llama::{Config, Llama};
use spark_ccl_candle::variables::{Trainable, in_order};
use spark_ccl_candle::{ColumnParallel, Files, Form, Group, RowParallel};

use crate::files::folder;
use crate::{apart, numbers, ranks};

/// Logits may differ by as much, and gradients by as much of each tensor's largest one.
const CLOSE: f32 = 1e-4;

fn tokens(sequences: usize, count: usize) -> Tensor {
    let values: Vec<u32> = (0..sequences * count)
        .map(|at| (at * 37 % 512) as u32)
        .collect();
    Tensor::from_vec(values, (sequences, count), &Device::Cpu).unwrap()
}

/// The logits of the last of the first tokens, and then of each next one, with a cache.
fn logits(group: &Group, config: &Config, folder: &std::path::Path) -> Result<Vec<Tensor>> {
    let weights = Files::of_folder(folder)?.builder(DType::F32, &Device::Cpu);
    let llama = Llama::load(group, Form::Whole, config, &weights)?;
    let (tokens, mut cache) = (tokens(1, 12), llama.cache());
    let begin = llama
        .forward(&tokens.narrow(1, 0, 8)?, &mut cache)?
        .narrow(1, 7, 1)?;
    let mut found = vec![begin];
    for at in 8..12 {
        assert_eq!(cache.tokens(), at);
        found.push(llama.forward(&tokens.narrow(1, at, 1)?, &mut cache)?);
    }
    Ok(found)
}

/// The same by candle-transformers.
fn their_logits(folder: &std::path::Path, config: &theirs::Config) -> Result<Vec<Tensor>> {
    let tensors = candle_core::safetensors::load(folder.join("model.safetensors"), &Device::Cpu)?;
    let weights = VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu);
    let llama = theirs::Llama::load(weights, config)?;
    let mut cache = theirs::Cache::new(true, DType::F32, config, &Device::Cpu)?;
    let tokens = tokens(1, 12);
    let mut found = vec![
        llama
            .forward(&tokens.narrow(1, 0, 8)?, 0, &mut cache)?
            .unsqueeze(1)?,
    ];
    for at in 8..12 {
        let next = llama.forward(&tokens.narrow(1, at, 1)?, at, &mut cache)?;
        found.push(next.unsqueeze(1)?);
    }
    Ok(found)
}

#[test]
fn logits_are_those_of_candle_transformers_on_any_number_of_ranks() {
    let folder = folder();
    let text = std::fs::read_to_string(folder.path().join("config.json")).unwrap();
    // As in Llama 3.1 and later, but with shorter contexts: some turns are slower, some are not.
    let scaling = "\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0, \
         \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, \
         \"original_max_position_embeddings\": 64},";
    let tied = "\"tie_word_embeddings\": true,";
    for added in ["", scaling, tied] {
        let text = text.replacen('{', &format!("{{{added}"), 1);
        std::fs::write(folder.path().join("config.json"), &text).unwrap();
        let config = Config::of_folder(folder.path()).unwrap();
        let their_config: theirs::LlamaConfig = serde_json::from_str(&text).unwrap();
        let expected = their_logits(folder.path(), &their_config.into_config(false)).unwrap();
        for size in [1, 2, 4] {
            for found in ranks(size, |group| logits(group, &config, folder.path())) {
                for (one, other) in found.iter().zip(&expected) {
                    assert!(
                        apart(one, other) < CLOSE,
                        "{size} ranks: {}",
                        apart(one, other)
                    );
                }
            }
        }
    }
}

/// transformers 5 and later have the base and the scaling in one place.
#[test]
fn positions_of_newer_configurations_are_those_of_older_ones() {
    let folder = folder();
    let path = folder.path().join("config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let given = "\"rope_theta\": 10000.0";
    assert!(text.contains(given));
    let scaling = "\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1.0, \
         \"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 64";
    let of = |positions: &str| {
        std::fs::write(&path, text.replace(given, positions)).unwrap();
        let config = Config::of_folder(folder.path()).unwrap();
        ranks(1, |group| logits(group, &config, folder.path())).remove(0)
    };
    let base = "\"rope_theta\": 500.0";
    let plain = of(base);
    let scaled = of(&format!("{base}, \"rope_scaling\": {{{scaling}}}"));
    let default = "\"rope_type\": \"default\"";
    let newer = |scaling: &str| of(&format!("\"rope_parameters\": {{{base}, {scaling}}}"));
    assert_eq!(apart(&newer(default)[4], &plain[4]), 0.0);
    assert_eq!(apart(&newer(scaling)[4], &scaled[4]), 0.0);
    assert!(apart(&plain[4], &scaled[4]) > 0.0 && apart(&plain[4], &of(given)[4]) > 0.0);
}

#[test]
fn each_rank_has_its_share_of_the_memory() {
    let folder = folder();
    let config = Config::of_folder(folder.path()).unwrap();
    let bytes = |size| {
        ranks(size, |group| {
            let weights = Files::of_folder(folder.path())?.builder(DType::F32, &Device::Cpu);
            Ok(Llama::load(group, Form::Whole, &config, &weights)?.bytes())
        })
    };
    // All ranks have the norms.
    let norms = 4 * (2 * config.num_hidden_layers + 1) * config.hidden_size;
    let whole = bytes(1)[0];
    let stored = std::fs::metadata(folder.path().join("model.safetensors"))
        .unwrap()
        .len();
    assert!(whole as u64 <= stored && whole as u64 > stored * 9 / 10);
    for size in [2, 4] {
        assert_eq!(bytes(size), vec![(whole - norms) / size + norms; size]);
    }
}

/// An outcome, and the gradients of all variables by name.
type Trained<T> = (T, Vec<(String, Tensor)>);

/// The loss and gradients of a model.
fn trained(
    group: &Group,
    form: Form,
    config: &Config,
    folder: &std::path::Path,
) -> Result<Trained<f32>> {
    let variables = VarMap::new();
    let files = Files::of_folder(folder)?;
    let weights = Trainable::builder(files, &variables, DType::F32, &Device::Cpu);
    let llama = Llama::load(group, form, config, &weights)?;
    let tokens = tokens(2, 9);
    let (input, following) = (tokens.narrow(1, 0, 8)?, tokens.narrow(1, 1, 8)?);
    let logits = llama.forward(&input.contiguous()?, &mut llama.cache())?;
    let loss = loss::cross_entropy(&logits.flatten_to(1)?, &following.flatten_all()?)?;
    let gradients = loss.backward()?;
    Ok((loss.to_scalar()?, of_variables(&variables, &gradients)?))
}

fn of_variables(variables: &VarMap, gradients: &GradStore) -> Result<Vec<(String, Tensor)>> {
    let all = in_order(variables)?.into_iter();
    Ok(all
        .map(|(name, var)| (name, gradients.get(&var).unwrap().clone()))
        .collect())
}

/// The part of a tensor that a rank has, where its own is smaller.
fn part_of(whole: &Tensor, own: &Tensor, rank: usize) -> Tensor {
    let differs = (0..whole.rank()).find(|&at| own.dims()[at] != whole.dims()[at]);
    differs.map_or(whole.clone(), |dim| {
        let count = own.dims()[dim];
        whole.narrow(dim, count * rank, count).unwrap()
    })
}

#[test]
fn losses_and_gradients_are_those_of_one_rank() {
    let folder = folder();
    let mut config = Config::of_folder(folder.path()).unwrap();
    for tied in [false, true] {
        config.tie_word_embeddings = tied;
        divided_as_alone(&config, folder.path());
    }
}

fn divided_as_alone(config: &Config, folder: &std::path::Path) {
    let train = |size, form| ranks(size, |it| trained(it, form, config, folder));
    let (expected_loss, expected) = train(1, Form::Whole).remove(0);
    for size in [2, 4] {
        for form in [Form::Whole, Form::Sequence { dim: 1 }] {
            for (rank, (loss, found)) in train(size, form).iter().enumerate() {
                assert!((loss - expected_loss).abs() < CLOSE);
                assert_eq!(found.len(), expected.len());
                for ((name, found), (other, whole)) in found.iter().zip(&expected) {
                    assert_eq!(name, other);
                    let part = part_of(whole, found, rank);
                    let largest = apart(whole, &whole.zeros_like().unwrap());
                    let apart = apart(found, &part) / largest;
                    assert!(
                        apart < CLOSE,
                        "{name}, rank {rank} of {size}, {form:?}: {apart}"
                    );
                }
            }
        }
    }
}

#[test]
fn layers_with_bias_are_those_of_one_rank() {
    let folder = tempfile::tempdir().unwrap();
    let tensors = [
        ("up.weight", numbers(&[8, 4], 1)),
        ("up.bias", numbers(&[8], 2)),
        ("down.weight", numbers(&[4, 8], 3)),
        ("down.bias", numbers(&[4], 4)),
    ];
    let tensors = tensors.into_iter().collect();
    candle_core::safetensors::save(&tensors, folder.path().join("a.safetensors")).unwrap();
    for form in [Form::Whole, Form::Sequence { dim: 1 }] {
        let run = |size| ranks(size, |group| with_bias(group, form, folder.path()));
        let (alone, expected) = run(1).remove(0);
        for (rank, (output, found)) in run(4).into_iter().enumerate() {
            assert!(apart(&output, &alone) < 1e-5);
            for ((name, found), (_, whole)) in found.iter().zip(&expected) {
                let part = part_of(whole, found, rank);
                let largest = apart(whole, &whole.zeros_like().unwrap());
                assert!(apart(found, &part) < 1e-5 * largest, "{name} {rank}");
            }
        }
    }
}

/// The whole output of two layers, and the gradients of their variables, of a loss that weighs each
/// output by its square.
fn with_bias(group: &Group, form: Form, folder: &std::path::Path) -> Result<Trained<Tensor>> {
    let variables = VarMap::new();
    let files = Files::of_folder(folder)?;
    let weights = Trainable::builder(files, &variables, DType::F32, &Device::Cpu);
    let up = ColumnParallel::load(group, form, 4, 8, &weights.pp("up"))?;
    let down = RowParallel::load(group, form, 8, 4, &weights.pp("down"))?;
    let whole = numbers(&[2, 4, 4], 5);
    let output = if form == Form::Whole {
        down.forward(&up.forward(&whole)?)?
    } else {
        let own = down.forward(&up.forward(&group.part(&whole, 1, "input")?)?)?;
        group.all_gather(&own, 1, "output")?
    };
    let gradients = output.sqr()?.sum_all()?.backward()?;
    Ok((output, of_variables(&variables, &gradients)?))
}
