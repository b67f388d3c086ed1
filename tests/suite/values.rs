//! Values of their own for each element of each rank, so that none can stand in for another.

use spark_ccl_testing::scramble;

use super::types::Number;

/// The `i`-th element of the rank or message `of`: a hash, within what the type sums exactly.
pub(crate) fn value<T: Number>(of: u64, i: usize) -> T {
    T::of(whole_value::<T>(of, i))
}

/// The same as a whole number.
pub(crate) fn whole_value<T: Number>(of: u64, i: usize) -> i64 {
    let hash = scramble(of, i as u64);
    let magnitude = (hash % (T::LIMIT as u64 + 1)) as i64;
    if T::SIGNED && hash >> 40 & 1 == 1 {
        -magnitude
    } else {
        magnitude
    }
}

/// The message from one rank to another.
pub(crate) fn message<T: Number>(from: usize, to: usize, len: usize) -> Vec<T> {
    (0..len).map(|i| value(pair(from, to), i)).collect()
}

/// The sum of the ranks' messages to `to`.
pub(crate) fn sum_of_messages<T: Number>(ranks: usize, to: usize, len: usize) -> Vec<T> {
    let whole = |from, i| whole_value::<T>(pair(from, to), i);
    let sum = |i| T::of((0..ranks).map(|from| whole(from, i)).sum());
    (0..len).map(sum).collect()
}

fn pair(from: usize, to: usize) -> u64 {
    (from as u64) << 16 | to as u64 | 1 << 31
}
