//! The last step of an integer average.

use spark_ccl_types::DType;

/// Divides `count` integers in place, rounding towards zero.
///
/// A divisor of 0 or 1 changes nothing. Floats are left unchanged: their average is a factor on
/// each source ([`Scale::Unrounded`](spark_ccl_types::Scale::Unrounded)).
///
/// # Safety
/// `ptr`, of any alignment, must be readable and writable for `count` elements of `dtype`, and
/// nothing else may access them meanwhile.
pub unsafe fn divide(dtype: DType, ptr: *mut u8, count: usize, divisor: u64) {
    if divisor <= 1 {
        return;
    }
    let signed = i64::try_from(divisor).unwrap_or(i64::MAX);
    // SAFETY: `ptr` is readable and writable for `count` elements of `dtype`, which nothing else
    // accesses: this function requires that. Each arm's closure takes an integer of this type, of
    // which any bits are a value.
    unsafe {
        match dtype {
            DType::I8 => map(ptr, count, |x: i8| (i64::from(x) / signed) as i8),
            DType::U8 => map(ptr, count, |x: u8| (u64::from(x) / divisor) as u8),
            DType::I32 => map(ptr, count, |x: i32| (i64::from(x) / signed) as i32),
            DType::U32 => map(ptr, count, |x: u32| (u64::from(x) / divisor) as u32),
            DType::I64 => map(ptr, count, |x: i64| x / signed),
            DType::U64 => map(ptr, count, |x: u64| x / divisor),
            DType::F16 | DType::F32 | DType::F64 | DType::Bf16 | DType::F8E4M3 | DType::F8E5M2 => {}
        }
    }
}

/// # Safety
/// `ptr` must be readable and writable for `count` elements of type `T`, with any alignment. Any
/// bits must be a value of `T`. Nothing else may access the elements meanwhile.
unsafe fn map<T: Copy>(ptr: *mut u8, count: usize, f: impl Fn(T) -> T) {
    let ptr = ptr.cast::<T>();
    for i in 0..count {
        // SAFETY: `i < count`, and `ptr` is readable and writable for `count` elements, of which
        // any bits are a value and which nothing else accesses: this function requires that. The
        // accesses need no alignment.
        unsafe {
            let x = ptr.add(i);
            x.write_unaligned(f(x.read_unaligned()));
        }
    }
}

#[cfg(test)]
mod tests {
    use spark_ccl_types::Element;

    use super::*;

    fn divided<T: Element, const N: usize>(mut values: [T; N], divisor: u64) -> [T; N] {
        // SAFETY: an array of N elements, borrowed exclusively.
        unsafe { divide(T::DTYPE, values.as_mut_ptr().cast(), N, divisor) };
        values
    }

    #[test]
    fn rounds_towards_zero() {
        assert_eq!(divided([7i8, -7, 127, -128], 2), [3, -3, 63, -64]);
        assert_eq!(divided([255u8, 1], 200), [1, 0]);
        assert_eq!(divided([i8::MIN, i8::MAX], 200), [0, 0]);
        assert_eq!(divided([i32::MIN, -5], 3), [i32::MIN / 3, -1]);
        assert_eq!(divided([u32::MAX], 3), [u32::MAX / 3]);
        assert_eq!(
            divided([i64::MIN, i64::MAX], 7),
            [i64::MIN / 7, i64::MAX / 7]
        );
        assert_eq!(divided([u64::MAX], u64::MAX), [1]);
    }

    #[test]
    fn leaves_floats_and_trivial_divisors_alone() {
        assert_eq!(divided([1.5f32], 2).map(f32::to_bits), [1.5f32.to_bits()]);
        assert_eq!(divided([5i32], 0), [5]);
        assert_eq!(divided([5i32], 1), [5]);
    }

    #[test]
    fn takes_any_alignment() {
        // Wherever the array lies, some of these places are aligned, and others not.
        for at in 0..8 {
            let mut bytes = [0u8; 16];
            bytes[at..at + 8].copy_from_slice(&100i64.to_ne_bytes());
            // SAFETY: 8 bytes of an array, borrowed exclusively.
            unsafe { divide(DType::I64, bytes.as_mut_ptr().add(at), 1, 3) };
            assert_eq!(bytes[at..at + 8], 33i64.to_ne_bytes());
        }
    }
}
