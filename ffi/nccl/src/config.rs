//! What programs configure: of a communicator, and of a call.

use std::mem::offset_of;
use std::time::Duration;

use spark_ccl::{Backend, Builder, Communicator, Net};
use spark_ccl_abi::arguments::{given, text};
use spark_ccl_abi::failure::{Failure, Kind};
use spark_ccl_cuda::{Error, count, current_device};

use crate::types::{
    Growing, UNDEFINED, cudaEvent_t, ncclCollConfig_t, ncclConfig_t, ncclEncryptionConfig_t,
};

/// What all structures of NCCL's begin with, behind their size.
const MAGIC: u32 = 0xcafe_beef;
/// No version will have as much: a number above comes from memory that nobody has initialised.
const MOST: usize = 4096;

/// The sizes in the first versions: no program has less.
const FIRST: usize = offset_of!(ncclConfig_t, cgaClusterSize);
const FIRST_OF_CALLS: usize = offset_of!(ncclCollConfig_t, launchCompletionEvent);

/// Longer than any call: NCCL has no deadline.
const NEVER: Duration = Duration::from_secs(40 * 24 * 3600);

/// What a program has configured of a new communicator. Limits of CTAs and the like are hints, and
/// not taken.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Options {
    /// Whether the function waits for the other ranks; `None` if it is as of the communicator that
    /// the new one is made from.
    pub(crate) is_blocking: Option<bool>,
    net: Option<Net>,
}

impl Options {
    const DEFAULT: Self = Self {
        is_blocking: None,
        net: None,
    };

    /// Those of a configuration, of whatever version; the defaults if it is null.
    ///
    /// # Safety
    /// `config` is null, or points to a structure that is as long as its `size` says, if that is
    /// within reason. Its strings are null or end in a null character.
    pub(crate) unsafe fn read(config: *const ncclConfig_t) -> Result<Self, Failure> {
        if config.is_null() {
            return Ok(Self::DEFAULT);
        }
        let mut own = ncclConfig_t::UNSET;
        // SAFETY: `config` is not null, so it points to a structure as long as its `size` says
        // (this function's contract), and `own` is one, too.
        unsafe { copy(config, &mut own, FIRST, "ncclConfig_t") }?;
        let is_blocking = match own.blocking {
            0 => Some(false),
            1 => Some(true),
            UNDEFINED => None,
            other => {
                return Err(Failure::invalid(format!(
                    "blocking of the ncclConfig_t is {other}, not 0 or 1"
                )));
            }
        };
        // SAFETY: the name is null, or a string that ends in a null character (this function's
        // contract).
        let name = unsafe { text(own.netName) };
        let net = name.map(|name| match name.to_ascii_lowercase().as_str() {
            "socket" => Ok(Net::Tcp),
            "ib" => Ok(Net::Rdma),
            _ => Err(Failure::invalid(format!(
                "netName of the ncclConfig_t is {name:?}: there are Socket and IB"
            ))),
        });
        Ok(Self {
            is_blocking,
            net: net.transpose()?,
        })
    }

    /// Makes a builder of communicators like NCCL's: calls have no deadline, and it is on `device`,
    /// else this thread's GPU, if there are GPUs. The environment and its files come first.
    pub(crate) fn builder(self, device: Option<usize>) -> Result<Builder, Failure> {
        let mut builder = Communicator::builder();
        let is_unset = |builder: &Builder, name| builder.get(name).is_none();
        if let Some(net) = self.net
            && is_unset(&builder, "SPARK_CCL_NET")
            && is_unset(&builder, "NCCL_NET")
        {
            builder = builder.network(net);
        }
        if is_unset(&builder, "SPARK_CCL_TIMEOUT") {
            builder = builder.operation_timeout(NEVER);
        }
        // Not NCCL, of which this has the name: it would be opened once more.
        if builder.get("SPARK_CCL_BACKEND") == Some("host") || !has_gpus()? {
            return Ok(builder.backend(Backend::Host));
        }
        if is_unset(&builder, "SPARK_CCL_DEVICE") {
            let device = device.or_else(current_device).unwrap_or(0);
            builder = builder.set("SPARK_CCL_DEVICE", &device.to_string());
        }
        Ok(builder.backend(Backend::Engine))
    }
}

/// Whether there are GPUs. A driver that fails is no reason to read their memory by the CPU.
fn has_gpus() -> Result<bool, Failure> {
    match count() {
        Ok(_) => Ok(true),
        Err(Error::Library { .. } | Error::NoDevice) => Ok(false),
        Err(error) => Err(Failure::new(
            Kind::Device,
            format!("{error}; or set SPARK_CCL_BACKEND=host to communicate in host memory"),
        )),
    }
}

/// Checks the configuration of a call. What it limits are hints, and not taken. Returns the event
/// that is to be recorded, or null.
///
/// # Safety
/// `config` is null, or points to a structure that is as long as its `size` says, if that is within
/// reason. Its string is null or ends in a null character.
pub(crate) unsafe fn check(config: *const ncclCollConfig_t) -> Result<cudaEvent_t, Failure> {
    if config.is_null() {
        return Ok(std::ptr::null_mut());
    }
    let mut own = ncclCollConfig_t::UNSET;
    // SAFETY: `config` is not null, so it points to a structure as long as its `size` says (this
    // function's contract), and `own` is one, too.
    unsafe { copy(config, &mut own, FIRST_OF_CALLS, "ncclCollConfig_t") }?;
    // SAFETY: the string is null, or ends in a null character (this function's contract).
    let algorithm = unsafe { text(own.algSelection) }.unwrap_or_default();
    if !algorithm.is_empty() && own.forceAlgSelection != 0 {
        return Err(Failure::invalid(format!(
            "algSelection of the ncclCollConfig_t is {algorithm:?}, which cannot be forced: set \
             forceAlgSelection to 0, or choose by SPARK_CCL_ALGO"
        )));
    }
    Ok(own.launchCompletionEvent)
}

/// Checks that ranks are not to encrypt what they send: they do not.
///
/// # Safety
/// `config` is null, or points to a structure that is as long as its `size` says, if that is within
/// reason.
pub(crate) unsafe fn check_encryption(
    config: *const ncclEncryptionConfig_t,
) -> Result<(), Failure> {
    let config = given(config, "config")?;
    let mut own = ncclEncryptionConfig_t::UNSET;
    let whole = size_of::<ncclEncryptionConfig_t>();
    // SAFETY: `given` has refused null, so `config` points to a structure as long as its `size`
    // says (this function's contract), and `own` is one, too.
    unsafe { copy(config, &mut own, whole, "ncclEncryptionConfig_t") }?;
    if own.mode == 0 {
        return Ok(());
    }
    Err(Failure::new(
        Kind::Usage,
        "ranks authenticate each other, and do not encrypt what they send: set the mode to \
         NCCL_ENCRYPTION_MODE_NONE, and encrypt the network (WireGuard, MACsec)",
    ))
}

/// Copies as many whole members of a structure as both the caller and this library know.
///
/// # Safety
/// `from` points to a structure that begins with its size and [`MAGIC`], and is as long as it says,
/// if that is at most [`MOST`]. `T` is such a structure, of which any bytes are one.
pub(crate) unsafe fn copy<T: Growing>(
    from: *const T,
    to: &mut T,
    first: usize,
    name: &str,
) -> Result<(), Failure> {
    // SAFETY: the structure begins with its size (this function's contract).
    let size = unsafe { from.cast::<usize>().read_unaligned() };
    if !(first..=MOST).contains(&size) {
        return Err(Failure::invalid(format!(
            "size of the {name} is {size}, and no version has that (expected {first} to {MOST}): \
             begin with NCCL's initializer"
        )));
    }
    // SAFETY: the structure is as long as it says (this function's contract), so behind its size
    // there is the number. The other one is a whole `T`, of which `whole` gives no more bytes. They
    // do not overlap: one is a reference.
    let magic = unsafe {
        let known = T::whole(size);
        std::ptr::copy_nonoverlapping(from.cast::<u8>(), std::ptr::from_mut(to).cast(), known);
        std::ptr::from_ref(to).cast::<u32>().add(2).read()
    };
    if magic != MAGIC {
        return Err(Failure::invalid(format!(
            "magic of the {name} is {magic:#x}, not {MAGIC:#x}: begin with NCCL's initializer"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_member_is_none() {
        for (size, whole) in [(28, 28), (33, 32), (39, 32), (40, 40), (MOST, 116)] {
            assert_eq!(ncclConfig_t::whole(size), whole, "{size}");
        }
    }
}
