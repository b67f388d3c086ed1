//! The decisions: settings, and settings for which no value fits all hosts.

use serde::Serialize;

/// A setting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Setting {
    pub(super) name: &'static str,
    pub(super) value: String,
    /// The finding that decides it.
    pub(super) probe: String,
}

/// A setting for which no value fits all hosts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct LeftOut {
    pub(super) name: &'static str,
    pub(super) why: String,
}

/// The decision.
#[derive(Debug, Clone, Default)]
pub(super) struct Values {
    pub(super) settings: Vec<Setting>,
    pub(super) left_out: Vec<LeftOut>,
}

impl Values {
    /// Adds what was decided, unless a shell would not pass it on as it is: names of interfaces
    /// come from other hosts.
    pub(super) fn add(&mut self, name: &'static str, decided: Result<Vec<Setting>, String>) {
        let plain =
            decided.and_then(
                |settings| match settings.iter().find(|one| !one.is_plain()) {
                    None => Ok(settings),
                    Some(odd) => Err(format!(
                        "{:?} has characters that a shell may change: set it by hand",
                        odd.value
                    )),
                },
            );
        match plain {
            Ok(settings) => self.settings.extend(settings),
            Err(why) => self.left_out.push(LeftOut { name, why }),
        }
    }
}

impl Setting {
    /// Whether its value is one word in every shell, with quotes or without.
    fn is_plain(&self) -> bool {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "_.:@%-=^,/".contains(c);
        self.value.chars().all(is_plain)
    }
}

/// The same value for a variable of ours and one of NCCL's.
pub(super) fn both(names: [&'static str; 2], value: &str, probe: &str) -> Vec<Setting> {
    let one = |name| Setting {
        name,
        value: value.to_owned(),
        probe: probe.to_owned(),
    };
    names.map(one).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_shell_may_change_is_left_out() {
        for (value, is_plain) in [
            ("=enp1s0f0np0,br-0%1", true),
            ("=a b", false),
            ("=$(reboot)", false),
            ("=a*", false),
            ("=a;b", false),
            ("=schön", false),
        ] {
            let mut values = Values::default();
            let names = ["SPARK_CCL_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"];
            values.add(names[0], Ok(both(names, value, "")));
            assert_eq!(
                values.settings.len(),
                if is_plain { 2 } else { 0 },
                "{value}"
            );
            assert_eq!(values.left_out.is_empty(), is_plain, "{value}");
        }
    }
}
