//! The configuration of a communicator, and its form in C.

use std::ffi::{CString, c_int, c_uint};
use std::time::Duration;

use crate::raw::ncclConfig_t;
use crate::{ArgumentError, Error, Library, Version};

/// The configuration of a communicator. For each `None`, NCCL and its environment variables decide.
///
/// ```
/// # use spark_ccl_nccl::Config;
/// let config = Config { blocking: false, name: Some("gradients".into()), ..Config::default() };
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Whether NCCL's calls block. Blocking calls are faster, but never return if a peer is gone.
    /// Nonblocking calls run on a thread of NCCL, and this crate waits for them for at most
    /// [`timeout`](Self::timeout). The default is to block, as in NCCL.
    pub blocking: bool,
    /// How long a call of a nonblocking communicator may take. The default is 60 s.
    pub timeout: Duration,
    /// The name in NCCL's logs, whose memory is never freed; needs 2.27.3.
    pub name: Option<String>,
    /// The fewest CTAs that a kernel uses; only together with [`max_ctas`](Self::max_ctas).
    pub min_ctas: Option<u32>,
    /// The most CTAs that a kernel uses.
    pub max_ctas: Option<u32>,
    /// The CTAs per cluster, up to 8.
    pub cga_cluster_size: Option<u32>,
    /// The preference among equally fast ways to run kernels; needs 2.27.3.
    pub cta_policy: Option<CtaPolicy>,
    /// The network to use, for instance `IB` or `Socket`.
    pub net: Option<String>,
    /// The network's traffic class; needs 2.26.2.
    pub traffic_class: Option<u32>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            blocking: true,
            timeout: Duration::from_secs(60),
            name: None,
            min_ctas: None,
            max_ctas: None,
            cga_cluster_size: None,
            cta_policy: None,
            net: None,
            traffic_class: None,
        }
    }
}

/// The share of the GPU's CTAs that kernels use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CtaPolicy {
    /// The number that gives the best speed.
    Default = 0,
    /// Fewer, if that costs little speed.
    Efficiency = 1,
    /// None, if the network or copy engines can do the work.
    Zero = 2,
}

/// NCCL's configuration, with the string that it points to. NCCL copies that string.
pub(crate) struct RawConfig {
    pub(crate) raw: ncclConfig_t,
    _net: Option<CString>,
}

impl Config {
    pub(crate) fn raw(
        &self,
        library: Library,
        operation: &'static str,
    ) -> Result<RawConfig, Error> {
        self.supported(library)?;
        let argument = |error| Error::Argument {
            operation,
            rank: None,
            error,
        };
        // NCCL compares the two before it fills in its own defaults.
        if self.min_ctas.is_some() && self.max_ctas.is_none() {
            return Err(argument(ArgumentError::Alone {
                what: "Config::min_ctas",
                with: "Config::max_ctas",
            }));
        }
        let number = |what, value| number(what, value).map_err(argument);
        let name = text("Config::name", self.name.as_deref()).map_err(argument)?;
        let net = text("Config::net", self.net.as_deref()).map_err(argument)?;
        let raw = ncclConfig_t {
            blocking: c_int::from(self.blocking),
            cgaClusterSize: number("Config::cga_cluster_size", self.cga_cluster_size)?,
            minCTAs: number("Config::min_ctas", self.min_ctas)?,
            maxCTAs: number("Config::max_ctas", self.max_ctas)?,
            trafficClass: number("Config::traffic_class", self.traffic_class)?,
            CTAPolicy: self.cta_policy.map_or(UNDEFINED, |policy| policy as c_int),
            // NCCL keeps this pointer, and passes it on to communicators derived from this one: it
            // is never freed.
            commName: name.map_or(std::ptr::null(), |name| name.into_raw().cast_const()),
            netName: net.as_ref().map_or(std::ptr::null(), |net| net.as_ptr()),
            ..INITIAL
        };
        Ok(RawConfig { raw, _net: net })
    }

    /// Fails if the library is too old for a field that is set: it would silently ignore it.
    fn supported(&self, library: Library) -> Result<(), Error> {
        let late = [
            ("Config::name", self.name.is_some(), Version::new(2, 27, 3)),
            (
                "Config::cta_policy",
                self.cta_policy.is_some(),
                Version::new(2, 27, 3),
            ),
            (
                "Config::traffic_class",
                self.traffic_class.is_some(),
                Version::new(2, 26, 2),
            ),
        ];
        for (what, set, since) in late {
            if set {
                library.needs(what, since)?;
            }
        }
        Ok(())
    }
}

/// `NCCL_CONFIG_UNDEF_INT`.
const UNDEFINED: c_int = c_int::MIN;

/// `NCCL_CONFIG_INITIALIZER` of the last version whose fields cudarc has. Older and newer libraries
/// accept it: they read the fields common to both.
const INITIAL: ncclConfig_t = ncclConfig_t {
    size: size_of::<ncclConfig_t>(),
    magic: 0xcafe_beef,
    version: Version::new(2, 30, 4).code() as c_uint,
    blocking: UNDEFINED,
    cgaClusterSize: UNDEFINED,
    minCTAs: UNDEFINED,
    maxCTAs: UNDEFINED,
    netName: std::ptr::null(),
    splitShare: UNDEFINED,
    trafficClass: UNDEFINED,
    commName: std::ptr::null(),
    collnetEnable: UNDEFINED,
    CTAPolicy: UNDEFINED,
    shrinkShare: UNDEFINED,
    nvlsCTAs: UNDEFINED,
    nChannelsPerNetPeer: UNDEFINED,
    nvlinkCentricSched: UNDEFINED,
    graphUsageMode: UNDEFINED,
    numRmaCtx: UNDEFINED,
    maxP2pPeers: UNDEFINED,
};

fn number(what: &'static str, value: Option<u32>) -> Result<c_int, ArgumentError> {
    value.map_or(Ok(UNDEFINED), |value| {
        c_int::try_from(value).map_err(|_| ArgumentError::Beyond {
            what,
            seen: value as usize,
            least: 0,
            most: c_int::MAX as usize,
        })
    })
}

fn text(what: &'static str, text: Option<&str>) -> Result<Option<CString>, ArgumentError> {
    let text = text.map(CString::new).transpose();
    text.map_err(|_| ArgumentError::ZeroByte { what })
}
