//! Which tensors share a bucket, and when a bucket may be reduced. Knows no memory: a framework
//! with gradients elsewhere than in host memory makes buffers for these buckets itself.

use std::collections::BTreeMap;
use std::ops::Range;

use spark_ccl::DType;

use crate::error::Error;
use crate::model::Model;

/// A tensor's place in a bucket, in elements.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Part {
    /// The tensor's number in its model.
    pub tensor: usize,
    /// Where it begins in the bucket.
    pub begin: usize,
    /// Its length.
    pub len: usize,
}

impl Part {
    /// Its elements in the bucket.
    pub fn range(&self) -> Range<usize> {
        self.begin..self.begin + self.len
    }
}

/// Tensors whose gradients are reduced in one call.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Bucket {
    /// The type of all its elements.
    pub dtype: DType,
    /// Its tensors, one after the other.
    pub parts: Vec<Part>,
    /// Its elements.
    pub len: usize,
}

impl Bucket {
    fn new(dtype: DType) -> Self {
        Self {
            dtype,
            parts: Vec::new(),
            len: 0,
        }
    }

    fn bytes(&self) -> usize {
        self.len * self.dtype.size()
    }

    fn push(&mut self, tensor: usize, len: usize) {
        self.parts.push(Part {
            tensor,
            begin: self.len,
            len,
        });
        self.len += len;
    }
}

/// The buckets of a model. It is the same on all ranks if the model, the order and the size are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    buckets: Vec<Bucket>,
    /// Each tensor's bucket, and its place among the bucket's parts.
    places: Vec<(usize, usize)>,
}

impl Plan {
    /// Fills buckets with the tensors in this order, in which their gradients become ready. Each
    /// bucket has tensors of one type, and at most `most_bytes`, unless a single tensor is larger.
    /// `dtype_of` is the type in which gradients of tensors of a type are reduced.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the order does not have each tensor once.
    pub fn new(
        model: &Model,
        order: &[usize],
        most_bytes: usize,
        dtype_of: impl Fn(DType) -> DType,
    ) -> Result<Self, Error> {
        let mut sorted = order.to_owned();
        sorted.sort_unstable();
        if !sorted.into_iter().eq(0..model.tensors().len()) {
            let problem = format!(
                "{order:?} does not have each of the {} tensors once",
                model.tensors().len()
            );
            return Err(Error::Invalid {
                what: "the order of gradients",
                problem,
            });
        }
        let mut open: BTreeMap<u8, Bucket> = BTreeMap::new();
        let mut buckets = Vec::new();
        for &tensor in order {
            let info = &model.tensors()[tensor];
            let dtype = dtype_of(info.dtype);
            let bucket = open
                .entry(dtype.code())
                .or_insert_with(|| Bucket::new(dtype));
            let is_full = bucket.bytes() + info.len() * dtype.size() > most_bytes;
            if is_full && !bucket.parts.is_empty() {
                buckets.push(std::mem::replace(bucket, Bucket::new(dtype)));
            }
            bucket.push(tensor, info.len());
        }
        buckets.extend(open.into_values());
        // A bucket is complete with its last tensor, and calls are in the order of buckets.
        let mut ready = vec![0; order.len()];
        for (time, &tensor) in order.iter().enumerate() {
            ready[tensor] = time;
        }
        buckets.sort_by_key(|bucket| bucket.parts.last().map(|part| ready[part.tensor]));
        let mut places = vec![(0, 0); order.len()];
        for (number, bucket) in buckets.iter().enumerate() {
            for (place, part) in bucket.parts.iter().enumerate() {
                places[part.tensor] = (number, place);
            }
        }
        Ok(Self { buckets, places })
    }

    /// The buckets, in the order in which all ranks reduce them.
    pub fn buckets(&self) -> &[Bucket] {
        &self.buckets
    }

    /// The bucket of a tensor, and its place there.
    pub fn place(&self, tensor: usize) -> (usize, &Part) {
        let (bucket, part) = self.places[tensor];
        (bucket, &self.buckets[bucket].parts[part])
    }
}

/// Which gradients of a step are ready, and so which buckets may be reduced. All ranks reduce them
/// in the same order, so a complete bucket waits for those before it.
#[derive(Debug, Clone)]
pub struct Readiness {
    is_ready: Vec<bool>,
    /// The number of gradients in each bucket that are not ready.
    missing: Vec<usize>,
    /// The first bucket that is not being reduced.
    next: usize,
}

impl Readiness {
    /// No gradient is ready.
    pub fn new(plan: &Plan) -> Self {
        Self {
            is_ready: vec![false; plan.places.len()],
            missing: plan.buckets.iter().map(|it| it.parts.len()).collect(),
            next: 0,
        }
    }

    /// Whether a tensor's gradient is ready.
    pub fn is_ready(&self, tensor: usize) -> bool {
        self.is_ready[tensor]
    }

    /// Notes that a gradient is ready, and returns the buckets that can now be reduced.
    pub fn mark(&mut self, plan: &Plan, tensor: usize) -> Range<usize> {
        if !std::mem::replace(&mut self.is_ready[tensor], true) {
            self.missing[plan.places[tensor].0] -= 1;
        }
        let first = self.next;
        let complete = self.missing[first..]
            .iter()
            .take_while(|missing| **missing == 0);
        self.next += complete.count();
        first..self.next
    }

    /// The buckets that are left at the end of the backward pass, to be reduced with zeros for what
    /// is missing.
    pub fn rest(&mut self) -> Range<usize> {
        let first = std::mem::replace(&mut self.next, self.missing.len());
        first..self.next
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::TensorInfo;

    fn model(tensors: &[(usize, DType)]) -> Model {
        let tensors = tensors.iter().enumerate();
        let infos = tensors
            .map(|(number, &(len, dtype))| TensorInfo::new(number.to_string(), dtype, &[len]));
        Model::new(infos.collect()).unwrap()
    }

    fn some_tensors() -> impl Strategy<Value = Vec<(usize, DType)>> {
        let dtype = prop::sample::select(vec![DType::F32, DType::Bf16, DType::F64]);
        prop::collection::vec((0_usize..40, dtype), 1..30)
    }

    proptest! {
        #[test]
        fn every_tensor_has_one_place_in_a_bucket_of_its_type(
            tensors in some_tensors(), most in 0_usize..200, seed: u64,
        ) {
            let model = model(&tensors);
            let mut order: Vec<_> = (0..tensors.len()).collect();
            order.sort_by_key(|it| (*it as u64).wrapping_mul(seed | 1) % 31);
            let plan = Plan::new(&model, &order, most, |dtype| dtype).unwrap();
            let mut seen = vec![0; tensors.len()];
            for (number, bucket) in plan.buckets().iter().enumerate() {
                let mut end = 0;
                for part in &bucket.parts {
                    prop_assert_eq!(part.begin, end);
                    prop_assert_eq!((part.len, bucket.dtype), tensors[part.tensor]);
                    prop_assert_eq!(plan.place(part.tensor), (number, part));
                    seen[part.tensor] += 1;
                    end += part.len;
                }
                prop_assert_eq!(bucket.len, end);
                prop_assert!(bucket.parts.len() == 1 || bucket.bytes() <= most);
            }
            prop_assert!(seen.iter().all(|&it| it == 1));
        }

        #[test]
        fn every_bucket_is_reduced_once_and_in_order(
            tensors in some_tensors(), lacking in 0_usize..30,
        ) {
            let model = model(&tensors);
            let order: Vec<_> = (0..tensors.len()).rev().collect();
            let plan = Plan::new(&model, &order, 64, |dtype| dtype).unwrap();
            let mut readiness = Readiness::new(&plan);
            let mut reduced = 0;
            // The other way round than planned, and without one.
            for tensor in (0..tensors.len()).filter(|&it| it != lacking) {
                let buckets = readiness.mark(&plan, tensor);
                prop_assert_eq!(buckets.start, reduced);
                for bucket in buckets.clone() {
                    let mut parts = plan.buckets()[bucket].parts.iter();
                    prop_assert!(parts.all(|part| readiness.is_ready(part.tensor)));
                }
                reduced = buckets.end;
            }
            prop_assert_eq!(readiness.rest(), reduced..plan.buckets().len());
            prop_assert_eq!(readiness.rest().len(), 0);
        }
    }

    #[test]
    fn buckets_are_complete_in_the_order_of_gradients() {
        let model = model(&[
            (4, DType::F32),
            (4, DType::F64),
            (4, DType::F32),
            (4, DType::F32),
        ]);
        let plan = Plan::new(&model, &[3, 2, 1, 0], 32, |dtype| dtype).unwrap();
        let tensors = |bucket: &Bucket| bucket.parts.iter().map(|it| it.tensor).collect::<Vec<_>>();
        let buckets: Vec<_> = plan.buckets().iter().map(tensors).collect();
        assert_eq!(buckets, [vec![3, 2], vec![1], vec![0]]);
        let error = Plan::new(&model, &[3, 2, 1, 1], 32, |dtype| dtype).unwrap_err();
        assert!(error.to_string().contains("[3, 2, 1, 1]"), "{error}");
    }
}
