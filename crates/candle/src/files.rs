//! Parts of tensors from safetensors files: a rank reads only its own parts.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Result, Shape, Tensor};
use candle_nn::var_builder::{Backend, Shard, VarBuilderArgs};
use safetensors::tensor::{Metadata, TensorInfo};

use crate::error::Error;

/// No real file has a longer header; a damaged one may claim any length.
const LONGEST_HEADER: u64 = 100 << 20;

/// Tensors in safetensors files, for candle's builders.
///
/// ```no_run
/// use candle_core::{DType, Device};
/// use candle_nn::var_builder::Shard;
/// use spark_ccl_candle::Files;
///
/// # fn main() -> candle_core::Result<()> {
/// let weights = Files::of_folder("model")?.builder(DType::F32, &Device::Cpu);
/// let shard = Shard { dim: 0, rank: 1, world_size: 2 };
/// let second_half = weights.get_with_hints((32_000, 2048), "lm_head.weight", shard)?;
/// assert_eq!(second_half.dims(), [16_000, 2048]);
/// # Ok(())
/// # }
/// ```
pub struct Files {
    folder: PathBuf,
    opened: Vec<(PathBuf, File)>,
    tensors: HashMap<String, Place>,
}

/// Where a tensor is.
struct Place {
    file: usize,
    begin: u64,
    info: TensorInfo,
}

impl Files {
    /// All safetensors files of a folder, as Hugging Face has them.
    ///
    /// # Errors
    /// [`Error::File`] if there are none, one is damaged, or two have a tensor of one name.
    pub fn of_folder(folder: impl AsRef<Path>) -> Result<Self> {
        let folder = folder.as_ref();
        let entries = std::fs::read_dir(folder).map_err(|error| of_file(folder, error))?;
        let mut paths = Vec::new();
        for entry in entries {
            let path = entry.map_err(|error| of_file(folder, error))?.path();
            let is_one = path.extension().is_some_and(|it| it == "safetensors");
            paths.extend(is_one.then_some(path));
        }
        if paths.is_empty() {
            return Err(of_file(folder, "there are no files *.safetensors"));
        }
        // Folders are in no order; errors are about the same file on all ranks.
        paths.sort();
        let mut found = Self {
            folder: folder.to_owned(),
            opened: Vec::new(),
            tensors: HashMap::new(),
        };
        for path in paths {
            found.add(path)?;
        }
        Ok(found)
    }

    /// A builder of candle's, for models.
    pub fn builder(self, dtype: DType, device: &Device) -> VarBuilderArgs<'static, Self> {
        VarBuilderArgs::new_with_args(self, dtype, device)
    }

    fn add(&mut self, path: PathBuf) -> Result<()> {
        let mut file = File::open(&path).map_err(|error| of_file(&path, error))?;
        let wrong = |error: &dyn std::fmt::Display| of_file(&path, error);
        let whole = file.metadata().map_err(|error| wrong(&error))?.len();
        let mut header = vec![0; 8];
        file.read_exact(&mut header)
            .map_err(|error| wrong(&error))?;
        let length = u64::from_le_bytes(header[..8].try_into().unwrap_or_default());
        if length > whole.saturating_sub(8).min(LONGEST_HEADER) {
            let problem = format!("its header has {length} bytes, and the file {whole}: truncated");
            return Err(wrong(&problem));
        }
        header.resize(8 + length as usize, 0);
        file.read_exact(&mut header[8..])
            .map_err(|error| wrong(&error))?;
        let metadata: Metadata =
            serde_json::from_slice(&header[8..]).map_err(|error| wrong(&error))?;
        let begin = header.len() as u64;
        for (name, info) in metadata.tensors() {
            let end = begin.checked_add(info.data_offsets.1 as u64);
            if end.is_none_or(|end| end > whole) {
                let end = info.data_offsets.1;
                let problem = format!(
                    "{name} ends at byte {end} behind {begin} of the header, and the file has \
                     {whole}"
                );
                return Err(wrong(&problem));
            }
            if let Some(other) = self.tensors.get(&name) {
                let other = self.opened[other.file].0.display();
                return Err(wrong(&format!("the tensor {name} is in {other}, too")));
            }
            let begin = begin + info.data_offsets.0 as u64;
            let place = Place {
                file: self.opened.len(),
                begin,
                info: info.clone(),
            };
            self.tensors.insert(name, place);
        }
        self.opened.push((path, file));
        Ok(())
    }

    /// The bytes of a part of a tensor: `len` of every `row` bytes, from byte `skip` of each on.
    fn read(&self, place: &Place, rows: u64, row: u64, skip: u64, len: usize) -> Result<Vec<u8>> {
        let (path, file) = &self.opened[place.file];
        let mut bytes = vec![0; rows as usize * len];
        if len == 0 {
            return Ok(bytes);
        }
        for (own, at) in bytes.chunks_mut(len).zip(0..) {
            let at = place.begin + at * row + skip;
            file.read_exact_at(own, at)
                .map_err(|error| of_file(path, error))?;
        }
        Ok(bytes)
    }

    fn place(&self, name: &str) -> Result<&Place> {
        let missing = || of_file(&self.folder, format!("no file has the tensor {name}"));
        self.tensors.get(name).ok_or_else(missing)
    }

    /// A part of a tensor.
    fn part(&self, name: &str, shard: Shard, dtype: DType, device: &Device) -> Result<Tensor> {
        let place = self.place(name)?;
        let stored = DType::try_from(place.info.dtype)?;
        let mut dims = place.info.shape.clone();
        let Shard {
            dim,
            rank,
            world_size,
        } = shard;
        if rank >= world_size {
            let problem = format!("{name} in {world_size} parts has no part {rank}");
            return Err(of_file(&self.folder, problem));
        }
        // A number, too, which has no dimension.
        if world_size == 1 {
            let len = dims.iter().product::<usize>() * stored.size_in_bytes();
            let bytes = self.read(place, 1, 0, 0, len)?;
            return Tensor::from_raw_buffer(&bytes, stored, &dims, device)?.to_dtype(dtype);
        }
        let rank_has = dims
            .get(dim)
            .filter(|count| count.is_multiple_of(world_size));
        let Some(count) = rank_has.map(|count| count / world_size) else {
            let (size, what) = (world_size, name.to_owned());
            let count = dims.get(dim).copied().unwrap_or_default();
            Err(Error::Division {
                rank,
                size,
                what,
                count,
                parts: "rows or columns",
            })?
        };
        let behind: usize = dims[dim + 1..].iter().product();
        let unit = behind * stored.size_in_bytes();
        let rows: usize = dims[..dim].iter().product();
        let (row, len) = (unit * dims[dim], unit * count);
        let bytes = self.read(place, rows as u64, row as u64, (len * rank) as u64, len)?;
        dims[dim] = count;
        Tensor::from_raw_buffer(&bytes, stored, &dims, device)?.to_dtype(dtype)
    }
}

impl Backend for Files {
    type Hints = Shard;

    fn get(
        &self,
        shape: Shape,
        name: &str,
        shard: Shard,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        let seen = &self.place(name)?.info.shape;
        if shape.dims() != seen {
            let expected = shape.dims();
            let problem = format!("{name} has shape {seen:?}, and the model needs {expected:?}");
            return Err(of_file(&self.folder, problem));
        }
        self.part(name, shard, dtype, device)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, device: &Device) -> Result<Tensor> {
        self.part(name, Shard::default(), dtype, device)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }
}

fn of_file(path: &Path, problem: impl std::fmt::Display) -> candle_core::Error {
    let error = Error::File {
        path: path.to_owned(),
        problem: problem.to_string(),
    };
    error.into()
}
