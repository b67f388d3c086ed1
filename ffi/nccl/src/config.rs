//! The user's configurations: of a communicator, and of a call.

use std::borrow::Cow;
use std::ffi::c_int;
use std::mem::offset_of;
use std::time::Duration;

use spark_ccl::{Backend, Builder, Communicator, MOST_CTAS, Net, UntypedCall};
use spark_ccl_abi::arguments::{given, text};
use spark_ccl_abi::failure::{Failure, Kind};
use spark_ccl_cuda::{Error, count, current_device};

use crate::types::{
    Growing, UNDEFINED, cudaEvent_t, ncclCollConfig_t, ncclConfig_t, ncclConfigExt_t,
    ncclEncryptionConfig_t,
};

/// The number behind the size at the start of each NCCL structure.
const MAGIC: u32 = 0xcafe_beef;
/// No version's structure will be longer: a larger size comes from uninitialised memory.
const MOST: usize = 4096;

/// The sizes in the first versions: no user's structure is shorter.
const FIRST: usize = offset_of!(ncclConfig_t, cgaClusterSize);
const FIRST_OF_CALLS: usize = offset_of!(ncclCollConfig_t, launchCompletionEvent);

/// The vendor number of this library's own options for calls: `SCL`.
const VENDOR: c_int = 0x53_43_4c;
/// A call's deadline in milliseconds, a number.
const DEADLINE: c_int = 1;
/// A call's name, a string.
const NAME: c_int = 2;
/// The most options of a call that are looked at.
const OPTIONS: usize = 64;

/// Longer than any call: NCCL has no deadline.
const NEVER: Duration = Duration::from_secs(40 * 24 * 3600);

/// The user's configuration of a new communicator. Other hints are ignored.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// Whether functions wait for the other ranks; `None` if the new communicator inherits this
    /// from its parent.
    pub(crate) is_blocking: Option<bool>,
    /// What logs and errors call it.
    pub(crate) name: Option<String>,
    net: Option<Net>,
    most_ctas: Option<usize>,
}

impl Options {
    const DEFAULT: Self = Self {
        is_blocking: None,
        name: None,
        net: None,
        most_ctas: None,
    };

    /// Reads a configuration of any version; the defaults if it is null.
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
        let most_ctas = (own.maxCTAs != UNDEFINED).then_some(own.maxCTAs);
        if let Some(most) = most_ctas.filter(|&most| most < 1) {
            return Err(Failure::invalid(format!(
                "maxCTAs of the ncclConfig_t is {most}, not 1 or more"
            )));
        }
        // SAFETY: both names are null, or strings that end in a null character (this function's
        // contract).
        let (net, name) = unsafe { (text(own.netName), text(own.commName)) };
        let net = net.map(|name| match name.to_ascii_lowercase().as_str() {
            "socket" => Ok(Net::Tcp),
            "ib" => Ok(Net::Rdma),
            _ => Err(Failure::invalid(format!(
                "netName of the ncclConfig_t is {name:?}: there are Socket and IB"
            ))),
        });
        Ok(Self {
            is_blocking,
            name: name.map(Cow::into_owned).filter(|name| !name.is_empty()),
            net: net.transpose()?,
            most_ctas: most_ctas.map(|most| (most as usize).min(MOST_CTAS)),
        })
    }

    /// Makes a builder of communicators like NCCL's: calls have no deadline, and the GPU is
    /// `device`, else this thread's current one, if there are GPUs. The environment and its files
    /// win over these.
    pub(crate) fn builder(&self, device: Option<usize>) -> Result<Builder, Failure> {
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
        if let Some(most) = self.most_ctas
            && is_unset(&builder, "SPARK_CCL_GPU_CTAS")
        {
            builder = builder.set("SPARK_CCL_GPU_CTAS", &most.to_string());
        }
        // Never the backend NCCL: this library has NCCL's name, and would be opened once more.
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

/// Whether there are GPUs. An error if the driver fails: the CPU must not read memory of GPUs.
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

/// What the configuration of a call asks for. Its limits are hints, which are ignored.
#[derive(Debug)]
pub(crate) struct Wishes {
    /// The event that is to be recorded, or null.
    pub(crate) event: cudaEvent_t,
    /// How long the call may take.
    deadline: Option<Duration>,
    /// What errors call it.
    name: Option<String>,
}

impl Wishes {
    const NONE: Self = Self {
        event: std::ptr::null_mut(),
        deadline: None,
        name: None,
    };

    /// Sets the call's deadline and name.
    pub(crate) fn apply(&self, call: UntypedCall) -> UntypedCall {
        let call = match self.deadline {
            Some(deadline) => call.timeout(deadline),
            None => call,
        };
        match &self.name {
            Some(name) => call.named(name),
            None => call,
        }
    }

    /// Reads options by this library's number; passes over those of others.
    ///
    /// # Safety
    /// The list is null, or ends in null, or goes round; its strings are null or end in a null
    /// character.
    unsafe fn extend(&mut self, mut option: *const ncclConfigExt_t) -> Result<(), Failure> {
        // Once more, for the null behind them.
        for _ in 0..=OPTIONS {
            if option.is_null() {
                return Ok(());
            }
            // SAFETY: `option` is not null, so it is one of the list (this function's contract).
            let own = unsafe { &*option };
            match (own.vendorId, own.optionId) {
                (VENDOR, DEADLINE) => {
                    // SAFETY: the value of this option is a number, and all bytes are valid in one.
                    let limit = unsafe { own.val.i };
                    let limit = u64::try_from(limit).ok().filter(|&limit| limit > 0);
                    let limit = limit.ok_or_else(|| {
                        Failure::invalid("the deadline of a call is not above 0 milliseconds")
                    })?;
                    self.deadline = Some(Duration::from_millis(limit));
                }
                (VENDOR, NAME) => {
                    // SAFETY: the value of this option is a string, or null (this function's
                    // contract).
                    let name = unsafe { text(own.val.s) };
                    self.name = name.map(Cow::into_owned);
                }
                (VENDOR, other) => {
                    return Err(Failure::invalid(format!(
                        "spark-ccl has no option {other} of calls: there are {DEADLINE} (deadline) \
                         and {NAME} (name)"
                    )));
                }
                _ => {}
            }
            option = own.next;
        }
        Err(Failure::invalid(format!(
            "ext of the ncclCollConfig_t has more than {OPTIONS} options, or goes round"
        )))
    }
}

/// Checks the configuration of a call.
///
/// # Safety
/// `config` is null, or points to a structure that is as long as its `size` says, if that is within
/// reason. Its strings are null or end in a null character, and its list of options ends or goes
/// round.
pub(crate) unsafe fn check(config: *const ncclCollConfig_t) -> Result<Wishes, Failure> {
    if config.is_null() {
        return Ok(Wishes::NONE);
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
    let mut wishes = Wishes {
        event: own.launchCompletionEvent,
        ..Wishes::NONE
    };
    // SAFETY: the list ends or goes round, and its strings end (this function's contract).
    unsafe { wishes.extend(own.ext) }?;
    Ok(wishes)
}

/// Refuses a configuration that asks for encryption, which there is not.
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
/// if that is at most [`MOST`]. `T` is the type of this structure, and all bytes are valid in it.
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
    // SAFETY: the structure is as long as it says (this function's contract), so `known` bytes of
    // it are there, the magic number among them: `whole` returns no more than `size`. `to` has room
    // for them, since `whole` returns no more than a `T` has. They do not overlap, since `to` is a
    // unique reference.
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

    fn read(config: &ncclConfig_t) -> Result<Options, Failure> {
        // SAFETY: the structure is whole, as its size says, and its strings are null, or end.
        unsafe { Options::read(config) }
    }

    #[test]
    fn limits_of_ctas_and_names_are_taken() {
        let mut config = ncclConfig_t {
            size: size_of::<ncclConfig_t>(),
            magic: MAGIC,
            ..ncclConfig_t::UNSET
        };
        let limit = |options: &Options| {
            let builder = options.builder(None).unwrap();
            builder.get("SPARK_CCL_GPU_CTAS").map(str::to_owned)
        };
        assert_eq!(limit(&read(&config).unwrap()), None);
        for (most, taken) in [(1, "1"), (3, "3"), (64, "32")] {
            config.maxCTAs = most;
            assert_eq!(limit(&read(&config).unwrap()).as_deref(), Some(taken));
        }
        config.maxCTAs = 0;
        assert!(read(&config).unwrap_err().message().contains("maxCTAs"));
        config.maxCTAs = UNDEFINED;
        config.commName = c"blue".as_ptr();
        assert_eq!(read(&config).unwrap().name.as_deref(), Some("blue"));
    }

    #[test]
    fn half_a_member_is_none() {
        for (size, whole) in [(28, 28), (33, 32), (39, 32), (40, 40), (MOST, 116)] {
            assert_eq!(ncclConfig_t::whole(size), whole, "{size}");
        }
    }
}
