//! Means, bit by bit, by the documented rule: each rank's element times 1/n, not rounded, is added;
//! each step rounds once. Also, threads whose processors compute in another mode.

use std::fmt::Debug;

use spark_ccl::{Builder, Communicator, Element, F8E4M3, F8E5M2, RedOp, Reducer, bf16, f16};
use spark_ccl_testing::{FloatMode, scramble};

use super::ranks::{narrow, run_with};

/// How an algorithm combines the ranks of a result: a rank's element, or a step that reduces some
/// and rounds once.
#[derive(Debug)]
enum Steps {
    Of(usize),
    Step(Vec<Steps>),
}

use Steps::{Of, Step};

impl Steps {
    /// All ranks at once, in order.
    fn at_once(n: usize) -> Self {
        Step((0..n).map(Of).collect())
    }

    /// One rank after the other.
    fn in_turn(ranks: impl IntoIterator<Item = usize>) -> Self {
        let mut ranks = ranks.into_iter().map(Of);
        let first = ranks.next().unwrap();
        ranks.fold(first, |total, next| Step(vec![total, next]))
    }

    /// Partners at distance 1, 2, 4, ...; ranks beyond the power of two join their proxies first.
    fn doubling(n: usize) -> Self {
        let core = 1 << n.ilog2();
        let with_extra = |rank: usize| match rank + core {
            extra if extra < n => Step(vec![Of(rank), Of(extra)]),
            _ => Of(rank),
        };
        let mut all: Vec<_> = (0..core).map(with_extra).collect();
        while all.len() > 1 {
            let mut left = all.into_iter();
            all = Vec::new();
            while let (Some(one), Some(other)) = (left.next(), left.next()) {
                all.push(Step(vec![one, other]));
            }
        }
        all.remove(0)
    }

    /// The mean of the ranks' values.
    fn mean<T: Float>(&self, values: &[T]) -> T {
        match self {
            Of(rank) => values[*rank],
            Step(parts) => {
                let operand = |part: &Self| match part {
                    Of(rank) => T::times(values[*rank].wide(), 1.0 / values.len() as f64),
                    reduced @ Step(_) => reduced.mean(values).wide(),
                };
                let mut operands = parts.iter().map(operand);
                let first = operands.next().unwrap();
                T::rounded(operands.fold(first, T::plus))
            }
        }
    }
}

/// A type, and the type in which it is computed, whose values all fit an `f64`.
trait Float: Element {
    fn from_random(bits: u64) -> Self;
    /// The largest number, and the smallest above 0.
    fn ends() -> [Self; 2];
    fn wide(self) -> f64;
    fn rounded(wide: f64) -> Self;
    fn times(x: f64, factor: f64) -> f64;
    fn plus(a: f64, b: f64) -> f64;
}

macro_rules! floats {
    ($($ty:ty, $bits:ty, $wide:ty, $ends:expr, $widen:expr, $round:expr;)*) => {$(
        impl Float for $ty {
            fn from_random(bits: u64) -> Self {
                let any = <$ty>::from_bits(bits as $bits);
                // Finite numbers only: all NaN become one in results, which equals nothing.
                if any.wide().is_finite() { any } else { Self::ends()[1] }
            }
            fn ends() -> [Self; 2] {
                $ends.map(<$ty>::from_bits)
            }
            fn wide(self) -> f64 {
                $widen(self)
            }
            fn rounded(wide: f64) -> Self {
                $round(wide as $wide)
            }
            fn times(x: f64, factor: f64) -> f64 {
                (x as $wide * factor as $wide).into()
            }
            fn plus(a: f64, b: f64) -> f64 {
                (a as $wide + b as $wide).into()
            }
        }
    )*};
}

floats! {
    f16, u16, f32, [0x7bff, 1], f64::from, f16::from_f32;
    bf16, u16, f32, [0x7f7f, 1], f64::from, bf16::from_f32;
    F8E4M3, u8, f32, [0x7e, 1], |x: F8E4M3| f64::from(x.to_f32()), F8E4M3::from_f32;
    F8E5M2, u8, f32, [0x7b, 1], |x: F8E5M2| f64::from(x.to_f32()), F8E5M2::from_f32;
    f32, u32, f32, [0x7f7f_ffff, 1], f64::from, |x| x;
    f64, u64, f64, [0x7fef_ffff_ffff_ffff, 1], |x| x, |x| x;
}

const COUNT: usize = 300;

/// A rank's elements: first the type's largest and smallest numbers, the same on all ranks.
fn values<T: Float>(rank: usize, len: usize) -> Vec<T> {
    let any = |i: usize| T::from_random(scramble(i as u64, rank as u64));
    T::ends().into_iter().chain((2..len).map(any)).collect()
}

fn assert_means<T: Float>(seen: &[T], begin: usize, n: usize, steps: &Steps, what: &dyn Debug) {
    let all: Vec<_> = (0..n)
        .map(|rank| values::<T>(rank, begin + seen.len()))
        .collect();
    for (i, &seen) in seen.iter().enumerate() {
        let values: Vec<_> = all.iter().map(|values| values[begin + i]).collect();
        let expected = steps.mean(&values);
        // A sum beyond the largest is NaN in a type without infinities.
        let alike = seen == expected || seen.wide().is_nan() && expected.wide().is_nan();
        assert!(
            alike,
            "{what:?} {i}: {seen:?}, not {expected:?} of {values:?}"
        );
    }
}

/// Calls `$check::<T>` with the arguments, for every type.
macro_rules! of_each_type {
    ($check:ident $arguments:tt) => {{
        $check::<f16> $arguments;
        $check::<bf16> $arguments;
        $check::<F8E4M3> $arguments;
        $check::<F8E5M2> $arguments;
        $check::<f32> $arguments;
        $check::<f64> $arguments;
    }};
}

fn check_all_reduce<T: Float>(comm: &Communicator, steps: &Steps, name: &str) {
    let n = comm.size();
    let sent = values::<T>(comm.rank(), COUNT);
    let mut mean = vec![T::default(); COUNT];
    comm.all_reduce(&sent, &mut mean, RedOp::Avg).run().unwrap();
    assert_means(&mean, 0, n, steps, &(T::DTYPE, name, n));
    let mut in_place = sent;
    comm.all_reduce_in_place(&mut in_place, RedOp::Avg)
        .run()
        .unwrap();
    assert_means(&in_place, 0, n, steps, &(T::DTYPE, name, n, "in place"));
}

fn with_algorithm(builder: &Builder, name: &str) -> Builder {
    builder.clone().set("SPARK_CCL_ALGO", name)
}

#[test]
fn means_of_two_ranks_are_rounded_once_by_all_algorithms() {
    let algorithms = [
        "direct",
        "ring",
        "recursive-doubling",
        "halving-doubling",
        "hierarchical",
        "double-tree",
    ];
    for builder in [Communicator::builder(), narrow()] {
        for name in algorithms {
            run_with(&with_algorithm(&builder, name), 2, |comm| {
                of_each_type!(check_all_reduce(comm, &Steps::at_once(2), name));
            });
        }
    }
}

#[test]
fn direct_means_are_rounded_once() {
    for (builder, n) in [(Communicator::builder(), 3), (narrow(), 4), (narrow(), 7)] {
        run_with(&with_algorithm(&builder, "direct"), n, |comm| {
            of_each_type!(check_all_reduce(comm, &Steps::at_once(n), "direct"));
        });
    }
}

#[test]
fn each_step_of_doubling_rounds_once() {
    for name in ["recursive-doubling", "halving-doubling"] {
        for (builder, n) in [(Communicator::builder(), 4), (narrow(), 3), (narrow(), 7)] {
            run_with(&with_algorithm(&builder, name), n, |comm| {
                of_each_type!(check_all_reduce(comm, &Steps::doubling(n), name));
            });
        }
    }
}

fn check_one_sided<T: Float>(comm: &Communicator) {
    let n = comm.size();
    let mut memory = comm.alloc::<T>(COUNT).unwrap();
    memory.copy_from_slice(&values(comm.rank(), COUNT));
    comm.all_reduce_in_place(&mut memory, RedOp::Avg)
        .run()
        .unwrap();
    assert_means(
        &memory,
        0,
        n,
        &Steps::at_once(n),
        &(T::DTYPE, "one-sided", n),
    );
}

#[test]
fn one_sided_means_are_rounded_once() {
    for n in [2, 5] {
        let builder = Communicator::builder().set("SPARK_CCL_PATH", "zero-copy");
        run_with(&builder, n, |comm| of_each_type!(check_one_sided(comm)));
    }
}

fn check_reduce_scatter<T: Float>(comm: &Communicator, name: &str) {
    let (n, own) = (comm.size(), comm.rank());
    let mut mean = vec![T::default(); COUNT];
    comm.reduce_scatter(&values::<T>(own, n * COUNT), &mut mean, RedOp::Avg)
        .run()
        .unwrap();
    let steps = match name {
        "ring" => Steps::in_turn((own + 1..n).chain(0..=own)),
        _ => Steps::at_once(n),
    };
    assert_means(&mean, own * COUNT, n, &steps, &(T::DTYPE, name, n));
}

#[test]
fn means_of_shares() {
    for name in ["ring", "direct"] {
        for (builder, n) in [(Communicator::builder(), 2), (narrow(), 3), (narrow(), 5)] {
            run_with(&with_algorithm(&builder, name), n, |comm| {
                of_each_type!(check_reduce_scatter(comm, name));
            });
        }
    }
}

fn check_reduce<T: Float>(comm: &Communicator, name: &str) {
    let n = comm.size();
    let mut mean = vec![T::default(); COUNT];
    let sent = values::<T>(comm.rank(), COUNT);
    comm.reduce(&sent, &mut mean, RedOp::Avg, 0).run().unwrap();
    if comm.rank() == 0 {
        let steps = match name {
            "chain" => Steps::in_turn((0..n).rev()),
            _ => Steps::doubling(n),
        };
        assert_means(&mean, 0, n, &steps, &(T::DTYPE, name, n));
    }
}

#[test]
fn means_at_a_root() {
    for (name, sizes) in [("chain", [2, 3, 5]), ("binomial", [2, 4, 8])] {
        for n in sizes {
            run_with(&with_algorithm(&narrow(), name), n, |comm| {
                of_each_type!(check_reduce(comm, name));
            });
        }
    }
}

/// Sums of denormals, and rounded sums.
fn results(comm: &Communicator) -> Vec<u64> {
    let mut all = Vec::new();
    let plain = [RedOp::Sum, RedOp::Prod, RedOp::Avg].map(Reducer::Op);
    for op in plain.into_iter().chain([Reducer::PreMulSum(0.3)]) {
        let any = |i: usize| f32::from_random(scramble(i as u64, comm.rank() as u64));
        let denormal = |i: usize| f32::from_bits(0x1234 + (i * comm.rank()) as u32);
        let mut values: Vec<_> = (0..100).map(any).chain((0..100).map(denormal)).collect();
        comm.all_reduce_in_place(&mut values, op).run().unwrap();
        all.extend(values.iter().map(|x| u64::from(x.to_bits())));
    }
    let mut halves: Vec<f16> = values(comm.rank(), COUNT);
    comm.all_reduce_in_place(&mut halves, RedOp::Avg)
        .run()
        .unwrap();
    all.extend(halves.iter().map(|x| u64::from(x.to_bits())));
    all
}

#[test]
fn modes_of_threads_do_not_show() {
    let algorithms = [
        "direct",
        "ring",
        "recursive-doubling",
        "halving-doubling",
        "double-tree",
    ];
    for (name, n) in algorithms
        .into_iter()
        .flat_map(|name| [(name, 2), (name, 3)])
    {
        let builder = with_algorithm(&narrow(), name);
        let expected = run_with(&builder, n, results);
        for mode in FloatMode::ALL {
            let seen = run_with(&builder, n, |comm| match comm.rank() {
                1 => mode.run(|| results(comm)),
                _ => results(comm),
            });
            assert!(
                seen.iter().all(|seen| *seen == expected[0]),
                "{name} {n} {mode:?}"
            );
        }
    }
}
