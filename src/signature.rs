//! What an operation is, in two words that ranks compare.

use spark_ccl_compute::DType;

/// The operations of the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum Operation {
    AllReduce,
    AllGather,
    ReduceScatter,
    Broadcast,
    Reduce,
    Gather,
    Scatter,
    AllToAll,
    AllToAllV,
    Barrier,
    Send,
    Recv,
    SendRecv,
    Alloc,
}

impl Operation {
    const ALL: [(Self, &'static str); 14] = [
        (Self::AllReduce, "all_reduce"),
        (Self::AllGather, "all_gather"),
        (Self::ReduceScatter, "reduce_scatter"),
        (Self::Broadcast, "broadcast"),
        (Self::Reduce, "reduce"),
        (Self::Gather, "gather"),
        (Self::Scatter, "scatter"),
        (Self::AllToAll, "all_to_all"),
        (Self::AllToAllV, "all_to_all_v"),
        (Self::Barrier, "barrier"),
        (Self::Send, "send"),
        (Self::Recv, "recv"),
        (Self::SendRecv, "send_recv"),
        (Self::Alloc, "alloc"),
    ];

    pub(crate) fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        let mut all = Self::ALL.iter();
        all.find(|(_, known)| *known == name)
            .map(|(operation, _)| *operation)
    }

    /// Whether the operation has a root.
    pub(crate) fn is_rooted(self) -> bool {
        matches!(
            self,
            Self::Broadcast | Self::Reduce | Self::Gather | Self::Scatter
        )
    }

    /// Whether its steps follow from its signature.
    pub(crate) fn has_schedule(self) -> bool {
        !matches!(
            self,
            Self::AllToAllV | Self::Send | Self::Recv | Self::SendRecv
        )
    }

    /// The buffers of which ranks read and write each other's, one or two, where they are registered and the
    /// operation has a one-sided form.
    pub(crate) fn shared(self, in_place: bool) -> Option<[Side; 2]> {
        match self {
            Self::AllReduce => Some([Side::Input, Side::Output]),
            Self::Broadcast => Some([Side::Output; 2]),
            Self::AllGather | Self::Gather if in_place => Some([Side::Output; 2]),
            Self::AllToAll if in_place => None,
            Self::Scatter if !in_place => None,
            Self::AllGather
            | Self::Gather
            | Self::ReduceScatter
            | Self::Reduce
            | Self::AllToAll
            | Self::Scatter => Some([Side::Input; 2]),
            Self::Barrier
            | Self::Alloc
            | Self::AllToAllV
            | Self::Send
            | Self::Recv
            | Self::SendRecv => None,
        }
    }

    /// Whether the operation reduces.
    pub(crate) fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::ReduceScatter | Self::Reduce)
    }
}

/// A buffer of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Input,
    Output,
}

/// Everything that all ranks must agree on in one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Signature {
    pub(crate) operation: Operation,
    pub(crate) dtype: DType,
    /// [`Reduction::code`](crate::redop::Reduction::code).
    pub(crate) op: u8,
    /// In place, where all ranks or none must be.
    pub(crate) in_place: bool,
    pub(crate) root: u32,
    /// Elements; 0 for operations whose counts differ between ranks.
    pub(crate) count: u64,
    /// 0 for ordinary memory; else a hash of the registered regions and offsets.
    pub(crate) place: u64,
}

const COUNT_BITS: u32 = 48;
const OP_NAMES: [&str; 6] = ["sum", "prod", "max", "min", "avg", "premulsum"];

impl Signature {
    /// Word 0: operation, dtype, op, in place, root; word 1: count and place.
    pub(crate) fn words(self) -> [u64; 2] {
        let head = u64::from(self.operation as u8)
            | u64::from(self.dtype as u8) << 8
            | u64::from(self.op) << 16
            | u64::from(self.in_place) << 24
            | u64::from(self.root) << 32;
        let count = self.count & ((1 << COUNT_BITS) - 1);
        [head, count | self.place << COUNT_BITS]
    }

    /// A digest of all of it for message tags. Not an integrity check: it tells calls apart.
    pub(crate) fn digest(self) -> u32 {
        mix(self.words()) ^ (self.place >> 32) as u32
    }
}

fn mix(words: [u64; 2]) -> u32 {
    let mixed = (words[0] ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xff51_afd7_ed55_8ccd)
        ^ words[1].wrapping_mul(0xc4ce_b9fe_1a85_ec53).rotate_left(31);
    let mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0x9fb2_1c65_1e98_df25);
    (mixed >> 32) as u32
}

/// A signature in words, for error messages of any rank.
pub(crate) fn describe(words: [u64; 2]) -> String {
    let byte = |shift: u32| (words[0] >> shift) as u8;
    let Some(&(operation, name)) = Operation::ALL.get(usize::from(byte(0))) else {
        return format!("an unknown operation ({:#x}, {:#x})", words[0], words[1]);
    };
    if operation == Operation::Barrier {
        return name.to_owned();
    }
    let mut parts = Vec::new();
    if operation != Operation::AllToAllV {
        parts.push(format!("count {}", words[1] & ((1 << COUNT_BITS) - 1)));
    }
    parts.push(match DType::from_code(byte(8)) {
        Some(dtype) => dtype.name().to_owned(),
        None => format!("type {}", byte(8)),
    });
    if operation.reduces() {
        let op = OP_NAMES.get(usize::from(byte(16))).unwrap_or(&"unknown op");
        parts.push((*op).to_owned());
    }
    if operation.is_rooted() {
        parts.push(format!("root {}", words[0] >> 32));
    }
    if byte(24) != 0 {
        parts.push("in place".to_owned());
    }
    let place = words[1] >> COUNT_BITS;
    if place != 0 {
        parts.push(format!("registered memory #{place:04x}"));
    }
    format!("{name}({})", parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Peers announce theirs.
        #[test]
        fn any_words_are_described(head: u64, operation in 0_u64..16, tail: u64) {
            for head in [head, head & !0xff | operation] {
                prop_assert!(!describe([head, tail]).is_empty());
            }
        }
    }

    #[test]
    fn every_operation_stands_at_its_number() {
        for (index, (operation, _)) in Operation::ALL.iter().enumerate() {
            assert_eq!(*operation as usize, index);
        }
    }

    #[test]
    fn words_tell_every_field_apart() {
        let base = Signature {
            operation: Operation::Broadcast,
            dtype: DType::F32,
            op: 0,
            in_place: false,
            root: 1,
            count: 17,
            place: 0,
        };
        let others = [
            Signature {
                operation: Operation::Reduce,
                ..base
            },
            Signature {
                dtype: DType::F64,
                ..base
            },
            Signature { op: 2, ..base },
            Signature {
                in_place: true,
                ..base
            },
            Signature { root: 2, ..base },
            Signature { count: 18, ..base },
            Signature { place: 9, ..base },
        ];
        for other in others {
            assert_ne!(base.words(), other.words());
            assert_ne!(base.digest(), other.digest());
        }
        assert_eq!(describe(base.words()), "broadcast(count 17, float, root 1)");
    }
}
