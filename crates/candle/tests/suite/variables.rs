//! Variables of a hash map, in one order on all ranks.

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_nn::VarMap;
use spark_ccl_candle::variables::{check_alike, in_order, start_alike};

use crate::{apart, errors, numbers, ranks};

const NAMES: [&str; 6] = ["e", "a", "d", "c", "f", "b"];

/// Variables of different shapes, added in an order of the rank's own.
fn variables(rank: usize) -> Result<VarMap> {
    let variables = VarMap::new();
    let mut map = variables.data().lock().unwrap();
    for at in 0..NAMES.len() {
        let at = (at + rank) % NAMES.len();
        let values = numbers(&[at + 1, 2], rank).to_dtype([DType::F32, DType::BF16][at % 2])?;
        map.insert(NAMES[at].to_owned(), Var::from_tensor(&values)?);
    }
    drop(map);
    Ok(variables)
}

fn set(variables: &VarMap, name: &str, tensor: &Tensor) -> Result<()> {
    let map = variables.data().lock().unwrap();
    map[name].set(tensor)
}

#[test]
fn all_ranks_start_alike_in_one_order() {
    let found = ranks(3, |group| {
        let variables = variables(group.rank())?;
        start_alike(group, &variables)?;
        check_alike(group, &variables)?;
        in_order(&variables)
    });
    let names: Vec<_> = found[2].iter().map(|(name, _)| &**name).collect();
    assert_eq!(names, ["a", "b", "c", "d", "e", "f"]);
    for (name, var) in in_order(&variables(0).unwrap()).unwrap() {
        for all in &found {
            let (_, other) = all.iter().find(|(other, _)| *other == name).unwrap();
            assert_eq!(apart(other, &var), 0.0, "{name}");
        }
    }
}

#[test]
fn the_first_variable_that_differs_is_named_on_all_ranks() {
    let found = errors(3, |group| {
        let variables = variables(0)?;
        if group.rank() == 1 {
            let zero = Tensor::zeros((3, 2), DType::F32, &Device::Cpu)?;
            set(&variables, "d", &zero)?;
            set(
                &variables,
                "f",
                &zero.narrow(0, 0, 1)?.broadcast_as((5, 2))?.contiguous()?,
            )?;
        }
        check_alike(group, &variables)
    });
    for (rank, error) in found.iter().enumerate() {
        assert!(error.contains(&format!("rank {rank} of 3")), "{error}");
        assert!(error.contains("of d: rank 1's is not rank 0's"), "{error}");
    }
}

#[test]
fn integers_that_floats_would_round_differ() {
    let found = errors(2, |group| {
        let variables = VarMap::new();
        let values = Tensor::new(&[(1_i64 << 53) + group.rank() as i64], &Device::Cpu)?;
        let var = Var::from_tensor(&values)?;
        variables.data().lock().unwrap().insert("a".to_owned(), var);
        check_alike(group, &variables)
    });
    for error in found {
        assert!(error.contains("of a: rank 1's is not rank 0's"), "{error}");
    }
}

#[test]
fn other_variables_on_a_rank_are_an_error_that_names_them() {
    let found = errors(2, |group| {
        let variables = variables(0)?;
        if group.rank() == 1 {
            variables.data().lock().unwrap().remove("c");
        }
        start_alike(group, &variables)
    });
    assert!(
        found[0].contains("there are 6 here, and 5 on rank 1"),
        "{found:?}"
    );
    assert!(
        found[1].contains("there are 5 here, and 6 on rank 0"),
        "{found:?}"
    );
    let found = errors(2, |group| {
        let variables = variables(0)?;
        if group.rank() == 1 {
            let mut map = variables.data().lock().unwrap();
            let var = map.remove("c").unwrap();
            map.insert("cc".to_owned(), var);
        }
        start_alike(group, &variables)
    });
    for error in found {
        assert!(
            error.contains("\"c\"") && error.contains("\"cc\""),
            "{error}"
        );
    }
}
