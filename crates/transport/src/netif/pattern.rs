//! The grammar of `NCCL_SOCKET_IFNAME`.

/// Which interfaces may be used: `eth`, `eth0,ib` (names that start so), `=eth0` (names that are
/// so), `^docker,lo` and `^=eth0` (all but those). A port behind a name (`eth0:1`) does not count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    exclude: bool,
    exact: bool,
    names: Vec<String>,
}

impl Pattern {
    /// Reads a pattern; every text is one. A pattern without names allows everything.
    pub fn parse(text: &str) -> Self {
        let text = text.trim();
        let (exclude, text) = strip(text, '^');
        let (exact, text) = strip(text, '=');
        let names = text.split(',').map(|name| device(name.trim()).to_owned());
        Self {
            exclude,
            exact,
            names: names.filter(|name| !name.is_empty()).collect(),
        }
    }

    /// Where in the order of the pattern an interface stands; `None`: it may not be used.
    pub fn position(&self, name: &str) -> Option<usize> {
        if self.names.is_empty() {
            return Some(0);
        }
        let name = device(name);
        let matches = |pattern: &String| {
            if self.exact {
                name == pattern
            } else {
                name.starts_with(pattern.as_str())
            }
        };
        let position = self.names.iter().position(matches);
        if self.exclude {
            position.is_none().then_some(0)
        } else {
            position
        }
    }

    /// Whether it names interfaces to use, rather than such that are not.
    pub fn is_order(&self) -> bool {
        !self.exclude && !self.names.is_empty()
    }
}

/// A name without what follows a colon: an alias's label, or a port.
pub(super) fn device(name: &str) -> &str {
    name.split_once(':').map_or(name, |(device, _)| device)
}

fn strip(text: &str, sign: char) -> (bool, &str) {
    text.strip_prefix(sign)
        .map_or((false, text), |rest| (true, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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

    proptest! {
        #[test]
        fn an_exclusion_is_the_opposite(list in "=?[a-c]{1,2}(,[a-c:]{1,3}){0,2}", name in "[a-c]{1,3}") {
            let allowed = Pattern::parse(&list).position(&name).is_some();
            let excluded = Pattern::parse(&format!("^{list}")).position(&name).is_some();
            prop_assert!(allowed != excluded);
        }

        #[test]
        fn no_text_panics(text in "\\PC*", name in "\\PC*") {
            let _ = Pattern::parse(&text).position(&name);
        }
    }
}
