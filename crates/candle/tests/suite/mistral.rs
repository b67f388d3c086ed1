//! The adapter for mistral.rs, in the shape in which it is used there.

use std::ffi::c_char;
use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor};
use spark_ccl_candle::mistral::{Comm, Id};

use crate::{apart, numbers};

/// How mistral.rs names what it needs of a communicator.
trait Needed: Send + Sync + std::fmt::Debug + Sized {
    fn from_device(id: Id, device: &Device, rank: usize, world_size: usize) -> Result<Self>;
    fn rank(&self) -> usize;
    fn world_size(&self) -> usize;
    fn sum_all_reduce(&self, tensor: &Tensor) -> Result<Tensor>;
    fn all_gather(&self, tensor: &Tensor, dim: usize) -> Result<Tensor>;
    fn wait(&self) -> Result<()>;
}

impl Needed for Comm {
    fn from_device(id: Id, device: &Device, rank: usize, world_size: usize) -> Result<Self> {
        Self::from_device(id, device, rank, world_size)
    }
    fn rank(&self) -> usize {
        self.rank()
    }
    fn world_size(&self) -> usize {
        self.world_size()
    }
    fn sum_all_reduce(&self, tensor: &Tensor) -> Result<Tensor> {
        self.sum_all_reduce(tensor)
    }
    fn all_gather(&self, tensor: &Tensor, dim: usize) -> Result<Tensor> {
        self.all_gather(tensor, dim)
    }
    fn wait(&self) -> Result<()> {
        self.barrier()
    }
}

/// All ranks, as threads that get the id's bytes.
fn together<R: Send>(size: usize, work: impl Fn(Arc<Comm>) -> Result<R> + Sync) -> Vec<Result<R>> {
    let id = Id::new().unwrap();
    let bytes: [c_char; 128] = *id.internal();
    std::thread::scope(|scope| {
        let threads = (0..size).map(|rank| {
            let work = &work;
            scope.spawn(move || {
                let id = Id::uninit(bytes);
                work(Arc::new(<Comm as Needed>::from_device(
                    id,
                    &Device::Cpu,
                    rank,
                    size,
                )?))
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|it| it.join().unwrap()).collect()
    })
}

fn used<C: Needed>(comm: &C, size: usize) -> Result<()> {
    assert_eq!(comm.world_size(), size);
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let whole = |rank| (numbers(&[2, 3, 4], rank) * 4.0)?.round()?.to_dtype(dtype);
        let all = (0..size).map(whole).collect::<Result<Vec<_>>>()?;
        let own = &all[comm.rank()];
        let sum = all
            .iter()
            .skip(1)
            .try_fold(all[0].clone(), |sum, it| sum + it)?;
        assert_eq!(apart(&comm.sum_all_reduce(own)?, &sum), 0.0);
        for dim in 0..3 {
            let joined = Tensor::cat(&all, dim)?;
            let found = comm.all_gather(own, dim)?;
            assert_eq!((apart(&found, &joined), found.dtype()), (0.0, dtype));
        }
    }
    comm.wait()
}

#[test]
fn any_number_of_ranks_sums_gathers_and_waits() {
    for size in 1..=4 {
        for outcome in together(size, |comm| used(&*comm, size)) {
            outcome.unwrap();
        }
    }
}

#[test]
fn what_is_wrong_is_named() {
    let turned = together(2, |comm| comm.sum_all_reduce(&numbers(&[2, 3], 0).t()?));
    for (rank, outcome) in turned.into_iter().enumerate() {
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains(&format!("rank {rank} of 2")), "{error}");
        assert!(error.contains("contiguous"), "{error}");
    }
    let error = Comm::from_device(Id::uninit([0; 128]), &Device::Cpu, 1, 2).unwrap_err();
    assert!(
        error.to_string().contains("rank 1 of 2: connect"),
        "{error}"
    );
    // The id has a secret.
    assert_eq!(format!("{:?}", Id::new().unwrap()), "Id { .. }");
}
