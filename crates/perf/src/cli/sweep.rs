//! The sizes that a run measures.

/// Sizes from `min` to `max` bytes, by a factor (if it is above 1) or by a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sweep {
    pub(crate) min: u64,
    pub(crate) max: u64,
    pub(crate) factor: u64,
    pub(crate) step: u64,
}

impl Sweep {
    /// The sizes to measure.
    pub(crate) fn sizes(self) -> impl Iterator<Item = u64> {
        std::iter::successors(Some(self.min), move |&size| self.next(size))
            .take_while(move |&size| size <= self.max)
    }

    /// The sizes of the warm-up: powers of two times the first, up to the largest measured size.
    pub(crate) fn warm_up(self) -> impl Iterator<Item = u64> {
        let doubling = Self {
            factor: 2,
            max: self.last(),
            ..self
        };
        doubling.sizes()
    }

    /// The largest measured size.
    pub(crate) fn last(self) -> u64 {
        if self.factor > 1 {
            self.sizes().last().unwrap_or(self.min)
        } else {
            self.min + (self.max - self.min) / self.step * self.step
        }
    }

    /// The number of measured sizes.
    pub(crate) fn len(self) -> u64 {
        if self.factor > 1 {
            self.sizes().count() as u64
        } else {
            (self.max - self.min) / self.step + 1
        }
    }

    fn next(self, size: u64) -> Option<u64> {
        if self.factor > 1 {
            size.checked_mul(self.factor)
        } else {
            size.checked_add(self.step)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factor() {
        let sweep = Sweep {
            min: 8,
            max: 100,
            factor: 2,
            step: 1,
        };
        assert_eq!(sweep.sizes().collect::<Vec<_>>(), [8, 16, 32, 64]);
        assert_eq!((sweep.last(), sweep.len()), (64, 4));
        let wide = Sweep { factor: 8, ..sweep };
        assert_eq!(wide.sizes().collect::<Vec<_>>(), [8, 64]);
        assert_eq!(wide.warm_up().last(), Some(64));
    }

    #[test]
    fn step() {
        let sweep = Sweep {
            min: 8,
            max: 100,
            factor: 1,
            step: 40,
        };
        assert_eq!(sweep.sizes().collect::<Vec<_>>(), [8, 48, 88]);
        assert_eq!(sweep.warm_up().collect::<Vec<_>>(), [8, 16, 32, 64]);
        assert_eq!((sweep.last(), sweep.len()), (88, 3));
    }

    #[test]
    fn one_size_and_no_overflow() {
        assert_eq!(
            Sweep {
                min: 8,
                max: 8,
                factor: 1,
                step: 1
            }
            .len(),
            1
        );
        let top = Sweep {
            min: u64::MAX / 2,
            max: u64::MAX,
            factor: 3,
            step: 1,
        };
        assert_eq!(top.len(), 1);
    }
}
