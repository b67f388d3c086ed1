//! Memory of GPUs: buffers, the blocks that this library allocates, and what orders their uses in
//! streams and gives them back. Knows no engine.

pub(crate) mod block;
pub(crate) mod buffer;
pub(crate) mod gate;
pub(crate) mod gpu;
pub(crate) mod helper_thread;
pub(crate) mod memory;
pub(crate) mod pause;
pub(crate) mod set_aside;
pub(crate) mod site;
pub(crate) mod view;
pub(crate) mod view_mut;
