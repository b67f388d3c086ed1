//! Operations on matrices in row-major order, and their derivatives.

/// Added to mean squares, so that rows of zeros can be normalised.
const EPSILON: f32 = 1e-5;

/// `out += a * b`, where `a` has rows of `inner` and `b` of `cols` numbers.
pub(crate) fn multiply(out: &mut [f32], a: &[f32], b: &[f32], inner: usize, cols: usize) {
    for (out, a) in out.chunks_exact_mut(cols).zip(a.chunks_exact(inner)) {
        for (&a, b) in a.iter().zip(b.chunks_exact(cols)) {
            add_scaled(out, b, a);
        }
    }
}

/// The derivatives of [`multiply`]: adds those of `a` and `b`, for that of its result.
pub(crate) fn multiply_back(
    result: &[f32],
    (a, a_back): (&[f32], &mut [f32]),
    (b, b_back): (&[f32], &mut [f32]),
    inner: usize,
    cols: usize,
) {
    let rows = result.chunks_exact(cols).zip(a.chunks_exact(inner));
    for ((result, a), a_back) in rows.zip(a_back.chunks_exact_mut(inner)) {
        let weights = b.chunks_exact(cols).zip(b_back.chunks_exact_mut(cols));
        for ((&a, a_back), (b, b_back)) in a.iter().zip(a_back).zip(weights) {
            *a_back += dot(result, b);
            add_scaled(b_back, result, a);
        }
    }
}

/// Each row divided by the root of its mean square, times `gain`.
pub(crate) fn normalise(x: &[f32], gain: &[f32]) -> Vec<f32> {
    let rows = x.chunks_exact(gain.len()).flat_map(|x| {
        let inverse = inverse_root(x);
        x.iter().zip(gain).map(move |(x, gain)| x * inverse * gain)
    });
    rows.collect()
}

/// The derivatives of [`normalise`].
pub(crate) fn normalise_back(
    result: &[f32],
    (x, x_back): (&[f32], &mut [f32]),
    (gain, gain_back): (&[f32], &mut [f32]),
) {
    let width = gain.len();
    let rows = result.chunks_exact(width).zip(x.chunks_exact(width));
    for ((result, x), x_back) in rows.zip(x_back.chunks_exact_mut(width)) {
        let inverse = inverse_root(x);
        let common: f32 = (0..width).map(|it| result[it] * gain[it] * x[it]).sum();
        let common = common * inverse.powi(3) / width as f32;
        for it in 0..width {
            gain_back[it] += result[it] * x[it] * inverse;
            x_back[it] += result[it] * gain[it] * inverse - x[it] * common;
        }
    }
}

fn inverse_root(x: &[f32]) -> f32 {
    1.0 / (dot(x, x) / x.len() as f32 + EPSILON).sqrt()
}

/// The activation: `x` times its logistic function.
pub(crate) fn activate(x: f32) -> f32 {
    x * logistic(x)
}

/// The derivative of [`activate`].
pub(crate) fn activate_back(x: f32) -> f32 {
    let logistic = logistic(x);
    logistic * (1.0 + x * (1.0 - logistic))
}

fn logistic(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// Turns numbers into shares of 1, in proportion to their exponentials.
pub(crate) fn softmax(x: &mut [f32]) {
    let most = x.iter().copied().fold(f32::MIN, f32::max);
    for it in &mut *x {
        *it = (*it - most).exp();
    }
    let sum: f32 = x.iter().sum();
    for it in x {
        *it /= sum;
    }
}

/// `out += x * factor`.
pub(crate) fn add_scaled(out: &mut [f32], x: &[f32], factor: f32) {
    out.iter_mut()
        .zip(x)
        .for_each(|(out, x)| *out += x * factor);
}

/// In eight sums, which the compiler turns into one of vectors.
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0; 8];
    let (a, a_rest) = a.as_chunks::<8>();
    let (b, b_rest) = b.as_chunks::<8>();
    for (a, b) in a.iter().zip(b) {
        for lane in 0..8 {
            sums[lane] += a[lane] * b[lane];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}
