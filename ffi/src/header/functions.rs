// Made by bindings.sh from spark_ccl.h. Do not edit.

use super::library::*;

pub type spark_ccl_version = unsafe extern "C" fn() -> core::ffi::c_int;
pub type spark_ccl_get_unique_id =
    unsafe extern "C" fn(id: *mut spark_ccl_unique_id) -> spark_ccl_result;
pub type spark_ccl_unique_id_to_text = unsafe extern "C" fn(
    id: *const spark_ccl_unique_id,
    text: *mut core::ffi::c_char,
    size: usize,
) -> spark_ccl_result;
pub type spark_ccl_unique_id_from_text = unsafe extern "C" fn(
    text: *const core::ffi::c_char,
    id: *mut spark_ccl_unique_id,
) -> spark_ccl_result;
pub type spark_ccl_comm_create = unsafe extern "C" fn(
    id: *const spark_ccl_unique_id,
    rank: core::ffi::c_int,
    size: core::ffi::c_int,
    settings: *const spark_ccl_setting,
    settings_count: usize,
    comm: *mut *mut spark_ccl_comm,
) -> spark_ccl_result;
pub type spark_ccl_comm_from_env = unsafe extern "C" fn(
    settings: *const spark_ccl_setting,
    settings_count: usize,
    comm: *mut *mut spark_ccl_comm,
) -> spark_ccl_result;
pub type spark_ccl_comm_split = unsafe extern "C" fn(
    comm: *mut spark_ccl_comm,
    color: core::ffi::c_int,
    key: core::ffi::c_int,
    part: *mut *mut spark_ccl_comm,
) -> spark_ccl_result;
pub type spark_ccl_comm_recover = unsafe extern "C" fn(
    comm: *mut spark_ccl_comm,
    rest: *mut *mut spark_ccl_comm,
) -> spark_ccl_result;
pub type spark_ccl_comm_shrink = unsafe extern "C" fn(
    comm: *mut spark_ccl_comm,
    lost: *const core::ffi::c_int,
    lost_count: usize,
    rest: *mut *mut spark_ccl_comm,
) -> spark_ccl_result;
pub type spark_ccl_comm_rank = unsafe extern "C" fn(
    comm: *mut spark_ccl_comm,
    rank: *mut core::ffi::c_int,
) -> spark_ccl_result;
pub type spark_ccl_comm_size = unsafe extern "C" fn(
    comm: *mut spark_ccl_comm,
    size: *mut core::ffi::c_int,
) -> spark_ccl_result;
pub type spark_ccl_comm_set_timeout = unsafe extern "C" fn(
    comm: *mut spark_ccl_comm,
    milliseconds: core::ffi::c_uint,
) -> spark_ccl_result;
pub type spark_ccl_comm_check = unsafe extern "C" fn(comm: *mut spark_ccl_comm) -> spark_ccl_result;
pub type spark_ccl_comm_abort = unsafe extern "C" fn(
    comm: *mut spark_ccl_comm,
    reason: *const core::ffi::c_char,
) -> spark_ccl_result;
pub type spark_ccl_comm_finalize =
    unsafe extern "C" fn(comm: *mut spark_ccl_comm) -> spark_ccl_result;
pub type spark_ccl_comm_destroy =
    unsafe extern "C" fn(comm: *mut spark_ccl_comm) -> spark_ccl_result;
pub type spark_ccl_alloc = unsafe extern "C" fn(
    comm: *mut spark_ccl_comm,
    bytes: usize,
    memory: *mut *mut core::ffi::c_void,
) -> spark_ccl_result;
pub type spark_ccl_free = unsafe extern "C" fn(
    comm: *mut spark_ccl_comm,
    memory: *mut core::ffi::c_void,
) -> spark_ccl_result;
pub type spark_ccl_comm_device = unsafe extern "C" fn(
    comm: *mut spark_ccl_comm,
    device: *mut core::ffi::c_int,
) -> spark_ccl_result;
pub type spark_ccl_stream_wait = unsafe extern "C" fn(
    comm: *mut spark_ccl_comm,
    stream: *mut core::ffi::c_void,
) -> spark_ccl_result;
pub type spark_ccl_device_alloc = unsafe extern "C" fn(
    comm: *mut spark_ccl_comm,
    bytes: usize,
    memory: *mut *mut core::ffi::c_void,
) -> spark_ccl_result;
pub type spark_ccl_device_free = unsafe extern "C" fn(
    comm: *mut spark_ccl_comm,
    memory: *mut core::ffi::c_void,
) -> spark_ccl_result;
pub type spark_ccl_device_register = unsafe extern "C" fn(
    comm: *mut spark_ccl_comm,
    memory: *mut core::ffi::c_void,
    kind: spark_ccl_registration,
    used: *mut core::ffi::c_int,
) -> spark_ccl_result;
pub type spark_ccl_all_reduce = unsafe extern "C" fn(
    comm: *mut spark_ccl_comm,
    send: *const core::ffi::c_void,
    recv: *mut core::ffi::c_void,
    count: usize,
    dtype: spark_ccl_dtype,
    op: spark_ccl_op,
    options: *const spark_ccl_options,
) -> spark_ccl_result;
pub type spark_ccl_reduce = unsafe extern "C" fn(
    comm: *mut spark_ccl_comm,
    send: *const core::ffi::c_void,
    recv: *mut core::ffi::c_void,
    count: usize,
    dtype: spark_ccl_dtype,
    op: spark_ccl_op,
    root: core::ffi::c_int,
    options: *const spark_ccl_options,
) -> spark_ccl_result;
pub type spark_ccl_broadcast = unsafe extern "C" fn(
    comm: *mut spark_ccl_comm,
    send: *const core::ffi::c_void,
    recv: *mut core::ffi::c_void,
    count: usize,
    dtype: spark_ccl_dtype,
    root: core::ffi::c_int,
    options: *const spark_ccl_options,
) -> spark_ccl_result;
pub type spark_ccl_all_gather = unsafe extern "C" fn(
    comm: *mut spark_ccl_comm,
    send: *const core::ffi::c_void,
    recv: *mut core::ffi::c_void,
    count: usize,
    dtype: spark_ccl_dtype,
    options: *const spark_ccl_options,
) -> spark_ccl_result;
pub type spark_ccl_reduce_scatter = unsafe extern "C" fn(
    comm: *mut spark_ccl_comm,
    send: *const core::ffi::c_void,
    recv: *mut core::ffi::c_void,
    count: usize,
    dtype: spark_ccl_dtype,
    op: spark_ccl_op,
    options: *const spark_ccl_options,
) -> spark_ccl_result;
pub type spark_ccl_gather = unsafe extern "C" fn(
    comm: *mut spark_ccl_comm,
    send: *const core::ffi::c_void,
    recv: *mut core::ffi::c_void,
    count: usize,
    dtype: spark_ccl_dtype,
    root: core::ffi::c_int,
    options: *const spark_ccl_options,
) -> spark_ccl_result;
pub type spark_ccl_scatter = unsafe extern "C" fn(
    comm: *mut spark_ccl_comm,
    send: *const core::ffi::c_void,
    recv: *mut core::ffi::c_void,
    count: usize,
    dtype: spark_ccl_dtype,
    root: core::ffi::c_int,
    options: *const spark_ccl_options,
) -> spark_ccl_result;
pub type spark_ccl_all_to_all = unsafe extern "C" fn(
    comm: *mut spark_ccl_comm,
    send: *const core::ffi::c_void,
    recv: *mut core::ffi::c_void,
    count: usize,
    dtype: spark_ccl_dtype,
    options: *const spark_ccl_options,
) -> spark_ccl_result;
pub type spark_ccl_all_to_all_v = unsafe extern "C" fn(
    comm: *mut spark_ccl_comm,
    send: *const core::ffi::c_void,
    send_counts: *const usize,
    send_begins: *const usize,
    recv: *mut core::ffi::c_void,
    recv_counts: *const usize,
    recv_begins: *const usize,
    dtype: spark_ccl_dtype,
    options: *const spark_ccl_options,
) -> spark_ccl_result;
pub type spark_ccl_barrier = unsafe extern "C" fn(
    comm: *mut spark_ccl_comm,
    options: *const spark_ccl_options,
) -> spark_ccl_result;
pub type spark_ccl_send = unsafe extern "C" fn(
    comm: *mut spark_ccl_comm,
    send: *const core::ffi::c_void,
    count: usize,
    dtype: spark_ccl_dtype,
    to: core::ffi::c_int,
    options: *const spark_ccl_options,
) -> spark_ccl_result;
pub type spark_ccl_recv = unsafe extern "C" fn(
    comm: *mut spark_ccl_comm,
    recv: *mut core::ffi::c_void,
    count: usize,
    dtype: spark_ccl_dtype,
    from: core::ffi::c_int,
    options: *const spark_ccl_options,
) -> spark_ccl_result;
pub type spark_ccl_probe = unsafe extern "C" fn(
    comm: *mut spark_ccl_comm,
    from: core::ffi::c_int,
    count: *mut usize,
    dtype: *mut spark_ccl_dtype,
    there: *mut core::ffi::c_int,
) -> spark_ccl_result;
pub type spark_ccl_group_start = unsafe extern "C" fn() -> spark_ccl_result;
pub type spark_ccl_group_end = unsafe extern "C" fn() -> spark_ccl_result;
pub type spark_ccl_wait = unsafe extern "C" fn(request: *mut spark_ccl_request) -> spark_ccl_result;
pub type spark_ccl_wait_all =
    unsafe extern "C" fn(requests: *mut spark_ccl_request, count: usize) -> spark_ccl_result;
pub type spark_ccl_wait_any = unsafe extern "C" fn(
    requests: *mut spark_ccl_request,
    count: usize,
    index: *mut usize,
) -> spark_ccl_result;
pub type spark_ccl_request_free =
    unsafe extern "C" fn(request: *mut spark_ccl_request) -> spark_ccl_result;
pub type spark_ccl_test = unsafe extern "C" fn(
    request: *mut spark_ccl_request,
    done: *mut core::ffi::c_int,
) -> spark_ccl_result;
pub type spark_ccl_last_error = unsafe extern "C" fn() -> *const core::ffi::c_char;
pub type spark_ccl_set_log = unsafe extern "C" fn(
    function: spark_ccl_log_function,
    data: *mut core::ffi::c_void,
    filter: *const core::ffi::c_char,
) -> spark_ccl_result;
