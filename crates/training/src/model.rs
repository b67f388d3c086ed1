//! The tensors of a model in one order, and whether all ranks have the same. Knows no contents.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use spark_ccl::{Communicator, DType};

use crate::agreement::{self, Complaint};
use crate::error::Error;

/// The name, type and shape of a tensor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TensorInfo {
    /// Its name, unique in its model.
    pub name: String,
    /// The type of its elements.
    #[serde(with = "dtype_name")]
    pub dtype: DType,
    /// Its dimensions; none for a single number.
    pub shape: Vec<usize>,
}

impl TensorInfo {
    /// A tensor of this name, type and shape.
    pub fn new(name: impl Into<String>, dtype: DType, shape: &[usize]) -> Self {
        Self {
            name: name.into(),
            dtype,
            shape: shape.to_owned(),
        }
    }

    /// How many elements it has.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many bytes its elements take.
    pub fn bytes(&self) -> usize {
        self.len() * self.dtype.size()
    }
}

/// All tensors of a model, in one order. Cloning it copies no tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    tensors: Arc<Vec<TensorInfo>>,
}

impl Model {
    /// A model of these tensors, in this order.
    ///
    /// ```
    /// use spark_ccl::DType;
    /// use spark_ccl_training::{Model, TensorInfo};
    ///
    /// let weight = TensorInfo::new("weight", DType::F32, &[10, 4]);
    /// let bias = TensorInfo::new("bias", DType::F32, &[4]);
    /// assert!(Model::new(vec![weight.clone(), bias]).is_ok());
    /// assert!(Model::new(vec![weight.clone(), weight]).is_err(), "two of one name");
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for tensors of one name, or of more elements than memory has.
    pub fn new(tensors: Vec<TensorInfo>) -> Result<Self, Error> {
        let invalid = |problem| Error::Invalid {
            what: "a model",
            problem,
        };
        let mut numbers = BTreeMap::new();
        for (number, tensor) in tensors.iter().enumerate() {
            let name = &tensor.name;
            if let Some(first) = numbers.insert(name.clone(), number) {
                let problem = format!("tensors {first} and {number} are both named {name:?}");
                return Err(invalid(problem));
            }
            let mut dimensions = tensor.shape.iter();
            let size = dimensions.try_fold(tensor.dtype.size(), |size, it| size.checked_mul(*it));
            if size.is_none_or(|size| size > isize::MAX as usize) {
                let problem = format!("tensor {name:?} of shape {:?} is too large", tensor.shape);
                return Err(invalid(problem));
            }
        }
        Ok(Self {
            tensors: Arc::new(tensors),
        })
    }

    /// The tensors. The position of one is its number, by which it is known in calls.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// A hash of names, types, shapes and order: the same on every machine.
    pub fn fingerprint(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update(b"spark-ccl model 1");
        for tensor in self.tensors.iter() {
            hash.update((tensor.name.len() as u64).to_le_bytes());
            hash.update(&tensor.name);
            hash.update([tensor.dtype.code()]);
            hash.update((tensor.shape.len() as u64).to_le_bytes());
            for &dimension in &tensor.shape {
                hash.update((dimension as u64).to_le_bytes());
            }
        }
        hash.finalize().into()
    }

    /// Compares the models of all ranks. Collective.
    ///
    /// # Errors
    /// [`Error::Model`] on all ranks, with the first rank whose model is not that of rank 0, and
    /// the first tensor that differs.
    pub fn agree(&self, comm: &Communicator) -> Result<(), Error> {
        let own = self.fingerprint();
        let mut all = vec![0; own.len() * comm.size()];
        let call = comm.all_gather(&own, &mut all);
        call.by_any_path().named("model fingerprints").run()?;
        if all.chunks(own.len()).all(|other| other == own) {
            return Ok(());
        }
        let first = agreement::tell(comm, 0, &to_json(&*self.tensors))?;
        let first = serde_json::from_slice(&first).map_err(|error| Error::Invalid {
            what: "the model of rank 0",
            problem: error.to_string(),
        })?;
        let complaint = Self::new(first)?.first_difference(self, "on rank 0");
        agreement::check(comm, complaint, Error::Model)
    }

    /// The first difference of another model from this one, which is `place`.
    pub(crate) fn first_difference(&self, other: &Self, place: &str) -> Option<Complaint> {
        let pairs = self.tensors.iter().zip(other.tensors.iter()).enumerate();
        for (number, (expected, seen)) in pairs {
            let problem = if expected.name != seen.name {
                let elsewhere = other.tensors.iter().position(|it| it.name == expected.name);
                match elsewhere {
                    Some(elsewhere) => format!("is number {elsewhere}, but {number} {place}"),
                    None => format!("is missing; number {number} is {:?}", seen.name),
                }
            } else if expected.dtype != seen.dtype {
                format!("has type {}, but {} {place}", seen.dtype, expected.dtype)
            } else if expected.shape != seen.shape {
                format!(
                    "has shape {:?}, but {:?} {place}",
                    seen.shape, expected.shape
                )
            } else {
                continue;
            };
            return Some(Complaint::of(&expected.name, problem));
        }
        let (expected, seen) = (self.tensors.len(), other.tensors.len());
        let more = self.tensors.get(seen).or(other.tensors.get(expected))?;
        let problem = format!("is not in both: {seen} tensors, but {expected} {place}");
        Some(Complaint::of(&more.name, problem))
    }
}

/// A value as JSON. That can only fail for keys that are no texts, which this crate does not have.
pub(crate) fn to_json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

/// An element type in files and messages: its name.
mod dtype_name {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use spark_ccl::DType;

    #[allow(
        clippy::trivially_copy_pass_by_ref,
        reason = "serde passes a reference"
    )]
    pub(super) fn serialize<S: Serializer>(dtype: &DType, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(dtype.name())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<DType, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Described<'a> = &'a [(&'a str, DType, &'a [usize])];

    fn model(tensors: Described) -> Model {
        let tensors = tensors.iter();
        let tensors = tensors.map(|&(name, dtype, shape)| TensorInfo::new(name, dtype, shape));
        Model::new(tensors.collect()).unwrap()
    }

    #[test]
    fn the_first_difference_is_named() {
        let (f32, f16) = (DType::F32, DType::F16);
        let expected = model(&[("a", f32, &[2, 3]), ("b", f32, &[3])]);
        let cases: [(Described, &str, &str); 6] = [
            (
                &[("b", f32, &[3]), ("a", f32, &[2, 3])],
                "a",
                "is number 1, but 0 on rank 0",
            ),
            (&[("c", f32, &[2, 3])], "a", "is missing; number 0 is \"c\""),
            (
                &[("a", f16, &[2, 3])],
                "a",
                "has type half, but float on rank 0",
            ),
            (
                &[("a", f32, &[3, 2])],
                "a",
                "has shape [3, 2], but [2, 3] on rank 0",
            ),
            (
                &[("a", f32, &[2, 3])],
                "b",
                "is not in both: 1 tensors, but 2 on rank 0",
            ),
            (
                &[("a", f32, &[2, 3]), ("b", f32, &[3]), ("c", f32, &[])],
                "c",
                "is not in both: 3 tensors, but 2 on rank 0",
            ),
        ];
        for (tensors, tensor, problem) in cases {
            let other = model(tensors);
            assert_ne!(other.fingerprint(), expected.fingerprint());
            let found = expected.first_difference(&other, "on rank 0");
            assert_eq!(found, Some(Complaint::of(tensor, problem.to_owned())));
        }
        assert_eq!(expected.first_difference(&expected, "on rank 0"), None);
    }

    #[test]
    fn a_shape_whose_size_overflows_is_refused() {
        let tensor = TensorInfo::new("huge", DType::F32, &[usize::MAX / 2, 3]);
        let error = Model::new(vec![tensor]).unwrap_err().to_string();
        assert!(error.contains("\"huge\""), "{error}");
    }
}
