//! libibverbs' types, constants and function types, as declared in C.
//!
//! Nothing here is linked: [`crate::Library`] looks the functions up at run time.

#[allow(missing_docs, non_camel_case_types, unreachable_pub, clippy::pedantic)]
mod bindings;

pub use bindings::*;
pub(crate) use libc::{pthread_cond_t, pthread_mutex_t};

/// Declares types that are only used behind pointers.
macro_rules! opaque {
    ($($name:ident)*) => {$(
        #[doc = concat!("`struct ", stringify!($name), "`, only used behind pointers.")]
        #[allow(non_camel_case_types)]
        #[repr(C)]
        pub struct $name {
            _private: [u8; 0],
        }
    )*};
}

opaque!(_compat_ibv_port_attr ibv_ah ibv_device ibv_mw ibv_mw_bind ibv_srq ibv_wq);

/// The bindings are valid for 64-bit machines with unsigned enumerations; these sizes check that.
/// Types that contain a pthread mutex have another size on aarch64.
const _: () = {
    assert!(size_of::<usize>() == 8);
    assert!(size_of::<ibv_send_wr>() == 128);
    assert!(size_of::<ibv_recv_wr>() == 32);
    assert!(size_of::<ibv_sge>() == 16);
    assert!(size_of::<ibv_wc>() == 48);
    assert!(size_of::<ibv_qp_attr>() == 144);
    assert!(size_of::<ibv_qp_init_attr>() == 64);
    assert!(size_of::<ibv_device_attr>() == 232);
    assert!(size_of::<ibv_port_attr>() == 52);
    assert!(size_of::<ibv_gid_entry>() == 32);
    assert!(size_of::<ibv_mr>() == 48);
    assert!(core::mem::offset_of!(ibv_context, ops) == 8);
    assert!(core::mem::offset_of!(ibv_context, cmd_fd) == 264);
    assert!(size_of::<ibv_context>() == 264 + 16 + size_of::<pthread_mutex_t>() + 8);
};
