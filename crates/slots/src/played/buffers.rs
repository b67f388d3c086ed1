//! Calls, their buffers, and the expected results.

use spark_ccl_testing::scramble;
use spark_ccl_types::{DType, Extent, Operation, ReduceOp, Side};

use super::oracle;
use crate::Form;
use crate::plan::MOST_BY_PACKETS;

#[derive(Debug, Clone, Copy)]
pub(super) struct Call {
    pub(super) operation: Operation,
    pub(super) root: usize,
    pub(super) dtype: DType,
    pub(super) op: ReduceOp,
    /// The elements of a block.
    pub(super) count: usize,
    pub(super) piece: usize,
    pub(super) ctas: u32,
    pub(super) in_place: bool,
    /// Whether each rank's input has a factor.
    pub(super) is_scaled: bool,
    /// The seed of the elements.
    pub(super) seed: u64,
    pub(super) word: u64,
}

impl Call {
    pub(super) fn bytes(&self) -> usize {
        self.count * self.dtype.size()
    }

    /// The form that the call takes: `form`, if its operation has that.
    pub(super) fn form(&self, form: Form, ranks: usize) -> Form {
        let has = Form::of(self.operation).contains(&form);
        let has = has && (ranks > 2 || !self.operation.is_rooted());
        if has { form } else { Form::Direct }
    }

    /// Whether the call may go by packets.
    pub(super) fn is_short(&self) -> bool {
        !self.operation.is_rooted() && self.bytes() as u64 <= MOST_BY_PACKETS
    }

    pub(super) fn factor(&self, rank: usize) -> u64 {
        scramble(self.seed ^ 0x77, rank as u64)
    }

    pub(super) fn stride(&self, side: Side) -> usize {
        match self.operation.extent(side) {
            Extent::Blocks => self.bytes(),
            _ => 0,
        }
    }

    fn len(&self, side: Side, rank: usize, ranks: usize) -> usize {
        let blocks = if self.stride(side) > 0 { ranks } else { 1 };
        let is_used = self.operation.uses(side, rank == self.root);
        usize::from(is_used) * blocks * self.bytes()
    }

    fn input(&self, rank: usize, ranks: usize) -> Vec<u8> {
        let bytes = 0..self.len(Side::Input, rank, ranks) as u64;
        let bytes = bytes.map(|at| scramble(self.seed << 8 ^ at, rank as u64) as u8);
        bytes.collect()
    }

    fn sum(&self, ranks: usize) -> Vec<u8> {
        let inputs = (0..ranks).map(|rank| {
            let input = self.input(rank, ranks);
            if !self.is_scaled {
                return input;
            }
            oracle::scaled(self.dtype, self.factor(rank), &input)
        });
        let inputs: Vec<_> = inputs.collect();
        let inputs: Vec<_> = inputs.iter().map(|input| &input[..]).collect();
        oracle::reduced(self.dtype, self.op, &inputs)
    }

    /// The expected output of a rank; empty if it has no output.
    pub(super) fn expected(&self, rank: usize, ranks: usize) -> Vec<u8> {
        use Operation::{AllReduce, AllToAll, Broadcast, Reduce, ReduceScatter, Scatter};
        let block = |of: Vec<u8>, rank| of[rank * self.bytes()..][..self.bytes()].to_vec();
        let inputs = || (0..ranks).map(|from| self.input(from, ranks));
        if !self.operation.uses(Side::Output, rank == self.root) {
            return Vec::new();
        }
        match self.operation {
            AllReduce | Reduce => self.sum(ranks),
            ReduceScatter => block(self.sum(ranks), rank),
            AllToAll => inputs().flat_map(|input| block(input, rank)).collect(),
            Broadcast => self.input(self.root, ranks),
            Scatter => block(self.input(self.root, ranks), rank),
            _ => inputs().flatten().collect(),
        }
    }
}

/// The bytes around buffers, which nothing may write.
const AROUND: u8 = 0xa5;
const MARGIN: usize = 32;

/// A rank's buffers of a call: they begin anywhere. In place, the shorter one is this rank's block
/// of the other one.
pub(super) struct Buffers {
    memory: [Vec<u8>; 2],
    before: [Vec<u8>; 2],
    /// The memory that the input is in, and where it begins.
    input: (usize, usize),
    output: (usize, usize),
    len: usize,
    /// The rank's own factor.
    factor: Vec<u64>,
    pub(super) call: Call,
    pub(super) rank: usize,
}

impl Buffers {
    pub(super) fn new(call: Call, rank: usize, ranks: usize) -> Self {
        let size = call.dtype.size();
        let start = MARGIN + scramble(call.seed, rank as u64) as usize % 16 / size * size;
        let [input, output] = [Side::Input, Side::Output];
        let [sent, got] = [input, output].map(|side| call.len(side, rank, ranks));
        let own = rank * call.bytes();
        let (input, output) = match (call.in_place && sent > 0 && got > 0, sent.cmp(&got)) {
            (false, _) => ((0, start), (1, start)),
            (true, std::cmp::Ordering::Less) => ((0, start + own), (0, start)),
            (true, std::cmp::Ordering::Greater) => ((0, start), (0, start + own)),
            (true, std::cmp::Ordering::Equal) => ((0, start), (0, start)),
        };
        let whole = start + sent.max(got) + MARGIN;
        let mut memory = [vec![AROUND; whole], vec![AROUND; whole]];
        memory[0][input.1..][..sent].copy_from_slice(&call.input(rank, ranks));
        Self {
            before: memory.clone(),
            memory,
            input,
            output,
            len: got,
            factor: vec![call.factor(rank)],
            call,
            rank,
        }
    }

    pub(super) fn addresses(&mut self) -> [u64; 2] {
        [self.input, self.output].map(|(memory, start)| {
            let start = self.memory[memory][start..].as_mut_ptr();
            start.expose_provenance() as u64
        })
    }

    /// The address of the rank's factor.
    pub(super) fn factor_at(&self) -> u64 {
        self.factor.as_ptr().expose_provenance() as u64
    }

    /// The result, if nothing else was written.
    pub(super) fn result(&self) -> Option<&[u8]> {
        let (memory, start) = self.output;
        let range = start..start + self.len;
        let mut expected = self.before.clone();
        expected[memory][range.clone()].copy_from_slice(&self.memory[memory][range.clone()]);
        (expected == self.memory).then(|| &self.memory[memory][range])
    }

    /// Whether nothing was written at all.
    pub(super) fn is_untouched(&self) -> bool {
        self.memory == self.before
    }
}
