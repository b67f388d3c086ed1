//! The grammar of `NCCL_SOCKET_IFNAME` and `NCCL_IB_HCA`.

/// Which devices may be used: `eth`, `eth0,ib` (names with these prefixes), `=eth0` (exactly these
/// names), `^docker,lo` and `^=eth0` (all others). A name may be followed by a port (`mlx5_0:1`),
/// which matters for devices with ports. Network interfaces have none: `eth0:1` is an alias of
/// `eth0`, and matches it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pattern {
    exclude: bool,
    exact: bool,
    entries: Vec<Entry>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    name: String,
    /// As it is written; `None` for all ports.
    port: Option<String>,
}

impl Pattern {
    /// Parses a pattern. Every text is a valid one; a pattern without names allows everything.
    pub fn parse(text: &str) -> Self {
        let text = text.trim();
        let (exclude, text) = strip(text, '^');
        let (exact, text) = strip(text, '=');
        let entries = text.split(',').map(|entry| Entry::parse(entry.trim()));
        Self {
            exclude,
            exact,
            entries: entries.filter(|entry| !entry.name.is_empty()).collect(),
        }
    }

    /// The position of an interface in the pattern's order; `None` if it may not be used.
    pub fn position(&self, name: &str) -> Option<usize> {
        let name = Self::device(name);
        self.find(|entry| self.is_named(name, entry))
    }

    /// Whether a port of a device may be used.
    pub fn allows(&self, device: &str, port: u8) -> bool {
        let is_meant = |entry: &Entry| {
            let of_port = entry.port.as_ref().map(|port| port.parse());
            self.is_named(device, entry) && of_port.is_none_or(|of_port| of_port == Ok(port))
        };
        self.find(is_meant).is_some()
    }

    /// Whether it lists interfaces to use, rather than interfaces to exclude.
    pub fn is_order(&self) -> bool {
        !self.exclude && !self.entries.is_empty()
    }

    /// A name without the part from the colon on: an alias's label, or a port.
    pub fn device(name: &str) -> &str {
        name.split_once(':').map_or(name, |(device, _)| device)
    }

    /// Whether there are names, and all ports are numbers of at least 1.
    pub(crate) fn names_ports(&self) -> bool {
        let is_port = |port: &String| port.parse().is_ok_and(|port: u8| port > 0);
        let mut ports = self.entries.iter().filter_map(|entry| entry.port.as_ref());
        !self.entries.is_empty() && ports.all(is_port)
    }

    fn find(&self, is_meant: impl Fn(&Entry) -> bool) -> Option<usize> {
        if self.entries.is_empty() {
            return Some(0);
        }
        let position = self.entries.iter().position(is_meant);
        if self.exclude {
            position.is_none().then_some(0)
        } else {
            position
        }
    }

    fn is_named(&self, name: &str, entry: &Entry) -> bool {
        if self.exact {
            name == entry.name
        } else {
            name.starts_with(&entry.name)
        }
    }
}

impl Entry {
    fn parse(text: &str) -> Self {
        let port = text.split_once(':').map(|(_, port)| port.to_owned());
        Self {
            name: Pattern::device(text).to_owned(),
            port,
        }
    }
}

fn strip(text: &str, sign: char) -> (bool, &str) {
    text.strip_prefix(sign)
        .map_or((false, text), |rest| (true, rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_grammar() {
        for (pattern, allowed, refused) in [
            (
                "eth",
                &["eth0", "eth1", "eth0:1"][..],
                &["ib0", "veth0"][..],
            ),
            ("eth0,ib", &["eth0", "ib3"], &["eth1", "lo"]),
            ("=eth1", &["eth1", "eth1:2"], &["eth10", "eth"]),
            ("=eth1,eth3", &["eth1", "eth3"], &["eth2"]),
            ("^docker,lo", &["eth0"], &["docker0", "lo"]),
            ("^=eth1", &["eth10", "lo"], &["eth1"]),
            ("eth0:1", &["eth0"], &["eth1"]),
            (" eth0 , eth1 ", &["eth0", "eth1"], &["eth2"]),
            ("", &["eth0", "lo"], &[]),
            ("^", &["eth0", "lo"], &[]),
        ] {
            let parsed = Pattern::parse(pattern);
            for name in allowed {
                assert!(parsed.position(name).is_some(), "{pattern} refuses {name}");
            }
            for name in refused {
                assert!(parsed.position(name).is_none(), "{pattern} allows {name}");
            }
        }
        let pattern = Pattern::parse("ib,eth");
        assert!(pattern.position("ib0") < pattern.position("eth0"));
    }

    #[test]
    fn ports_of_devices() {
        for (pattern, allowed, refused) in [
            (
                "mlx5_0:1",
                &[("mlx5_0", 1)][..],
                &[("mlx5_0", 2), ("mlx5_1", 1)][..],
            ),
            (
                "mlx5_1",
                &[("mlx5_1", 1), ("mlx5_1", 2), ("mlx5_10", 1)],
                &[("mlx5_2", 1)],
            ),
            ("=mlx5_1", &[("mlx5_1", 2)], &[("mlx5_10", 1)]),
            (
                "=mlx5_1:2",
                &[("mlx5_1", 2)],
                &[("mlx5_1", 1), ("mlx5_10", 2)],
            ),
            (
                "^mlx5_1:2",
                &[("mlx5_1", 1), ("mlx5_0", 2)],
                &[("mlx5_1", 2), ("mlx5_12", 2)],
            ),
            (
                "^=mlx5_1",
                &[("mlx5_10", 1)],
                &[("mlx5_1", 1), ("mlx5_1", 2)],
            ),
            (
                "rocep1s0f0, roceP2p1s0f0:1",
                &[("rocep1s0f0", 1), ("roceP2p1s0f0", 1)],
                &[("rocep1s0f1", 1)],
            ),
            ("", &[("mlx5_0", 1)], &[]),
        ] {
            let parsed = Pattern::parse(pattern);
            for &(device, port) in allowed {
                assert!(
                    parsed.allows(device, port),
                    "{pattern} refuses {device}:{port}"
                );
            }
            for &(device, port) in refused {
                assert!(
                    !parsed.allows(device, port),
                    "{pattern} allows {device}:{port}"
                );
            }
        }
    }

    #[test]
    fn ports_are_numbers_from_1() {
        for good in ["mlx5_0", "^=mlx5_0:1,mlx5_1", "mlx5_0:255,"] {
            assert!(Pattern::parse(good).names_ports(), "{good}");
        }
        for bad in [
            "^",
            "=",
            ",",
            ":1",
            "mlx5_0:",
            "mlx5_0:0",
            "mlx5_0:256",
            "a:1:2",
            "a:x",
        ] {
            assert!(!Pattern::parse(bad).names_ports(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn an_exclusion_is_the_opposite_for_ports(
            list in "=?[a-c]{1,2}(:[12])?(,[a-c]{1,3}(:[12])?){0,2}",
            device in "[a-c]{1,3}",
            port in 1_u8..4,
        ) {
            let allowed = Pattern::parse(&list).allows(&device, port);
            let excluded = Pattern::parse(&format!("^{list}")).allows(&device, port);
            prop_assert!(allowed != excluded);
        }

        /// Compares with a direct evaluation of the entries that the text was made from.
        #[test]
        fn a_list_allows_what_one_of_its_entries_means(
            exact: bool,
            entries in proptest::collection::vec(("[ab]{1,3}", proptest::option::of(1_u8..4)), 1..4),
            device in "[ab]{1,3}",
            port in 1_u8..4,
        ) {
            let written = |(name, port): &(String, Option<u8>)| match port {
                Some(port) => format!("{name}:{port}"),
                None => name.clone(),
            };
            let list: Vec<_> = entries.iter().map(written).collect();
            let text = format!("{}{}", if exact { "=" } else { "" }, list.join(","));
            let meant = entries.iter().any(|(name, of_port)| {
                (device == *name || !exact && device.starts_with(name.as_str()))
                    && of_port.is_none_or(|of_port| of_port == port)
            });
            prop_assert_eq!(Pattern::parse(&text).allows(&device, port), meant);
        }

        #[test]
        fn an_exclusion_is_the_opposite(list in "=?[a-c]{1,2}(,[a-c:]{1,3}){0,2}", name in "[a-c]{1,3}") {
            let allowed = Pattern::parse(&list).position(&name).is_some();
            let excluded = Pattern::parse(&format!("^{list}")).position(&name).is_some();
            prop_assert!(allowed != excluded);
        }

        #[test]
        fn no_text_panics(text in "\\PC*", name in "\\PC*") {
            let pattern = Pattern::parse(&text);
            let _ = (pattern.position(&name), pattern.allows(&name, 1), pattern.names_ports());
        }
    }
}
