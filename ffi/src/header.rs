//! Compares the library with what bindgen makes of its header: functions and layouts when tests are
//! compiled, numbers when they run. `bindings.sh` makes the two files.

#[allow(non_camel_case_types, unreachable_pub, missing_docs, clippy::pedantic)]
mod functions;
#[allow(
    non_camel_case_types,
    dead_code,
    unreachable_pub,
    missing_docs,
    clippy::pedantic
)]
mod types;

use std::ffi::{c_char, c_int};
use std::mem::offset_of;

use spark_ccl::cuda::Registration;
use spark_ccl::{DType, ReduceOp};

use crate::options::Options;
use crate::rendezvous::Setting;
use crate::status::Status;
use crate::unique_id::Id;

/// The library's types, by their names in the header.
#[allow(non_camel_case_types)]
mod library {
    use std::ffi::{c_char, c_int, c_void};

    pub(super) use crate::comm::Handle as spark_ccl_comm;
    pub(super) use crate::options::Options as spark_ccl_options;
    pub(super) use crate::rendezvous::Setting as spark_ccl_setting;
    pub(super) use crate::status::Status as spark_ccl_result;
    pub(super) use crate::unique_id::Id as spark_ccl_unique_id;

    pub(super) type spark_ccl_request = u64;
    pub(super) type spark_ccl_log_function = Option<extern "C" fn(*const c_char, *mut c_void)>;
    // C may pass any number, which an enumeration of Rust could not hold.
    pub(super) type spark_ccl_dtype = c_int;
    pub(super) type spark_ccl_op = c_int;
    pub(super) type spark_ccl_registration = c_int;
}

/// Each function is of the type that the header declares.
macro_rules! functions {
    ($($module:ident { $($name:ident)* })*) => {
        const COMPARED: &[&str] = &[$($(stringify!($name),)*)*];
        $($(const _: functions::$name = crate::$module::$name;)*)*
    };
}

functions! {
    collectives {
        spark_ccl_all_gather spark_ccl_all_reduce spark_ccl_all_to_all spark_ccl_all_to_all_v spark_ccl_barrier
        spark_ccl_broadcast spark_ccl_gather spark_ccl_recv spark_ccl_reduce spark_ccl_reduce_scatter spark_ccl_scatter
        spark_ccl_send
    }
    comm {
        spark_ccl_comm_abort spark_ccl_comm_check spark_ccl_comm_destroy spark_ccl_comm_rank spark_ccl_comm_set_timeout
        spark_ccl_comm_size spark_ccl_probe
    }
    device {
        spark_ccl_comm_device spark_ccl_device_alloc spark_ccl_device_free spark_ccl_device_register spark_ccl_stream_wait
    }
    groups { spark_ccl_group_end spark_ccl_group_start }
    log { spark_ccl_set_log }
    rendezvous {
        spark_ccl_comm_create spark_ccl_comm_finalize spark_ccl_comm_from_env spark_ccl_comm_recover
        spark_ccl_comm_shrink spark_ccl_comm_split
    }
    memory { spark_ccl_alloc spark_ccl_free }
    requests {
        spark_ccl_request_free spark_ccl_test spark_ccl_wait spark_ccl_wait_all spark_ccl_wait_any
    }
    unique_id { spark_ccl_get_unique_id spark_ccl_unique_id_from_text spark_ccl_unique_id_to_text }
}

const OF_THE_ROOT: [&str; 3] = [
    "spark_ccl_last_error",
    "spark_ccl_result_string",
    "spark_ccl_version",
];
const _: functions::spark_ccl_last_error = crate::spark_ccl_last_error;
const _: functions::spark_ccl_version = crate::spark_ccl_version;
// The argument is no enumeration, since C may pass any number; so this function is compared here.
const _: extern "C" fn(c_int) -> *const c_char = crate::spark_ccl_result_string;

/// A structure has the same size, alignment and members.
macro_rules! layout {
    ($declared:ident = $own:ident { $($member:ident)* }) => {
        const _: () = {
            assert!(size_of::<types::$declared>() == size_of::<$own>());
            assert!(align_of::<types::$declared>() == align_of::<$own>());
            $(assert!(offset_of!(types::$declared, $member) == offset_of!($own, $member));)*
        };
    };
}

layout!(spark_ccl_unique_id = Id { bytes });
layout!(spark_ccl_setting = Setting { name value });
layout!(spark_ccl_options = Options {
    struct_size request name factor registered stream on_device timeout
});

const _: () = assert!(size_of::<types::spark_ccl_result>() == size_of::<Status>());
const _: () = assert!(size_of::<types::spark_ccl_dtype>() == size_of::<library::spark_ccl_dtype>());

#[test]
fn all_functions_are_compared() {
    let mut compared = COMPARED.to_vec();
    compared.extend(OF_THE_ROOT);
    compared.sort_unstable();
    let exported: Vec<_> = include_str!("../symbols.txt").lines().collect();
    assert_eq!(compared, exported);
}

#[test]
fn numbers_are_those_of_the_header() {
    use types::*;
    let dtypes = [
        (SPARK_CCL_INT8, DType::I8),
        (SPARK_CCL_UINT8, DType::U8),
        (SPARK_CCL_INT32, DType::I32),
        (SPARK_CCL_UINT32, DType::U32),
        (SPARK_CCL_INT64, DType::I64),
        (SPARK_CCL_UINT64, DType::U64),
        (SPARK_CCL_FLOAT16, DType::F16),
        (SPARK_CCL_FLOAT32, DType::F32),
        (SPARK_CCL_FLOAT64, DType::F64),
        (SPARK_CCL_BFLOAT16, DType::Bf16),
        (SPARK_CCL_FLOAT8_E4M3, DType::F8E4M3),
        (SPARK_CCL_FLOAT8_E5M2, DType::F8E5M2),
    ];
    assert_eq!(dtypes.len(), DType::ALL.len());
    assert!(
        dtypes
            .iter()
            .all(|(number, own)| *number == u32::from(own.code()))
    );
    let ops = [
        (SPARK_CCL_SUM, ReduceOp::Sum),
        (SPARK_CCL_PROD, ReduceOp::Prod),
        (SPARK_CCL_MAX, ReduceOp::Max),
        (SPARK_CCL_MIN, ReduceOp::Min),
        (SPARK_CCL_AVG, ReduceOp::Avg),
        (SPARK_CCL_PRE_MUL_SUM, ReduceOp::PreMulSum),
    ];
    assert_eq!(ops.len(), ReduceOp::ALL.len());
    assert!(
        ops.iter()
            .all(|(number, own)| *number == u32::from(own.code()))
    );
    let results = [
        (SPARK_CCL_SUCCESS, Status::Success),
        (SPARK_CCL_INVALID, Status::Invalid),
        (SPARK_CCL_TIMEOUT, Status::Timeout),
        (SPARK_CCL_REMOTE, Status::Remote),
        (SPARK_CCL_SYSTEM, Status::System),
        (SPARK_CCL_INTERNAL, Status::Internal),
    ];
    assert!(results.iter().all(|(number, own)| *number == *own as u32));
    assert_eq!(
        crate::device::registration(SPARK_CCL_REGISTER_LOCAL as i32).unwrap(),
        Registration::Local
    );
    assert_eq!(
        crate::device::registration(SPARK_CCL_REGISTER_SYMMETRIC as i32).unwrap(),
        Registration::Symmetric
    );
    assert_eq!(SPARK_CCL_VERSION, crate::spark_ccl_version() as u32);
    assert_eq!(SPARK_CCL_UNIQUE_ID_TEXT as usize, crate::unique_id::TEXT);
}
