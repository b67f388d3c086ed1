//! Calls on tensors of the host.

use candle_core::{CpuStorage, Layout, Result, Shape, WithDType};
use spark_ccl::{Element, RedOp};

use crate::copy::copied;
use crate::group::Group;
use crate::storage::{Checked, Kind, no_such_type};

/// Makes a call. The result is in memory of its own.
pub(crate) fn run(
    group: &Group,
    kind: Kind,
    tensor: &str,
    storage: &CpuStorage,
    layout: &Layout,
) -> Result<(CpuStorage, Shape)> {
    let checked = Checked::new(group, kind, tensor, layout)?;
    let elements = checked.elements;
    macro_rules! typed {
        ($($dtype:ident)*) => {
            match storage {
                _ if kind == Kind::Same => copied(storage, layout)?.0,
                $(CpuStorage::$dtype(values) => {
                    let result = values_of(group, kind, tensor, &values[elements])?;
                    WithDType::to_cpu_storage_owned(result)
                })*
                other => {
                    let dtype = candle_core::backend::BackendStorage::dtype(other);
                    return Err(no_such_type(group, kind.name(), tensor, dtype));
                }
            }
        };
    }
    Ok((typed!(F32 BF16 F16 F64 U8 U32 I64), checked.shape))
}

fn values_of<T: Element>(group: &Group, kind: Kind, tensor: &str, values: &[T]) -> Result<Vec<T>> {
    let (rank, size) = (group.rank(), group.size());
    let part = values.len() / size;
    let (operation, bytes) = (kind.name(), size_of_val(values));
    match kind {
        Kind::Same => Ok(values.to_vec()),
        Kind::Part => Ok(values[part * rank..part * (rank + 1)].to_vec()),
        Kind::Sum => group.call(operation, tensor, bytes, |comm| {
            let sum = values.to_vec();
            comm.all_reduce_in_place(sum, RedOp::Sum)
                .named(tensor)
                .run()
        }),
        Kind::Gather => group.call(operation, tensor, bytes, |comm| {
            let all = vec![T::default(); values.len() * size];
            comm.all_gather(values, all).named(tensor).run()
        }),
        Kind::Scatter => group.call(operation, tensor, bytes, |comm| {
            let own = vec![T::default(); part];
            comm.reduce_scatter(values, own, RedOp::Sum)
                .named(tensor)
                .run()
        }),
    }
}
