//! Parameters that all ranks get, and differences that are found.

use spark_ccl::{DType, bf16};
use spark_ccl_training::{
    Error, HostTensor, Parameters, Problem, TensorInfo, Values, broadcast, compare,
};

use crate::ranks::{error_of_all, numbers, ranks};

fn parameters(rank: usize) -> Vec<HostTensor> {
    let narrow = numbers(3, rank as u64)
        .into_iter()
        .map(bf16::from_f32)
        .collect();
    vec![
        HostTensor::new("wide", &[2, 5], Values::F32(numbers(10, rank as u64))).unwrap(),
        HostTensor::new("narrow", &[3], Values::Bf16(narrow)).unwrap(),
        HostTensor::new("none", &[0], Values::F64(Vec::new())).unwrap(),
    ]
}

#[test]
fn all_ranks_get_those_of_one() {
    for root in 0..3 {
        ranks(3, |comm| {
            let mut own = parameters(comm.rank());
            broadcast(comm, &mut own, root).unwrap();
            assert_eq!(own, parameters(root));
            compare(comm, &own).unwrap();
        });
    }
}

#[test]
fn other_contents_are_named_by_rank_and_tensor() {
    for odd in 0..3 {
        let results = ranks(3, |comm| {
            let mut own = parameters(0);
            if comm.rank() == odd {
                own[1].values.get_mut::<bf16>().unwrap()[2] = bf16::NAN;
            }
            compare(comm, &own)
        });
        assert!(matches!(&results[0], Err(Error::Contents(it)) if it.rank == odd));
        let text = error_of_all(&results);
        assert!(
            text.contains(&format!("rank {odd}")) && text.contains("\"narrow\""),
            "{text}"
        );
    }
}

#[test]
fn another_order_is_named_by_rank_and_tensor() {
    let results = ranks(2, |comm| {
        let mut own = parameters(0);
        if comm.rank() == 1 {
            own.swap(0, 1);
        }
        broadcast(comm, &mut own, 0)
    });
    let text = error_of_all(&results);
    let expected = "tensor \"wide\": is number 1, but 0 on rank 0";
    assert!(text.contains("rank 1") && text.contains(expected), "{text}");
}

/// A framework that cannot write its second tensor.
struct Broken;

impl Parameters for Broken {
    fn tensors(&self) -> Vec<TensorInfo> {
        ["one", "two"]
            .map(|name| TensorInfo::new(name, DType::F32, &[1]))
            .to_vec()
    }

    fn read(&self, _tensor: usize, bytes: &mut [u8]) -> Result<(), Problem> {
        bytes.fill(0);
        Ok(())
    }

    fn write(&mut self, tensor: usize, _bytes: &[u8]) -> Result<(), Problem> {
        if tensor == 1 {
            Err("it is frozen".into())
        } else {
            Ok(())
        }
    }
}

#[test]
fn an_error_of_the_framework_names_the_tensor() {
    let results = ranks(2, |comm| broadcast(comm, &mut Broken, 0));
    let text = error_of_all(&results);
    assert_eq!(text, "tensor \"two\" could not be written: it is frozen");
}

#[test]
fn a_tensor_of_another_length_is_refused() {
    let error = HostTensor::new("x", &[2, 2], Values::F32(vec![0.0; 3])).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("\"x\" of shape [2, 2] has 3 elements"),
        "{error}"
    );
}
