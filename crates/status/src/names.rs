//! The names that NCCL and PyTorch use for operations and element types.

use spark_ccl_types::{DType, Operation};

/// NCCL's name of an operation, or one in its style where it has none.
pub(crate) fn nccl(operation: Operation) -> &'static str {
    match operation {
        Operation::AllReduce => "AllReduce",
        Operation::AllGather => "AllGather",
        Operation::ReduceScatter => "ReduceScatter",
        Operation::Broadcast => "Broadcast",
        Operation::Reduce => "Reduce",
        Operation::Gather => "Gather",
        Operation::Scatter => "Scatter",
        Operation::AllToAll => "AlltoAll",
        Operation::AllToAllV => "AlltoAllV",
        Operation::Barrier => "Barrier",
        Operation::Send => "Send",
        Operation::Recv => "Recv",
        Operation::SendRecv => "SendRecv",
        Operation::Alloc => "Alloc",
    }
}

/// PyTorch's name of an operation; `None` if it has none.
pub(crate) fn torch(operation: Operation) -> Option<&'static str> {
    match operation {
        // Its all_to_all may have blocks of any length.
        Operation::AllToAllV => Some("all_to_all"),
        Operation::SendRecv | Operation::Alloc => None,
        Operation::AllReduce
        | Operation::AllGather
        | Operation::ReduceScatter
        | Operation::Broadcast
        | Operation::Reduce
        | Operation::Gather
        | Operation::Scatter
        | Operation::AllToAll
        | Operation::Barrier
        | Operation::Send
        | Operation::Recv => Some(operation.name()),
    }
}

/// PyTorch's name of an element type.
pub(crate) fn torch_type(dtype: DType) -> &'static str {
    match dtype {
        DType::I8 => "Char",
        DType::U8 => "Byte",
        DType::I32 => "Int",
        DType::U32 => "UInt32",
        DType::I64 => "Long",
        DType::U64 => "UInt64",
        DType::F16 => "Half",
        DType::F32 => "Float",
        DType::F64 => "Double",
        DType::Bf16 => "BFloat16",
        DType::F8E4M3 => "Float8_e4m3fn",
        DType::F8E5M2 => "Float8_e5m2",
    }
}
