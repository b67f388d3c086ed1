//! The parameters of a framework: how this crate reads and writes them, how all ranks get the same,
//! and how a difference is found. Knows no gradients.

use sha2::{Digest, Sha256};
use spark_ccl::Communicator;

use crate::agreement::{self, Complaint, Outcome, outliers};
use crate::error::Error;
use crate::model::{Model, TensorInfo};
use crate::values::Values;

/// An error of the framework.
pub type Problem = Box<dyn std::error::Error + Send + Sync>;

/// The parameters of a model, wherever a framework has them.
pub trait Parameters {
    /// The tensors, in the same order on all ranks and at all times. From a hash map, sort them by
    /// name.
    fn tensors(&self) -> Vec<TensorInfo>;

    /// Copies a tensor's elements, in the order of its shape, as bytes of its type. `bytes` has the
    /// tensor's size.
    ///
    /// # Errors
    /// The framework's.
    fn read(&self, tensor: usize, bytes: &mut [u8]) -> Result<(), Problem>;

    /// Replaces a tensor's elements, given as in [`read`](Self::read).
    ///
    /// # Errors
    /// The framework's.
    fn write(&mut self, tensor: usize, bytes: &[u8]) -> Result<(), Problem>;
}

/// A tensor in host memory. A `Vec` of them is [`Parameters`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct HostTensor {
    /// Its name, type and shape.
    pub info: TensorInfo,
    /// Its elements.
    pub values: Values,
}

impl HostTensor {
    /// A tensor with these elements.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the shape has another number of elements.
    pub fn new(name: &str, shape: &[usize], values: Values) -> Result<Self, Error> {
        let info = TensorInfo::new(name, values.dtype(), shape);
        if info.len() != values.len() {
            let len = values.len();
            return Err(Error::Invalid {
                what: "a tensor",
                problem: format!("{name:?} of shape {shape:?} has {len} elements"),
            });
        }
        Ok(Self { info, values })
    }
}

impl Parameters for Vec<HostTensor> {
    fn tensors(&self) -> Vec<TensorInfo> {
        self.iter().map(|tensor| tensor.info.clone()).collect()
    }

    fn read(&self, tensor: usize, bytes: &mut [u8]) -> Result<(), Problem> {
        bytes.copy_from_slice(self[tensor].values.bytes());
        Ok(())
    }

    fn write(&mut self, tensor: usize, bytes: &[u8]) -> Result<(), Problem> {
        self[tensor].values.bytes_mut().copy_from_slice(bytes);
        Ok(())
    }
}

/// Gives all ranks the parameters of `root`. Collective: compares the ranks' models first.
///
/// # Errors
/// The same on all ranks: [`Error::Model`] if the models differ; [`Error::Unable`] if a rank's
/// framework fails, after which some parameters may be replaced.
pub fn broadcast(
    comm: &Communicator,
    parameters: &mut impl Parameters,
    root: usize,
) -> Result<(), Error> {
    let model = agreed_model(comm, parameters)?;
    let mut written = Ok(());
    for (tensor, info) in model.tensors().iter().enumerate() {
        let read = written.and_then(|()| {
            if comm.rank() == root {
                bytes_of(parameters, tensor, info)
            } else {
                Ok(vec![0; info.bytes()])
            }
        });
        let mut bytes = agreement::all(comm, read, Error::Unable)?;
        let call = comm.broadcast_in_place(&mut bytes, root);
        call.by_any_path().named(&info.name).run()?;
        written = write(parameters, tensor, info, &bytes);
    }
    agreement::all(comm, written, Error::Unable)
}

/// The model of these parameters, which is the same on all ranks. Collective.
pub(crate) fn agreed_model(
    comm: &Communicator,
    parameters: &impl Parameters,
) -> Result<Model, Error> {
    let model = Model::new(parameters.tensors()).map_err(Complaint::from);
    let model = agreement::all(comm, model, Error::Unable)?;
    model.agree(comm)?;
    Ok(model)
}

/// Compares the contents of the parameters on all ranks, by hash. It reads them all, so it is for
/// now and then. Collective: compares the ranks' models first.
///
/// # Errors
/// The same on all ranks: [`Error::Contents`] with the first tensor that differs, and the first
/// rank that has another one than most ranks; [`Error::Model`] if the models differ;
/// [`Error::Unable`] if a rank's framework fails.
pub fn compare(comm: &Communicator, parameters: &impl Parameters) -> Result<(), Error> {
    let model = agreed_model(comm, parameters)?;
    let hash = |(tensor, info)| Ok(Sha256::digest(bytes_of(parameters, tensor, info)?));
    let hashes = model.tensors().iter().enumerate().map(hash);
    let hashes = hashes.collect::<Outcome<Vec<_>>>();
    let hashes = agreement::all(comm, hashes, Error::Unable)?.concat();
    let own = Sha256::digest(&hashes);
    let mut all = vec![0; own.len() * comm.size()];
    let call = comm.all_gather(&own[..], &mut all);
    call.by_any_path().named("hash of all parameters").run()?;
    if all.chunks(own.len()).all(|other| other == &own[..]) {
        return Ok(());
    }
    let mut all = vec![0; hashes.len() * comm.size()];
    let call = comm.all_gather(&hashes, &mut all);
    call.by_any_path().named("hashes of parameters").run()?;
    for (tensor, info) in model.tensors().iter().enumerate() {
        let of_rank = |rank: &[u8]| rank[tensor * own.len()..][..own.len()].to_owned();
        let hashes: Vec<_> = all.chunks(hashes.len()).map(of_rank).collect();
        if let Some(rank) = outliers(&hashes).next() {
            let problem = "has other contents than on most ranks; give all ranks those of one of \
                           them, or go on from the last checkpoint";
            let complaint = Complaint::of(&info.name, problem.to_owned());
            return Err(Error::Contents(complaint.culprit(comm, rank)?));
        }
    }
    Ok(())
}

/// A tensor's bytes.
pub(crate) fn bytes_of(
    parameters: &(impl Parameters + ?Sized),
    tensor: usize,
    info: &TensorInfo,
) -> Outcome<Vec<u8>> {
    let mut bytes = vec![0; info.bytes()];
    let read = parameters.read(tensor, &mut bytes);
    read.map_err(|problem| failed(info, "read", &problem))?;
    Ok(bytes)
}

/// Replaces a tensor.
pub(crate) fn write(
    parameters: &mut (impl Parameters + ?Sized),
    tensor: usize,
    info: &TensorInfo,
    bytes: &[u8],
) -> Outcome<()> {
    let written = parameters.write(tensor, bytes);
    written.map_err(|problem| failed(info, "written", &problem))
}

fn failed(info: &TensorInfo, what: &str, problem: &Problem) -> Complaint {
    Complaint::of(&info.name, format!("could not be {what}: {problem}"))
}
