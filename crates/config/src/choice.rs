//! Typed values of settings that are one of a few choices.

use std::fmt;

use crate::parse;

/// Which data path is taken (`SPARK_CCL_PATH`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Path {
    /// Zero-copy if memory and transport allow it, otherwise safe.
    #[default]
    Auto,
    /// Always staged through the link's slots.
    Safe,
    /// Zero-copy, or an error that says why that is impossible.
    ZeroCopy,
}

impl Path {
    pub(crate) const EXPECTED: &'static str = "safe, zero-copy or auto";

    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text.to_ascii_lowercase().as_str() {
            "auto" => Some(Path::Auto),
            "safe" => Some(Path::Safe),
            "zero-copy" | "zerocopy" | "zero_copy" => Some(Path::ZeroCopy),
            _ => None,
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Path::Auto => "auto",
            Path::Safe => "safe",
            Path::ZeroCopy => "zero-copy",
        })
    }
}

/// How kernels pass data between GPUs (`SPARK_CCL_GPU_PROTOCOL`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GpuProtocol {
    /// Long data in lines of 128 bytes where `NVLink` links the GPUs, all else in packets.
    #[default]
    Auto,
    /// Always in packets of 16 bytes.
    Packets,
    /// By way of the host: its threads pass the data on.
    Proxy,
    /// As [`Proxy`](Self::Proxy), but through slots wherever there are kernels for it; for tests.
    Slots,
    /// As [`Proxy`](Self::Proxy), but never through slots, nor by packets: they take no memory.
    Pieces,
}

impl GpuProtocol {
    pub(crate) const EXPECTED: &'static str = "packets, proxy, slots, pieces or auto";

    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text.to_ascii_lowercase().as_str() {
            "auto" => Some(GpuProtocol::Auto),
            "packets" => Some(GpuProtocol::Packets),
            "proxy" => Some(GpuProtocol::Proxy),
            "slots" => Some(GpuProtocol::Slots),
            "pieces" => Some(GpuProtocol::Pieces),
            _ => None,
        }
    }

    /// The setting as text, if all data goes by way of the hosts.
    pub fn by_host(self) -> Option<&'static str> {
        match self {
            GpuProtocol::Auto | GpuProtocol::Packets => None,
            GpuProtocol::Proxy => Some("SPARK_CCL_GPU_PROTOCOL=proxy"),
            GpuProtocol::Slots => Some("SPARK_CCL_GPU_PROTOCOL=slots"),
            GpuProtocol::Pieces => Some("SPARK_CCL_GPU_PROTOCOL=pieces"),
        }
    }
}

/// Which network carries links between hosts (`SPARK_CCL_NET`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Net {
    /// The best that works.
    #[default]
    Auto,
    /// TCP sockets.
    Tcp,
    /// RDMA verbs.
    Rdma,
}

impl Net {
    pub(crate) const EXPECTED: &'static str = "auto, tcp (or socket) or rdma (or ib)";

    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text.to_ascii_lowercase().as_str() {
            "auto" => Some(Net::Auto),
            "tcp" | "socket" => Some(Net::Tcp),
            "rdma" | "ib" => Some(Net::Rdma),
            _ => None,
        }
    }
}

impl fmt::Display for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Net::Auto => "auto",
            Net::Tcp => "tcp",
            Net::Rdma => "rdma",
        })
    }
}

/// Whether ranks of one host read long messages directly from each other's memory
/// (`SPARK_CCL_SINGLE_COPY`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SingleCopy {
    /// Where that pays, which each process measures once.
    #[default]
    Auto,
    /// Wherever the kernel allows it.
    Always,
    /// Nowhere.
    Never,
}

impl SingleCopy {
    pub(crate) const EXPECTED: &'static str = "0, 1 or auto";

    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text.eq_ignore_ascii_case("auto") {
            return Some(Self::Auto);
        }
        parse::boolean(text).map(|always| if always { Self::Always } else { Self::Never })
    }
}

/// The engine for collectives on device memory (`SPARK_CCL_BACKEND`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Backend {
    /// Nothing: only host memory is supported, by this library's own engine.
    #[default]
    Host,
    /// NCCL. Collectives on host memory still use the engine.
    Nccl,
    /// This library's own kernels: between the GPUs of a host for up to 8 ranks, else staged
    /// through the host. Collectives on host memory use the host's engine.
    Engine,
    /// NCCL where all ranks have it, and each a GPU of its own; otherwise this library's own
    /// kernels.
    Auto,
}

impl Backend {
    pub(crate) const EXPECTED: &'static str = "host, nccl, engine or auto";

    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text.to_ascii_lowercase().as_str() {
            "host" => Some(Backend::Host),
            "nccl" => Some(Backend::Nccl),
            "engine" => Some(Backend::Engine),
            "auto" => Some(Backend::Auto),
            _ => None,
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Backend::Host => "host",
            Backend::Nccl => "nccl",
            Backend::Engine => "engine",
            Backend::Auto => "auto",
        })
    }
}

/// An address family (`SPARK_CCL_SOCKET_FAMILY`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    pub(crate) const EXPECTED: &'static str = "AF_INET (or ipv4) or AF_INET6 (or ipv6)";

    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text.to_ascii_lowercase().as_str() {
            "af_inet" | "ipv4" => Some(Family::V4),
            "af_inet6" | "ipv6" => Some(Family::V6),
            _ => None,
        }
    }
}

/// Which interfaces may be used, in NCCL's grammar, and the variable that was set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceChoice {
    /// The text, such as `eth0,eth1`, `=eth0` or `^docker,lo`.
    pub pattern: String,
    /// The variable it came from, for error texts.
    pub variable: &'static str,
}

/// A host name or address, and a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPort {
    /// A name, an IPv4 address, or an IPv6 address (without brackets, perhaps with `%scope`).
    pub host: String,
    /// The port; never 0.
    pub port: u16,
}

impl HostPort {
    pub(crate) const EXPECTED: &'static str = "host:port, 10.0.0.1:port or [fd00::1]:port";

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let host = match host.strip_prefix('[') {
            Some(inner) => inner.strip_suffix(']')?,
            None if host.contains(':') => return None,
            None => host,
        };
        let plain =
            !host.is_empty() && !host.contains(['[', ']']) && !host.contains(char::is_whitespace);
        let digits = port.bytes().all(|b| b.is_ascii_digit());
        let port = port.parse().ok().filter(|&port| port != 0 && digits)?;
        plain.then(|| Self {
            host: host.to_owned(),
            port,
        })
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn hosts_and_ports() {
        for (text, host) in [
            ("spark1:29500", "spark1"),
            ("10.0.0.1:29500", "10.0.0.1"),
            ("[fd00::1]:29500", "fd00::1"),
            ("[fe80::1%eth0]:29500", "fe80::1%eth0"),
        ] {
            let parsed = HostPort::parse(text).unwrap();
            assert_eq!((parsed.host.as_str(), parsed.port), (host, 29500));
            assert_eq!(parsed.to_string(), text);
        }
        for bad in [
            "",
            "host",
            "host:",
            ":1",
            "host:0",
            "host:65536",
            "fd00::1:2",
            "[a:1",
            "a b:1",
            "h:+1",
        ] {
            assert_eq!(HostPort::parse(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn what_parses_prints_and_parses_again(text in "[a-z0-9:\\[\\]%. +-]{0,24}") {
            if let Some(parsed) = HostPort::parse(&text) {
                prop_assert_eq!(HostPort::parse(&parsed.to_string()), Some(parsed));
            }
        }
    }

    #[test]
    fn names_round_trip() {
        for path in [Path::Auto, Path::Safe, Path::ZeroCopy] {
            assert_eq!(Path::parse(&path.to_string()), Some(path));
        }
        for net in [Net::Auto, Net::Tcp, Net::Rdma] {
            assert_eq!(Net::parse(&net.to_string()), Some(net));
        }
        for backend in [Backend::Host, Backend::Nccl, Backend::Engine, Backend::Auto] {
            assert_eq!(Backend::parse(&backend.to_string()), Some(backend));
        }
        assert_eq!(Net::parse("Socket"), Some(Net::Tcp));
        assert_eq!(Net::parse("IB"), Some(Net::Rdma));
        assert_eq!(Family::parse("AF_INET6"), Some(Family::V6));
    }
}
