//! Optimizers that change each element by itself, so that a rank can have any share of a tensor.
//! Knows no ranks.

use crate::model::TensorInfo;

/// An optimizer whose new value of an element depends only on that element: its parameter, its
/// gradient and its state. It computes in `f32`, also for parameters of 16 bits.
pub trait Optimizer {
    /// Its name in checkpoints.
    fn name(&self) -> &str;

    /// The names of its states in checkpoints. It has one number of each for every element, which
    /// is 0 at first.
    fn states(&self) -> &[&str];

    /// Changes a part of a tensor, in the `updates`-th change of its parameters, counted from 1. A
    /// step whose gradients were not finite changes nothing, and is not counted. All slices have
    /// one length; `states` has one for each of [`states`](Self::states).
    fn update(
        &self,
        updates: u64,
        tensor: &TensorInfo,
        parameters: &mut [f32],
        gradients: &[f32],
        states: &mut [Vec<f32>],
    );
}

/// Stochastic gradient descent with momentum.
#[derive(Debug, Clone, PartialEq)]
pub struct Sgd {
    /// The learning rate.
    pub rate: f32,
    /// The share of the last step that the next one keeps; 0 is none.
    pub momentum: f32,
    /// The weight decay, as a part of the gradient.
    pub decay: f32,
}

impl Sgd {
    /// With this learning rate and momentum, and no decay.
    pub fn new(rate: f32, momentum: f32) -> Self {
        Self {
            rate,
            momentum,
            decay: 0.0,
        }
    }
}

impl Optimizer for Sgd {
    fn name(&self) -> &'static str {
        "sgd"
    }

    fn states(&self) -> &[&str] {
        &["momentum"]
    }

    fn update(
        &self,
        _updates: u64,
        _tensor: &TensorInfo,
        parameters: &mut [f32],
        gradients: &[f32],
        states: &mut [Vec<f32>],
    ) {
        let [velocities] = states else { return };
        let elements = parameters.iter_mut().zip(gradients).zip(velocities);
        for ((parameter, gradient), velocity) in elements {
            *velocity = self.momentum * *velocity + gradient + self.decay * *parameter;
            *parameter -= self.rate * *velocity;
        }
    }
}

/// Adam with decoupled weight decay.
#[derive(Debug, Clone, PartialEq)]
pub struct AdamW {
    /// The learning rate.
    pub rate: f32,
    /// How much of the mean gradient a step keeps.
    pub beta1: f32,
    /// How much of the mean square gradient a step keeps.
    pub beta2: f32,
    /// Added to the root of the mean square.
    pub epsilon: f32,
    /// The weight decay.
    pub decay: f32,
}

impl AdamW {
    /// With this learning rate, and the usual values of the others: 0.9, 0.999, 1e-8, 0.01.
    pub fn new(rate: f32) -> Self {
        Self {
            rate,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            decay: 0.01,
        }
    }
}

impl Optimizer for AdamW {
    fn name(&self) -> &'static str {
        "adamw"
    }

    fn states(&self) -> &[&str] {
        &["mean", "mean square"]
    }

    fn update(
        &self,
        updates: u64,
        _tensor: &TensorInfo,
        parameters: &mut [f32],
        gradients: &[f32],
        states: &mut [Vec<f32>],
    ) {
        let [means, squares] = states else { return };
        let bias = |beta: f32| (1.0 - f64::from(beta).powf(updates as f64)) as f32;
        let (bias1, bias2) = (bias(self.beta1), bias(self.beta2));
        let elements = parameters.iter_mut().zip(gradients).zip(means).zip(squares);
        for (((parameter, gradient), mean), square) in elements {
            *mean = self.beta1 * *mean + (1.0 - self.beta1) * gradient;
            *square = self.beta2 * *square + (1.0 - self.beta2) * gradient * gradient;
            let step = *mean / bias1 / ((*square / bias2).sqrt() + self.epsilon);
            *parameter -= self.rate * (step + self.decay * *parameter);
        }
    }
}

#[cfg(test)]
mod tests {
    use spark_ccl::DType;

    use super::*;

    /// The parameter after each step, with these gradients.
    fn steps(optimizer: &impl Optimizer, gradients: &[f32]) -> Vec<f32> {
        let info = TensorInfo::new("x", DType::F32, &[1]);
        let mut parameter = [1.0];
        let mut states = vec![vec![0.0]; optimizer.states().len()];
        let gradients = (1..).zip(gradients);
        let steps = gradients.map(|(step, &gradient)| {
            optimizer.update(step, &info, &mut parameter, &[gradient], &mut states);
            parameter[0]
        });
        steps.collect()
    }

    fn assert_close(seen: &[f32], expected: &[f32]) {
        let is_close = |(one, other): (&f32, &f32)| (one - other).abs() < 1e-6;
        assert!(
            seen.iter().zip(expected).all(is_close),
            "{seen:?}, not {expected:?}"
        );
    }

    #[test]
    fn sgd() {
        assert_close(&steps(&Sgd::new(0.1, 0.0), &[1.0, 2.0]), &[0.9, 0.7]);
        // The second step is 0.5 + 2.
        assert_close(&steps(&Sgd::new(0.1, 0.5), &[1.0, 2.0]), &[0.9, 0.65]);
        let decaying = Sgd {
            decay: 0.5,
            ..Sgd::new(0.1, 0.0)
        };
        assert_close(&steps(&decaying, &[0.0, 0.0]), &[0.95, 0.9025]);
    }

    #[test]
    fn adamw() {
        // A constant gradient of any size makes steps of the learning rate.
        let plain = AdamW {
            decay: 0.0,
            ..AdamW::new(0.1)
        };
        assert_close(&steps(&plain, &[3.0, 3.0, 3.0]), &[0.9, 0.8, 0.7]);
        // By hand: the mean is 0.9 * 0.1 - 0.1 = -0.01, by bias -0.052632; the mean square is 1.
        assert_close(&steps(&plain, &[1.0, -1.0]), &[0.9, 0.905_263_2]);
        assert_close(&steps(&AdamW::new(0.1), &[0.0, 0.0]), &[0.999, 0.998_001]);
    }
}
