//! Gradients that are handed over in backward, and reduced meanwhile.

use std::sync::{Arc, Mutex};

use candle_core::{DType, Device, Tensor};
use candle_nn::{VarMap, loss};
use spark_ccl::{Failed, Pending, RedOp};
use spark_ccl_candle::llama::{Config, Llama};
use spark_ccl_candle::variables::{Trainable, in_order};
use spark_ccl_candle::{Files, Form, Group, Hook};

use crate::files::folder;
use crate::{apart, ranks};

/// Means of gradients that are under way, by name.
type UnderWay = Arc<Mutex<Vec<(String, Tensor, Pending<Vec<f32>>)>>>;

/// A hook that starts a mean over the ranks for each gradient.
fn averaging(group: &Group, under_way: &UnderWay) -> Hook {
    let (group, under_way) = (group.clone(), Arc::clone(under_way));
    Hook::new(move |name, gradient| {
        let values = gradient.flatten_all()?.to_vec1::<f32>()?;
        let call = group
            .communicator()
            .all_reduce_in_place(values, RedOp::Avg)
            .named(name);
        let started = call.start().map_err(|Failed { error, .. }| error);
        let pending = started.map_err(candle_core::Error::wrap)?;
        under_way
            .lock()
            .unwrap()
            .push((name.to_owned(), gradient.clone(), pending));
        Ok(())
    })
}

#[test]
fn gradients_come_as_they_are_made_and_are_reduced_meanwhile() {
    let folder = folder();
    let config = Config::of_folder(folder.path()).unwrap();
    let found = ranks(2, |group| {
        // Data parallel: each rank has the whole model and tokens of its own.
        let alone = Group::alone().map_err(candle_core::Error::wrap)?;
        let under_way = UnderWay::default();
        let hooked = alone.hooked(averaging(group, &under_way));
        let variables = VarMap::new();
        let files = Files::of_folder(folder.path())?;
        let weights = Trainable::builder(files, &variables, DType::F32, &Device::Cpu);
        let llama = Llama::load(&hooked, Form::Whole, &config, &weights)?;
        let first = group.rank() as u32 * 100;
        let tokens = Tensor::arange(first, first + 9, &Device::Cpu)?.unsqueeze(0)?;
        let logits = llama.forward(&tokens.narrow(1, 0, 8)?, &mut llama.cache())?;
        let loss = loss::cross_entropy(
            &logits.flatten_to(1)?,
            &tokens.narrow(1, 1, 8)?.flatten_all()?,
        )?;
        let gradients = loss.backward()?;
        let under_way = std::mem::take(&mut *under_way.lock().unwrap());
        let all = in_order(&variables)?;
        assert_eq!(
            under_way.len(),
            all.len(),
            "each parameter's gradient comes once"
        );
        let mut found = Vec::new();
        for (name, gradient, pending) in under_way {
            let (_, var) = all.iter().find(|(other, _)| *other == name).unwrap();
            assert_eq!(apart(&gradient, gradients.get(var).unwrap()), 0.0, "{name}");
            let mean = pending.wait().map_err(candle_core::Error::wrap)?;
            found.push((
                name,
                gradient,
                Tensor::from_vec(mean, var.shape(), &Device::Cpu)?,
            ));
        }
        Ok(found)
    });
    let names: Vec<_> = found[0].iter().map(|(name, ..)| &**name).collect();
    assert_eq!(names.first(), Some(&"lm_head.weight"));
    assert_eq!(names.last(), Some(&"model.embed_tokens.weight"));
    let at = |part: &str| names.iter().position(|name| name.contains(part)).unwrap();
    assert!(at("layers.3.mlp") < at("layers.2.mlp"), "{names:?}");
    for (one, other) in found[0].iter().zip(&found[1]) {
        let mean = ((&one.1 + &other.1).unwrap() / 2.0).unwrap();
        assert!(
            apart(&one.2, &mean) < 1e-6 && apart(&other.2, &mean) < 1e-6,
            "{}",
            one.0
        );
        assert!(apart(&one.1, &other.1) > 0.0, "{}", one.0);
    }
}

#[test]
fn a_tied_weight_comes_once_with_all_of_its_gradient() {
    let folder = folder();
    let mut config = Config::of_folder(folder.path()).unwrap();
    config.tie_word_embeddings = true;
    let found = Arc::new(Mutex::new(Vec::new()));
    let taken = Arc::clone(&found);
    let hook = Hook::new(move |name, gradient| {
        taken
            .lock()
            .unwrap()
            .push((name.to_owned(), gradient.clone()));
        Ok(())
    });
    let hooked = Group::alone().unwrap().hooked(hook);
    let variables = VarMap::new();
    let files = Files::of_folder(folder.path()).unwrap();
    let weights = Trainable::builder(files, &variables, DType::F32, &Device::Cpu);
    let llama = Llama::load(&hooked, Form::Whole, &config, &weights).unwrap();
    let tokens = Tensor::arange(0_u32, 8, &Device::Cpu).unwrap();
    let logits = llama
        .forward(&tokens.unsqueeze(0).unwrap(), &mut llama.cache())
        .unwrap();
    let logits = logits.flatten_to(1).unwrap();
    let gradients = loss::cross_entropy(&logits, &tokens)
        .unwrap()
        .backward()
        .unwrap();
    let name = "model.embed_tokens.weight";
    let of_weight: Vec<_> = found.lock().unwrap().clone();
    let of_weight: Vec<_> = of_weight.iter().filter(|(it, _)| it == name).collect();
    assert_eq!(of_weight.len(), 1);
    let all = in_order(&variables).unwrap();
    assert!(all.iter().all(|(it, _)| it != "lm_head.weight"));
    let (_, var) = all.iter().find(|(it, _)| it == name).unwrap();
    assert_eq!(apart(&of_weight[0].1, gradients.get(var).unwrap()), 0.0);
}

#[test]
fn an_error_of_a_hook_ends_backward() {
    let hook = Hook::new(|name, _| candle_core::bail!("no room for {name}"));
    let weight = candle_core::Var::new(&[1_f32], &Device::Cpu).unwrap();
    let used = hook.watch("weight", &weight).unwrap();
    let error = used.sum_all().unwrap().backward().unwrap_err();
    assert!(error.to_string().contains("no room for weight"), "{error}");
}
