//! An adapter for mistral.rs, in the shape of its communicators: an arm of its `Comm` and `Id`
//! holds these. `docs/training.md` has the arm.

use std::ffi::c_char;

use candle_core::{Device, Result, Tensor};
use spark_ccl::{Communicator, UniqueId};

use crate::error::Error;
use crate::group::Group;
use crate::joining;

/// A rank among those that divide a model. Any number of ranks, on any devices: the rank need not
/// be the device's number.
#[derive(Debug, Clone)]
pub struct Comm {
    group: Group,
}

impl Comm {
    /// Joins the ranks. The device is that of the tensors.
    ///
    /// # Errors
    /// [`Error::Call`] if they do not come within `SPARK_CCL_INIT_TIMEOUT`, or do not agree.
    pub fn from_device(id: Id, device: &Device, rank: usize, world_size: usize) -> Result<Self> {
        let join = || {
            let id = UniqueId::from_bytes(&id.0.map(|byte| byte.to_ne_bytes()[0]))?;
            joining::builder(device)?.connect(&id, rank, world_size)
        };
        let comm = join().map_err(|source| Error::Call {
            rank,
            size: world_size,
            operation: "connect",
            tensor: "the ranks".to_owned(),
            source,
        })?;
        Ok(Self {
            group: Group::new(comm),
        })
    }

    /// This process's or thread's rank.
    pub fn rank(&self) -> usize {
        self.group.rank()
    }

    /// The number of ranks.
    pub fn world_size(&self) -> usize {
        self.group.size()
    }

    /// The sum of all ranks' tensors: contiguous, of f32, f16 or bf16.
    ///
    /// # Errors
    /// [`Error::Tensor`] and [`Error::Call`], which name the rank.
    pub fn sum_all_reduce(&self, tensor: &Tensor) -> Result<Tensor> {
        self.group.all_reduce(tensor, "sum_all_reduce")
    }

    /// All ranks' tensors, joined along a dimension.
    ///
    /// # Errors
    /// As [`sum_all_reduce`](Self::sum_all_reduce).
    pub fn all_gather(&self, tensor: &Tensor, dim: usize) -> Result<Tensor> {
        self.group.all_gather(tensor, dim, "all_gather")
    }

    /// Returns when all ranks have called it.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn barrier(&self) -> Result<()> {
        self.group
            .call("barrier", "the ranks", 0, |comm| comm.barrier().run())
    }
}

/// The id by which ranks meet: as long as NCCL's, so it is passed in the same way.
///
/// It holds a secret: pass it through a private channel.
#[derive(Clone, Copy)]
pub struct Id([c_char; UniqueId::LEN]);

impl Id {
    /// A new one, for one meeting. This process serves it, and is one of the ranks.
    ///
    /// # Errors
    /// [`Error::Call`] if no interface or port is free.
    pub fn new() -> Result<Self> {
        let id = Communicator::builder()
            .unique_id()
            .map_err(|source| Error::Call {
                rank: 0,
                size: 1,
                operation: "unique_id",
                tensor: "the ranks".to_owned(),
                source,
            })?;
        Ok(Self(
            id.as_bytes().map(|byte| c_char::from_ne_bytes([byte])),
        ))
    }

    /// The id that another rank has passed.
    pub fn uninit(internal: [c_char; UniqueId::LEN]) -> Self {
        Self(internal)
    }

    /// Its bytes.
    pub fn internal(&self) -> &[c_char; UniqueId::LEN] {
        &self.0
    }
}

impl std::fmt::Debug for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Id").finish_non_exhaustive()
    }
}
