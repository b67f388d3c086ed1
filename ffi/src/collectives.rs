//! The collectives and messages.

use std::ffi::{c_int, c_void};

use spark_ccl::{DType, Operation};
use spark_ccl_abi::arguments::natural;
use spark_ccl_abi::draft::Buffers;

use crate::blocks::blocks;
use crate::comm::Handle;
use crate::options::Options;
use crate::run::run;
use crate::status::Status;

/// `spark_ccl_all_reduce`.
///
/// # Safety
/// `send` and `recv` are null or as long as the header says, `send` is initialised, and they only
/// overlap where the header says that the call is in place. Until the call is done, nobody else
/// writes `send` or uses `recv`. `options` is [valid](Options#valid-options).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_all_reduce(
    comm: *mut Handle,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: c_int,
    op: c_int,
    options: *const Options,
) -> Status {
    let buffers = Buffers { send, recv, count };
    // SAFETY: `send` and `recv` are null or as long as the header says, and the call's until it is
    // done. `options` is null, or as long as its `struct_size` says; its `request` is null or can
    // be written, its `stream` a default one or there until the call is enqueued, its `name` null
    // or a string, and its `factor` null or an element where `op` uses it. Nobody else writes these
    // until this returns. All of that is this function's contract.
    unsafe {
        run(
            comm,
            Operation::AllReduce,
            dtype,
            Some(op),
            options,
            |call| call.collective(buffers, None),
        )
    }
}

/// `spark_ccl_reduce`.
///
/// # Safety
/// `send` and `recv` are null or as long as the header says, `send` is initialised, and they only
/// overlap where the header says that the call is in place. Until the call is done, nobody else
/// writes `send` or uses `recv`. `options` is [valid](Options#valid-options).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_reduce(
    comm: *mut Handle,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: c_int,
    op: c_int,
    root: c_int,
    options: *const Options,
) -> Status {
    let buffers = Buffers { send, recv, count };
    // SAFETY: `send` and `recv` are null or as long as the header says, and the call's until it is
    // done. `options` is null, or as long as its `struct_size` says; its `request` is null or can
    // be written, its `stream` a default one or there until the call is enqueued, its `name` null
    // or a string, and its `factor` null or an element where `op` uses it. Nobody else writes these
    // until this returns. All of that is this function's contract.
    unsafe {
        run(comm, Operation::Reduce, dtype, Some(op), options, |call| {
            call.collective(buffers, Some(root))
        })
    }
}

/// `spark_ccl_broadcast`.
///
/// # Safety
/// `send` and `recv` are null or as long as the header says, `send` is initialised, and they only
/// overlap where the header says that the call is in place. Until the call is done, nobody else
/// writes `send` or uses `recv`. `options` is [valid](Options#valid-options).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_broadcast(
    comm: *mut Handle,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: c_int,
    root: c_int,
    options: *const Options,
) -> Status {
    let buffers = Buffers { send, recv, count };
    // SAFETY: `send` and `recv` are null or as long as the header says, and the call's until it is
    // done. `options` is null, or as long as its `struct_size` says; its `request` is null or can
    // be written, its `stream` a default one or there until the call is enqueued, and its `name`
    // null or a string. Nobody else writes these until this returns. All of that is this function's
    // contract.
    unsafe {
        run(comm, Operation::Broadcast, dtype, None, options, |call| {
            call.collective(buffers, Some(root))
        })
    }
}

/// `spark_ccl_all_gather`.
///
/// # Safety
/// `send` and `recv` are null or as long as the header says, `send` is initialised, and they only
/// overlap where the header says that the call is in place. Until the call is done, nobody else
/// writes `send` or uses `recv`. `options` is [valid](Options#valid-options).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_all_gather(
    comm: *mut Handle,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: c_int,
    options: *const Options,
) -> Status {
    let buffers = Buffers { send, recv, count };
    // SAFETY: `send` and `recv` are null or as long as the header says, and the call's until it is
    // done. `options` is null, or as long as its `struct_size` says; its `request` is null or can
    // be written, its `stream` a default one or there until the call is enqueued, and its `name`
    // null or a string. Nobody else writes these until this returns. All of that is this function's
    // contract.
    unsafe {
        run(comm, Operation::AllGather, dtype, None, options, |call| {
            call.collective(buffers, None)
        })
    }
}

/// `spark_ccl_reduce_scatter`.
///
/// # Safety
/// `send` and `recv` are null or as long as the header says, `send` is initialised, and they only
/// overlap where the header says that the call is in place. Until the call is done, nobody else
/// writes `send` or uses `recv`. `options` is [valid](Options#valid-options).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_reduce_scatter(
    comm: *mut Handle,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: c_int,
    op: c_int,
    options: *const Options,
) -> Status {
    let buffers = Buffers { send, recv, count };
    // SAFETY: `send` and `recv` are null or as long as the header says, and the call's until it is
    // done. `options` is null, or as long as its `struct_size` says; its `request` is null or can
    // be written, its `stream` a default one or there until the call is enqueued, its `name` null
    // or a string, and its `factor` null or an element where `op` uses it. Nobody else writes these
    // until this returns. All of that is this function's contract.
    unsafe {
        run(
            comm,
            Operation::ReduceScatter,
            dtype,
            Some(op),
            options,
            |call| call.collective(buffers, None),
        )
    }
}

/// `spark_ccl_gather`.
///
/// # Safety
/// `send` and `recv` are null or as long as the header says, `send` is initialised, and they only
/// overlap where the header says that the call is in place. Until the call is done, nobody else
/// writes `send` or uses `recv`. `options` is [valid](Options#valid-options).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_gather(
    comm: *mut Handle,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: c_int,
    root: c_int,
    options: *const Options,
) -> Status {
    let buffers = Buffers { send, recv, count };
    // SAFETY: `send` and `recv` are null or as long as the header says, and the call's until it is
    // done. `options` is null, or as long as its `struct_size` says; its `request` is null or can
    // be written, its `stream` a default one or there until the call is enqueued, and its `name`
    // null or a string. Nobody else writes these until this returns. All of that is this function's
    // contract.
    unsafe {
        run(comm, Operation::Gather, dtype, None, options, |call| {
            call.collective(buffers, Some(root))
        })
    }
}

/// `spark_ccl_scatter`.
///
/// # Safety
/// `send` and `recv` are null or as long as the header says, `send` is initialised, and they only
/// overlap where the header says that the call is in place. Until the call is done, nobody else
/// writes `send` or uses `recv`. `options` is [valid](Options#valid-options).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_scatter(
    comm: *mut Handle,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: c_int,
    root: c_int,
    options: *const Options,
) -> Status {
    let buffers = Buffers { send, recv, count };
    // SAFETY: `send` and `recv` are null or as long as the header says, and the call's until it is
    // done. `options` is null, or as long as its `struct_size` says; its `request` is null or can
    // be written, its `stream` a default one or there until the call is enqueued, and its `name`
    // null or a string. Nobody else writes these until this returns. All of that is this function's
    // contract.
    unsafe {
        run(comm, Operation::Scatter, dtype, None, options, |call| {
            call.collective(buffers, Some(root))
        })
    }
}

/// `spark_ccl_all_to_all`.
///
/// # Safety
/// `send` and `recv` are null or as long as the header says, `send` is initialised, and they only
/// overlap where the header says that the call is in place. Until the call is done, nobody else
/// writes `send` or uses `recv`. `options` is [valid](Options#valid-options).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_all_to_all(
    comm: *mut Handle,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: c_int,
    options: *const Options,
) -> Status {
    let buffers = Buffers { send, recv, count };
    // SAFETY: `send` and `recv` are null or as long as the header says, and the call's until it is
    // done. `options` is null, or as long as its `struct_size` says; its `request` is null or can
    // be written, its `stream` a default one or there until the call is enqueued, and its `name`
    // null or a string. Nobody else writes these until this returns. All of that is this function's
    // contract.
    unsafe {
        run(comm, Operation::AllToAll, dtype, None, options, |call| {
            call.collective(buffers, None)
        })
    }
}

/// `spark_ccl_all_to_all_v`.
///
/// # Safety
/// `send` and `recv` are null or reach to the ends of their last blocks, `send` is initialised, no
/// blocks of `recv` overlap, and `send` and `recv` do not overlap. Until the call is done, nobody
/// else writes `send` or uses `recv`. The counts and begins are null or point to one number for
/// each rank, which nobody writes until this returns. `options` is [valid](Options#valid-options).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_all_to_all_v(
    comm: *mut Handle,
    send: *const c_void,
    send_counts: *const usize,
    send_begins: *const usize,
    recv: *mut c_void,
    recv_counts: *const usize,
    recv_begins: *const usize,
    dtype: c_int,
    options: *const Options,
) -> Status {
    // SAFETY: `send` and `recv` are null or as long as their last blocks reach, and the call's
    // until it is done. The counts and begins are null or have a number for each rank, `size` of
    // them. `options` is null, or as long as its `struct_size` says; its `request` is null or can
    // be written, its `stream` a default one or there until the call is enqueued, and its `name`
    // null or a string. Nobody else writes these, or the numbers, until this returns. All of that
    // is this function's contract.
    unsafe {
        run(comm, Operation::AllToAllV, dtype, None, options, |call| {
            let size = call.comm().size();
            let (given, sent) = blocks(send_counts, send_begins, size, "send")?;
            let (taken, received) = blocks(recv_counts, recv_begins, size, "recv")?;
            call.change(|inner| inner.blocks(given, taken));
            call.send(send, sent);
            call.recv(recv, received);
            Ok(())
        })
    }
}

/// `spark_ccl_send`.
///
/// # Safety
/// `send` is null or has `count` elements, which are initialised, and which nobody writes until the
/// call is done. `options` is [valid](Options#valid-options).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_send(
    comm: *mut Handle,
    send: *const c_void,
    count: usize,
    dtype: c_int,
    to: c_int,
    options: *const Options,
) -> Status {
    // SAFETY: `send` is null or has `count` elements, which are initialised, and nobody writes
    // until the call is done. `options` is null, or as long as its `struct_size` says; its
    // `request` is null or can be written, its `stream` a default one or there until the call is
    // enqueued, and its `name` null or a string. Nobody else writes these until this returns. All
    // of that is this function's contract.
    unsafe {
        run(comm, Operation::Send, dtype, None, options, |call| {
            let to = natural(to, "to")?;
            call.change(|inner| inner.to(to));
            call.send(send, count);
            Ok(())
        })
    }
}

/// `spark_ccl_recv`.
///
/// # Safety
/// `recv` is null or has `count` elements, which can be written, and which nobody else uses until
/// the call is done. `options` is [valid](Options#valid-options).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_recv(
    comm: *mut Handle,
    recv: *mut c_void,
    count: usize,
    dtype: c_int,
    from: c_int,
    options: *const Options,
) -> Status {
    // SAFETY: `recv` is null or has `count` elements, which can be written, and nobody else uses
    // until the call is done. `options` is null, or as long as its `struct_size` says; its
    // `request` is null or can be written, its `stream` a default one or there until the call is
    // enqueued, and its `name` null or a string. Nobody else writes these until this returns. All
    // of that is this function's contract.
    unsafe {
        run(comm, Operation::Recv, dtype, None, options, |call| {
            let from = natural(from, "from")?;
            call.change(|inner| inner.from(from));
            call.recv(recv, count);
            Ok(())
        })
    }
}

/// `spark_ccl_barrier`.
///
/// # Safety
/// `options` is [valid](Options#valid-options).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spark_ccl_barrier(comm: *mut Handle, options: *const Options) -> Status {
    let bytes = DType::U8.code().into();
    // SAFETY: the call has no buffers, since nothing sets any. `options` is null, or as long as its
    // `struct_size` says; its `request` is null or can be written, its `stream` a default one or
    // there until the call is enqueued, and its `name` null or a string. Nobody else writes these
    // until this returns. All of that is this function's contract.
    unsafe { run(comm, Operation::Barrier, bytes, None, options, |_| Ok(())) }
}
