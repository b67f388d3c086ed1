//! Writes inputs into host memory, and compares results there.

use spark_ccl::Element;

use super::{Piece, Verification};
use crate::exact::{PERIOD, to_bits};

/// Writes the values of a piece.
pub(crate) fn write<T: Element>(check: &Verification<'_, T>, piece: &Piece, buffer: &mut [T]) {
    let pattern = check.pattern(piece);
    for copy in buffer[piece.range.clone()].chunks_mut(PERIOD) {
        copy.copy_from_slice(&pattern[..copy.len()]);
    }
}

/// Counts the elements of a piece that differ from the expected ones.
pub(crate) fn wrong<T: Element>(check: &Verification<'_, T>, piece: &Piece, buffer: &[T]) -> u64 {
    let pattern = check.pattern(piece);
    let tolerance = check.tolerance(piece);
    let wrong = |chunk: &[T]| {
        let pattern = &pattern[..chunk.len()];
        // Compares bytes, because floats with different bits can be equal.
        if bytemuck::cast_slice::<T, u8>(chunk) == bytemuck::cast_slice::<T, u8>(pattern) {
            return 0;
        }
        let pairs = chunk.iter().zip(pattern);
        pairs
            .filter(|(got, expected)| to_bits(*got).abs_diff(to_bits(*expected)) > tolerance)
            .count() as u64
    };
    buffer[piece.range.clone()].chunks(PERIOD).map(wrong).sum()
}

#[cfg(test)]
mod tests {
    use spark_ccl::ReduceOp;

    use super::*;
    use crate::call::collective::Collective;
    use crate::call::invocation::{BufferMode, Case, Invocation};

    #[test]
    fn wrong_elements_are_counted_in_every_period() {
        let case = Case {
            collective: Collective::Broadcast,
            bytes: (4 * (3 * PERIOD + 10)) as u64,
            op: ReduceOp::Sum,
            root: 0,
            ranks: 2,
        };
        let call = Invocation::<f32>::new(&case, 1);
        let check = Verification::new(&call, BufferMode::OutOfPlace, 3, 0);
        let piece = &check.results()[0];
        let mut memory = vec![0f32; 3 * PERIOD + 10];
        write(&check, piece, &mut memory);
        assert_eq!(wrong(&check, piece, &memory), 0);
        for index in [0, 2, PERIOD - 1, PERIOD, 2 * PERIOD + 5, 3 * PERIOD + 9] {
            memory[index] = check.spoiled(&memory[index]);
        }
        assert_eq!(wrong(&check, piece, &memory), 6);
        // Data that is displaced by one message.
        memory.rotate_left(1 << 14);
        assert!(wrong(&check, piece, &memory) > PERIOD as u64);
    }
}
