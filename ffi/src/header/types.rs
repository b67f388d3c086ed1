// Made by bindings.sh from spark_ccl.h. Do not edit.

pub const SPARK_CCL_VERSION: u32 = 100;
pub const SPARK_CCL_UNIQUE_ID_TEXT: u32 = 257;
pub const SPARK_CCL_SUCCESS: spark_ccl_result = 0;
pub const SPARK_CCL_INVALID: spark_ccl_result = 1;
pub const SPARK_CCL_TIMEOUT: spark_ccl_result = 2;
pub const SPARK_CCL_REMOTE: spark_ccl_result = 3;
pub const SPARK_CCL_SYSTEM: spark_ccl_result = 4;
pub const SPARK_CCL_INTERNAL: spark_ccl_result = 5;
pub type spark_ccl_result = core::ffi::c_uint;
pub const SPARK_CCL_INT8: spark_ccl_dtype = 0;
pub const SPARK_CCL_UINT8: spark_ccl_dtype = 1;
pub const SPARK_CCL_INT32: spark_ccl_dtype = 2;
pub const SPARK_CCL_UINT32: spark_ccl_dtype = 3;
pub const SPARK_CCL_INT64: spark_ccl_dtype = 4;
pub const SPARK_CCL_UINT64: spark_ccl_dtype = 5;
pub const SPARK_CCL_FLOAT16: spark_ccl_dtype = 6;
pub const SPARK_CCL_FLOAT32: spark_ccl_dtype = 7;
pub const SPARK_CCL_FLOAT64: spark_ccl_dtype = 8;
pub const SPARK_CCL_BFLOAT16: spark_ccl_dtype = 9;
pub const SPARK_CCL_FLOAT8_E4M3: spark_ccl_dtype = 10;
pub const SPARK_CCL_FLOAT8_E5M2: spark_ccl_dtype = 11;
pub type spark_ccl_dtype = core::ffi::c_uint;
pub const SPARK_CCL_SUM: spark_ccl_op = 0;
pub const SPARK_CCL_PROD: spark_ccl_op = 1;
pub const SPARK_CCL_MAX: spark_ccl_op = 2;
pub const SPARK_CCL_MIN: spark_ccl_op = 3;
pub const SPARK_CCL_AVG: spark_ccl_op = 4;
pub const SPARK_CCL_PRE_MUL_SUM: spark_ccl_op = 5;
pub type spark_ccl_op = core::ffi::c_uint;
#[repr(C)]
#[derive(Copy, Clone)]
pub struct spark_ccl_unique_id {
    pub bytes: [core::ffi::c_uchar; 128usize],
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct spark_ccl_comm {
    _unused: [u8; 0],
}
pub type spark_ccl_request = u64;
#[repr(C)]
#[derive(Copy, Clone)]
pub struct spark_ccl_setting {
    pub name: *const core::ffi::c_char,
    pub value: *const core::ffi::c_char,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct spark_ccl_options {
    pub struct_size: usize,
    pub request: *mut spark_ccl_request,
    pub name: *const core::ffi::c_char,
    pub factor: *const core::ffi::c_void,
    pub registered: core::ffi::c_int,
    pub stream: *mut core::ffi::c_void,
    pub on_device: usize,
    pub timeout: usize,
}
pub const SPARK_CCL_REGISTER_LOCAL: spark_ccl_registration = 0;
pub const SPARK_CCL_REGISTER_SYMMETRIC: spark_ccl_registration = 1;
pub type spark_ccl_registration = core::ffi::c_uint;
pub type spark_ccl_log_function = ::core::option::Option<
    unsafe extern "C" fn(line: *const core::ffi::c_char, data: *mut core::ffi::c_void),
>;
