//! A transformer that predicts the next character, forward and backward, on one rank. It knows
//! nothing of other ranks: it hands each gradient over as soon as it has it.

use spark_ccl_training::{HostTensor, Values};

use crate::attention::{Sizes, attend, attend_back};
use crate::ops::{
    activate, activate_back, multiply, multiply_back, normalise, normalise_back, softmax,
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Tensors before those of the layers: of characters and of positions.
const FIRST: usize = 2;
/// Tensors of a layer.
const GAIN1: usize = 0;
const JOINT: usize = 1;
const PROJECTION: usize = 2;
const GAIN2: usize = 3;
const UP: usize = 4;
const DOWN: usize = 5;
const OF_LAYER: usize = 6;

pub(crate) struct Transformer {
    pub characters: usize,
    pub context: usize,
    pub width: usize,
    pub heads: usize,
    pub layers: usize,
}

/// A layer's values that the backward pass needs.
struct Layer {
    input: Vec<f32>,
    normal1: Vec<f32>,
    joint: Vec<f32>,
    weights: Vec<f32>,
    mixed: Vec<f32>,
    middle: Vec<f32>,
    normal2: Vec<f32>,
    up: Vec<f32>,
    active: Vec<f32>,
}

impl Transformer {
    /// The first parameters, from a seed.
    pub(crate) fn parameters(&self, seed: u64) -> Result<Vec<HostTensor>> {
        let (width, context) = (self.width, self.context);
        let mut tensors = vec![
            tensor("characters", &[self.characters, width], seed)?,
            tensor("positions", &[context, width], seed)?,
        ];
        for layer in 0..self.layers {
            for (name, shape) in [
                ("gain1", &[width][..]),
                ("joint", &[width, 3 * width]),
                ("projection", &[width, width]),
                ("gain2", &[width]),
                ("up", &[width, 4 * width]),
                ("down", &[4 * width, width]),
            ] {
                tensors.push(tensor(&format!("{layer}.{name}"), shape, seed)?);
            }
        }
        tensors.push(tensor("gain", &[width], seed)?);
        tensors.push(tensor("output", &[width, self.characters], seed)?);
        Ok(tensors)
    }

    /// Returns the sum of the losses of all predictions, in samples of `context + 1` characters
    /// each. Passes on the gradients of the sum times `scale`, in the order in which they become
    /// ready.
    pub(crate) fn learn<E>(
        &self,
        parameters: &[HostTensor],
        samples: &[&[u8]],
        scale: f32,
        mut ready: impl FnMut(usize, &[f32]) -> std::result::Result<(), E>,
    ) -> std::result::Result<f64, E> {
        let (width, last) = (self.width, FIRST + self.layers * OF_LAYER);
        let mut x = self.embed(parameters, samples);
        let mut layers = Vec::new();
        for layer in 0..self.layers {
            let (layer, output) = self.forward(parameters, layer, x, samples.len());
            layers.push(layer);
            x = output;
        }
        let normal = normalise(&x, values(parameters, last));
        let output = values(parameters, last + 1);
        let mut shares = vec![0.0; x.len() / width * self.characters];
        multiply(&mut shares, &normal, output, width, self.characters);
        let loss = self.loss(&mut shares, samples, scale);

        let (mut normal_back, mut output_back) = (zeros(&normal), zeros(output));
        let operands = (
            (&normal[..], &mut normal_back[..]),
            (output, &mut output_back[..]),
        );
        multiply_back(&shares, operands.0, operands.1, width, self.characters);
        ready(last + 1, &output_back)?;
        let gain = values(parameters, last);
        let (mut back, mut gain_back) = (zeros(&x), zeros(gain));
        normalise_back(&normal_back, (&x, &mut back), (gain, &mut gain_back));
        ready(last, &gain_back)?;
        for (number, layer) in layers.iter().enumerate().rev() {
            let first = FIRST + number * OF_LAYER;
            self.backward_to_middle(parameters, first, layer, &mut back, &mut ready)?;
            self.backward_to_input(parameters, first, layer, &mut back, &mut ready)?;
        }
        self.embed_back(parameters, samples, &back, ready)?;
        Ok(loss)
    }

    fn embed(&self, parameters: &[HostTensor], samples: &[&[u8]]) -> Vec<f32> {
        let (characters, positions) = (values(parameters, 0), values(parameters, 1));
        let rows = samples
            .iter()
            .flat_map(|sample| sample[..self.context].iter().enumerate());
        let x = rows.flat_map(|(position, &character)| {
            let row = |of: usize| of * self.width..(of + 1) * self.width;
            let pairs = characters[row(usize::from(character))].iter();
            pairs
                .zip(&positions[row(position)])
                .map(|(one, other)| one + other)
        });
        x.collect()
    }

    fn embed_back<E>(
        &self,
        parameters: &[HostTensor],
        samples: &[&[u8]],
        back: &[f32],
        mut ready: impl FnMut(usize, &[f32]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let mut tensors = [0, 1].map(|tensor| zeros(values(parameters, tensor)));
        let rows = samples
            .iter()
            .flat_map(|sample| sample[..self.context].iter().enumerate());
        for ((position, &character), back) in rows.zip(back.chunks_exact(self.width)) {
            for (tensor, row) in tensors.iter_mut().zip([usize::from(character), position]) {
                let row = &mut tensor[row * self.width..][..self.width];
                row.iter_mut().zip(back).for_each(|(own, it)| *own += it);
            }
        }
        ready(1, &tensors[1])?;
        ready(0, &tensors[0])
    }

    fn forward(
        &self,
        parameters: &[HostTensor],
        layer: usize,
        input: Vec<f32>,
        samples: usize,
    ) -> (Layer, Vec<f32>) {
        let width = self.width;
        let of = |tensor| values(parameters, FIRST + layer * OF_LAYER + tensor);
        let normal1 = normalise(&input, of(GAIN1));
        let mut joint = vec![0.0; input.len() * 3];
        multiply(&mut joint, &normal1, of(JOINT), width, 3 * width);
        let (mixed, weights) = attend(&joint, self.sizes(samples));
        let mut middle = input.clone();
        multiply(&mut middle, &mixed, of(PROJECTION), width, width);
        let normal2 = normalise(&middle, of(GAIN2));
        let mut up = vec![0.0; input.len() * 4];
        multiply(&mut up, &normal2, of(UP), width, 4 * width);
        let active: Vec<_> = up.iter().map(|&it| activate(it)).collect();
        let mut output = middle.clone();
        multiply(&mut output, &active, of(DOWN), 4 * width, width);
        let layer = Layer {
            input,
            normal1,
            joint,
            weights,
            mixed,
            middle,
            normal2,
            up,
            active,
        };
        (layer, output)
    }

    /// Turns the derivative by the layer's output, `back`, into that by its middle.
    fn backward_to_middle<E>(
        &self,
        parameters: &[HostTensor],
        first: usize,
        layer: &Layer,
        back: &mut [f32],
        ready: &mut impl FnMut(usize, &[f32]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let width = self.width;
        let of = |tensor| values(parameters, first + tensor);
        let (mut active_back, mut down_back) = (zeros(&layer.active), zeros(of(DOWN)));
        let active = (&layer.active[..], &mut active_back[..]);
        multiply_back(back, active, (of(DOWN), &mut down_back), 4 * width, width);
        ready(first + DOWN, &down_back)?;
        // So that the next one takes its memory.
        drop(down_back);
        for (back, &up) in active_back.iter_mut().zip(&layer.up) {
            *back *= activate_back(up);
        }
        let (mut normal_back, mut up_back) = (zeros(&layer.normal2), zeros(of(UP)));
        let normal = (&layer.normal2[..], &mut normal_back[..]);
        multiply_back(
            &active_back,
            normal,
            (of(UP), &mut up_back),
            width,
            4 * width,
        );
        ready(first + UP, &up_back)?;
        let mut gain_back = zeros(of(GAIN2));
        normalise_back(
            &normal_back,
            (&layer.middle, back),
            (of(GAIN2), &mut gain_back),
        );
        ready(first + GAIN2, &gain_back)
    }

    /// Turns the derivative by the layer's middle, `back`, into that by its input.
    fn backward_to_input<E>(
        &self,
        parameters: &[HostTensor],
        first: usize,
        layer: &Layer,
        back: &mut [f32],
        ready: &mut impl FnMut(usize, &[f32]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let width = self.width;
        let of = |tensor| values(parameters, first + tensor);
        let (mut mixed_back, mut projection_back) = (zeros(&layer.mixed), zeros(of(PROJECTION)));
        let mixed = (&layer.mixed[..], &mut mixed_back[..]);
        multiply_back(
            back,
            mixed,
            (of(PROJECTION), &mut projection_back),
            width,
            width,
        );
        ready(first + PROJECTION, &projection_back)?;
        drop(projection_back);
        let sizes = self.sizes(back.len() / width / self.context);
        let attention_back = attend_back(&mixed_back, &layer.joint, &layer.weights, sizes);
        let (mut normal_back, mut joint_back) = (zeros(&layer.normal1), zeros(of(JOINT)));
        let normal = (&layer.normal1[..], &mut normal_back[..]);
        multiply_back(
            &attention_back,
            normal,
            (of(JOINT), &mut joint_back),
            width,
            3 * width,
        );
        ready(first + JOINT, &joint_back)?;
        let mut gain_back = zeros(of(GAIN1));
        normalise_back(
            &normal_back,
            (&layer.input, back),
            (of(GAIN1), &mut gain_back),
        );
        ready(first + GAIN1, &gain_back)
    }

    /// The sum of the losses. Turns the scores of characters into the derivatives by them.
    fn loss(&self, scores: &mut [f32], samples: &[&[u8]], scale: f32) -> f64 {
        let targets = samples.iter().flat_map(|sample| &sample[1..]);
        let rows = scores.chunks_exact_mut(self.characters).zip(targets);
        let losses = rows.map(|(row, &target)| {
            softmax(row);
            let share = row[usize::from(target)];
            row[usize::from(target)] -= 1.0;
            for it in row.iter_mut() {
                *it *= scale;
            }
            -f64::from(share.max(f32::MIN_POSITIVE).ln())
        });
        losses.sum()
    }

    fn sizes(&self, samples: usize) -> Sizes {
        let Self {
            context,
            width,
            heads,
            ..
        } = *self;
        Sizes {
            samples,
            context,
            width,
            heads,
        }
    }
}

fn values(parameters: &[HostTensor], tensor: usize) -> &[f32] {
    parameters[tensor].values.get().unwrap_or(&[])
}

fn zeros(like: &[f32]) -> Vec<f32> {
    vec![0.0; like.len()]
}

/// A tensor with its first values: ones for gains, else random ones, the smaller the more of them
/// are added up.
fn tensor(name: &str, shape: &[usize], seed: u64) -> Result<HostTensor> {
    let len = shape.iter().product();
    let scale = 0.5 / (shape[0] as f32).sqrt();
    // A hash of the name, and a generator of pseudo-random numbers.
    let hash = |hash: u64, it: u8| (hash ^ u64::from(it)).wrapping_mul(0x0100_0000_01b3);
    let mut state = name.bytes().fold(seed ^ 0xcbf2_9ce4_8422_2325, hash);
    let mut random = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32 / (1_u64 << 23) as f32 - 1.0) * scale
    };
    let values = match shape {
        [_] => vec![1.0; len],
        _ => (0..len).map(|_| random()).collect(),
    };
    Ok(HostTensor::new(name, shape, Values::F32(values))?)
}
