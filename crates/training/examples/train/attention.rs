//! Causal attention of several heads, and its derivative.

use crate::ops::{add_scaled, dot, softmax};

/// The sizes of a batch and of its heads.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    pub samples: usize,
    pub context: usize,
    pub width: usize,
    pub heads: usize,
}

impl Sizes {
    fn head(self) -> usize {
        self.width / self.heads
    }

    fn scale(self) -> f32 {
        1.0 / (self.head() as f32).sqrt()
    }

    /// Where a row's query (0), key (1) or value (2) of a head begins.
    fn place(self, row: usize, what: usize, head: usize) -> usize {
        (row * 3 + what) * self.width + head * self.head()
    }

    /// All samples and heads, with the sample's first row, and the first of its weights.
    fn each(self) -> impl Iterator<Item = (usize, usize, usize)> {
        let Self {
            samples,
            context,
            heads,
            ..
        } = self;
        (0..samples * heads)
            .map(move |it| (it / heads * context, it % heads, it * context * context))
    }
}

/// Returns the mixed values, and the weights with which each row mixes those up to its own.
/// `joint` has query, key and value of each row.
pub(crate) fn attend(joint: &[f32], sizes: Sizes) -> (Vec<f32>, Vec<f32>) {
    let Sizes {
        samples,
        context,
        width,
        heads,
    } = sizes;
    let (head_width, scale) = (sizes.head(), sizes.scale());
    let mut mixed = vec![0.0; samples * context * width];
    let mut weights = vec![0.0; samples * heads * context * context];
    for (first, head, place) in sizes.each() {
        for row in 0..context {
            let part = |row, what| &joint[sizes.place(first + row, what, head)..][..head_width];
            let weights = &mut weights[place + row * context..][..=row];
            for (other, weight) in weights.iter_mut().enumerate() {
                *weight = dot(part(row, 0), part(other, 1)) * scale;
            }
            softmax(weights);
            let out = &mut mixed[(first + row) * width + head * head_width..][..head_width];
            for (other, &weight) in weights.iter().enumerate() {
                add_scaled(out, part(other, 2), weight);
            }
        }
    }
    (mixed, weights)
}

/// The derivative by `joint`, for that of the mixed values.
pub(crate) fn attend_back(mixed: &[f32], joint: &[f32], weights: &[f32], sizes: Sizes) -> Vec<f32> {
    let Sizes { context, width, .. } = sizes;
    let (head_width, scale) = (sizes.head(), sizes.scale());
    let mut back = vec![0.0; joint.len()];
    for (first, head, place) in sizes.each() {
        for row in 0..context {
            let at = |row, what| sizes.place(first + row, what, head);
            let part = |row, what| &joint[at(row, what)..][..head_width];
            let weights = &weights[place + row * context..][..=row];
            let out = &mixed[(first + row) * width + head * head_width..][..head_width];
            let mut scores: Vec<_> = (0..=row).map(|other| dot(out, part(other, 2))).collect();
            let common = dot(&scores, weights);
            for (other, &weight) in weights.iter().enumerate() {
                scores[other] = weight * (scores[other] - common) * scale;
                add_scaled(&mut back[at(other, 2)..][..head_width], out, weight);
                add_scaled(
                    &mut back[at(row, 0)..][..head_width],
                    part(other, 1),
                    scores[other],
                );
                add_scaled(
                    &mut back[at(other, 1)..][..head_width],
                    part(row, 0),
                    scores[other],
                );
            }
        }
    }
    back
}
