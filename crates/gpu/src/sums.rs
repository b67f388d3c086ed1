//! Kernels for the most common reductions of two ranks, plain sums of some types. They pass what
//! the kernel of the plan passes, so ranks need not agree on them.

use spark_ccl_cuda::{Function, Kernels};
use spark_ccl_types::{Combine, DType};

use crate::layout::{Arguments, Scaling};
use crate::{Error, Kernel};

const TYPES: [(DType, [&str; 2]); 3] = [
    (DType::F16, ["sum_packets_f16", "sum_lines_f16"]),
    (DType::F32, ["sum_packets_f32", "sum_lines_f32"]),
    (DType::Bf16, ["sum_packets_bf16", "sum_lines_bf16"]),
];

/// By type: the kernels that pass packets and lines.
#[derive(Debug)]
pub(crate) struct Sums(Vec<[Function; 2]>);

impl Sums {
    pub(crate) fn find(kernels: &Kernels) -> Result<Self, Error> {
        let of_type = |(_, [packets, lines]): (DType, [&str; 2])| {
            Ok([kernels.function(packets)?, kernels.function(lines)?])
        };
        TYPES
            .into_iter()
            .map(of_type)
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// The sum kernel that does the same as `kernel`, if there is one.
    pub(crate) fn of(&self, kernel: Kernel, arguments: &Arguments) -> Option<&Function> {
        let call = &arguments.call;
        let is_plain_sum = call.combine == Combine::Sum as u32
            && call.divisor == 1
            && call.scaling == Scaling::Plain as u32;
        let lines = match kernel {
            Kernel::OneShotPackets => 0,
            Kernel::OneShotLines => 1,
            _ => return None,
        };
        let is_this = |(dtype, _): &(DType, _)| u32::from(dtype.code()) == call.dtype;
        let at = TYPES.iter().position(is_this)?;
        (arguments.member.ranks == 2 && is_plain_sum).then(|| &self.0[at][lines])
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Function> {
        self.0.iter().flatten()
    }
}
