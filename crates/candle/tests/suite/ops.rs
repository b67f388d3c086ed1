//! Calls on tensors, against candle's own sums and joins; and their gradients.

use candle_core::{DType, Result, Tensor, Var};

use crate::{apart, numbers, ranks};

const TYPES: [DType; 7] = [
    DType::F32,
    DType::BF16,
    DType::F16,
    DType::F64,
    DType::U8,
    DType::U32,
    DType::I64,
];
const SHAPE: [usize; 3] = [12, 24, 12];

/// Small whole numbers, whose sums are exact in all types.
fn own(rank: usize, dtype: DType) -> Tensor {
    let whole = (numbers(&SHAPE, rank) * 4.0).unwrap().round().unwrap();
    whole.to_dtype(dtype).unwrap()
}

fn all(size: usize, dtype: DType) -> Vec<Tensor> {
    (0..size).map(|rank| own(rank, dtype)).collect()
}

fn sum(size: usize, dtype: DType) -> Tensor {
    let all = all(size, dtype).into_iter();
    all.reduce(|sum, it| (sum + it).unwrap()).unwrap()
}

fn part(of: &Tensor, dim: usize, rank: usize, size: usize) -> Tensor {
    let count = of.dim(dim).unwrap() / size;
    of.narrow(dim, count * rank, count).unwrap()
}

#[test]
fn ranks_sum_join_and_divide_tensors_of_all_types() {
    for size in 1..=4 {
        for dtype in TYPES {
            let (sum, all) = (sum(size, dtype), all(size, dtype));
            ranks(size, |group| {
                let own = own(group.rank(), dtype);
                assert_eq!(apart(&group.all_reduce(&own, "a")?, &sum), 0.0);
                for dim in 0..3 {
                    let joined = Tensor::cat(&all, dim)?;
                    assert_eq!(apart(&group.all_gather(&own, dim, "b")?, &joined), 0.0);
                    let expected = part(&sum, dim, group.rank(), size);
                    let scattered = group.reduce_scatter(&own, dim, "c")?;
                    assert_eq!(apart(&scattered, &expected), 0.0);
                    let expected = part(&own, dim, group.rank(), size);
                    assert_eq!(apart(&group.part(&own, dim, "d")?, &expected), 0.0);
                    assert_eq!(scattered.dtype(), dtype);
                }
                Ok(())
            });
        }
    }
}

#[test]
fn a_view_into_a_tensor_goes_without_what_is_around_it() {
    ranks(2, |group| {
        let own = own(group.rank(), DType::F32).narrow(0, 3, 2)?;
        let expected = sum(2, DType::F32).narrow(0, 3, 2)?;
        assert_eq!(apart(&group.all_reduce(&own, "view")?, &expected), 0.0);
        Ok(())
    });
}

#[test]
fn tensors_go_from_rank_to_rank_and_to_all() {
    for dtype in TYPES {
        ranks(3, |group| {
            let own = own(group.rank(), DType::F32).abs()?.to_dtype(dtype)?;
            let second = group.broadcast(&own, 1, "to all")?;
            let expected = self::own(1, DType::F32).abs()?;
            assert_eq!(apart(&second, &expected), 0.0);
            match group.rank() {
                1 => group.send(&own, 2, "one")?,
                2 => {
                    let shape = SHAPE.to_vec();
                    let got = group.recv(shape, dtype, own.device(), 1, "one")?;
                    assert_eq!((apart(&got, &expected), got.dtype()), (0.0, dtype));
                }
                _ => {}
            }
            Ok(())
        });
    }
}

/// The gradient of a rank's tensor, if a call's result is multiplied with weights and summed up.
fn gradient(
    tensor: &Tensor,
    weights: &Tensor,
    call: impl Fn(&Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    let own = Var::from_tensor(tensor)?;
    let gradients = (call(&own)? * weights)?.sum_all()?.backward()?;
    Ok(gradients.get(&own).unwrap().clone())
}

#[test]
fn gradients_are_those_of_the_whole() {
    let size = 3;
    // Weights that are the same on all ranks, and weights of each rank's own.
    let weights = |shape: &[usize], seed| numbers(shape, 100 + seed);
    ranks(size, |group| {
        let rank = group.rank();
        let own = own(rank, DType::F32);
        let alike = weights(&SHAPE, 0);
        let found = gradient(&own, &alike, |it| group.all_reduce(it, "a"))?;
        assert_eq!(apart(&found, &alike), 0.0);

        let each: Vec<_> = (0..size).map(|rank| weights(&SHAPE, rank)).collect();
        let sum = each
            .iter()
            .skip(1)
            .try_fold(each[0].clone(), |sum, it| sum + it)?;
        let found = gradient(&own, &each[rank], |it| group.fan_out(it, "b"))?;
        assert!(apart(&found, &sum) < 1e-6);

        for dim in 0..3 {
            let (mut wide, mut narrow) = (SHAPE.to_vec(), SHAPE.to_vec());
            wide[dim] *= size;
            narrow[dim] /= size;
            let alike = weights(&wide, 0);
            let found = gradient(&own, &alike, |it| group.all_gather(it, dim, "c"))?;
            assert_eq!(apart(&found, &part(&alike, dim, rank, size)), 0.0);

            let each: Vec<_> = (0..size).map(|rank| weights(&wide, rank)).collect();
            let sum = each
                .iter()
                .skip(1)
                .try_fold(each[0].clone(), |sum, it| sum + it)?;
            let found = gradient(&own, &each[rank], |it| group.fan_out_gathered(it, dim, "d"))?;
            assert!(apart(&found, &part(&sum, dim, rank, size)) < 1e-6);

            let each: Vec<_> = (0..size).map(|rank| weights(&narrow, rank)).collect();
            let joined = Tensor::cat(&each, dim)?;
            let found = gradient(&own, &each[rank], |it| group.reduce_scatter(it, dim, "e"))?;
            assert_eq!(apart(&found, &joined), 0.0);
            let found = gradient(&own, &each[rank], |it| group.part(it, dim, "f"))?;
            assert_eq!(apart(&found, &joined), 0.0);
        }
        Ok(())
    });
}

#[test]
fn calls_are_counted() {
    ranks(2, |group| {
        let own = own(0, DType::F32);
        group.all_reduce(&own, "counted")?;
        let spent = group.spent();
        assert_eq!((spent.calls, spent.bytes), (1, 4 * own.elem_count() as u64));
        assert!(!spent.time.is_zero());
        Ok(())
    });
}
