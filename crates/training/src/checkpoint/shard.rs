//! The file of a rank: parts of tensors, with parameters and the optimizer's states as `f32`. All
//! numbers are little-endian.

const MAGIC: [u8; 8] = *b"sparkshd";
const VERSION: u32 = 1;
/// More states than any optimizer has.
const MOST_STATES: u64 = 1 << 8;

/// The name of a rank's file.
pub(super) fn file_name(rank: usize, ranks: usize) -> String {
    format!("shard-{rank}-of-{ranks}")
}

/// A rank's part of a checkpoint.
#[derive(Debug, PartialEq)]
pub(crate) struct Shard {
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    pub(crate) step: u64,
    pub(crate) fingerprint: [u8; 32],
    pub(crate) records: Vec<Record>,
}

/// A part of a tensor.
#[derive(Debug, PartialEq)]
pub(crate) struct Record {
    pub(crate) tensor: usize,
    /// Its first element within the tensor.
    pub(crate) begin: usize,
    pub(crate) parameters: Vec<f32>,
    pub(crate) states: Vec<Vec<f32>>,
}

impl Shard {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(self.fingerprint);
        for number in [
            self.rank as u64,
            self.ranks as u64,
            self.step,
            self.records.len() as u64,
        ] {
            bytes.extend(number.to_le_bytes());
        }
        for record in &self.records {
            let len = record.parameters.len();
            for number in [record.tensor, record.begin, len, record.states.len()] {
                bytes.extend((number as u64).to_le_bytes());
            }
            for numbers in std::iter::once(&record.parameters).chain(&record.states) {
                bytes.extend(numbers.iter().flat_map(|it| it.to_le_bytes()));
            }
        }
        bytes
    }

    /// Reads any bytes.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let mut reader = Reader(bytes);
        if reader.take(MAGIC.len())? != MAGIC {
            return Err("is no shard of a checkpoint".to_owned());
        }
        let version = u32::from_le_bytes(reader.array()?);
        if version != VERSION {
            return Err(format!(
                "has version {version}, and this build reads {VERSION}"
            ));
        }
        let fingerprint = reader.array()?;
        let [rank, ranks, step, count] = reader.numbers()?;
        let mut records = Vec::new();
        for _ in 0..count {
            let [tensor, begin, len, states] = reader.numbers()?;
            if states > MOST_STATES {
                return Err(format!("has {states} states of tensor {tensor}"));
            }
            let len = usize::try_from(len).map_err(|_| reader.truncated())?;
            records.push(Record {
                tensor: tensor as usize,
                begin: begin as usize,
                parameters: reader.floats(len)?,
                states: (0..states)
                    .map(|_| reader.floats(len))
                    .collect::<Result<_, _>>()?,
            });
        }
        if !reader.0.is_empty() {
            return Err(format!("has {} bytes too many", reader.0.len()));
        }
        Ok(Self {
            rank: rank as usize,
            ranks: ranks as usize,
            step,
            fingerprint,
            records,
        })
    }
}

/// The bytes that are left.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], String> {
        let (taken, rest) = self
            .0
            .split_at_checked(len)
            .ok_or_else(|| self.truncated())?;
        self.0 = rest;
        Ok(taken)
    }

    fn truncated(&self) -> String {
        format!(
            "is truncated: {} bytes are left where more are needed",
            self.0.len()
        )
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn numbers<const N: usize>(&mut self) -> Result<[u64; N], String> {
        let mut numbers = [0; N];
        for number in &mut numbers {
            *number = u64::from_le_bytes(self.array()?);
        }
        Ok(numbers)
    }

    /// Memory is taken only for what is there.
    fn floats(&mut self, len: usize) -> Result<Vec<f32>, String> {
        let bytes = len
            .checked_mul(size_of::<f32>())
            .ok_or_else(|| self.truncated())?;
        let (numbers, _) = self.take(bytes)?.as_chunks();
        Ok(numbers.iter().map(|it| f32::from_le_bytes(*it)).collect())
    }
}
