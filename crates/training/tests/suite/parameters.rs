//! Parameters that all ranks get, and differences that are found.

use spark_ccl::{Communicator, bf16};
use spark_ccl_training::{
    DataParallel, Error, HostTensor, Options, Sgd, Values, broadcast, compare,
};

use crate::ranks::{Broken, error_of_all, numbers, ranks};

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

/// Nobody waits for a rank that has failed by itself.
#[test]
fn an_error_of_the_framework_reaches_all_ranks() {
    let outcomes = |call: &(dyn Fn(&Communicator, &mut Broken) -> Result<(), Error> + Sync)| {
        ranks(3, |comm| {
            let mut own = Broken::not(parameters(0));
            if comm.rank() == 1 {
                own.unreadable = Some(0);
                own.frozen = Some(1);
            }
            call(comm, &mut own)
        })
    };
    let gone = "tensor \"wide\": could not be read: it is gone";
    let frozen = "tensor \"narrow\": could not be written: it is frozen";
    let from_1 = outcomes(&|comm, own| broadcast(comm, own, 1));
    let from_2 = outcomes(&|comm, own| broadcast(comm, own, 2));
    let compared = outcomes(&|comm, own| compare(comm, own));
    let shares = outcomes(&|comm, own| {
        own.frozen = None;
        let sgd = Sgd::new(0.1, 0.0);
        own.own.truncate(2);
        DataParallel::new(comm, own, sgd, Options::default()).map(drop)
    });
    for (results, expected) in [
        (from_1, gone),
        (from_2, frozen),
        (compared, gone),
        (shares, gone),
    ] {
        assert!(matches!(&results[0], Err(Error::Unable(it)) if it.rank == 1));
        let text = error_of_all(&results);
        assert!(
            text.contains("rank 1 (") && text.contains(expected),
            "{text}"
        );
    }
}

#[test]
fn two_tensors_of_one_name_on_a_rank_are_an_error_of_all() {
    let results = ranks(2, |comm| {
        let mut own = parameters(0);
        if comm.rank() == 1 {
            own[1] = own[0].clone();
        }
        broadcast(comm, &mut own, 0)
    });
    let text = error_of_all(&results);
    let expected = "tensors 0 and 1 are both named \"wide\"";
    assert!(
        text.contains("rank 1 (") && text.contains(expected),
        "{text}"
    );
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
