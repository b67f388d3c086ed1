//! What was decided: settings, and those for which no value fits all hosts.

use serde::Serialize;

/// A setting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Setting {
    pub(super) name: &'static str,
    pub(super) value: String,
    /// What was found that decides it.
    pub(super) probe: String,
}

/// A setting for which no value fits all hosts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct LeftOut {
    pub(super) name: &'static str,
    pub(super) why: String,
}

/// What was decided.
#[derive(Debug, Clone, Default)]
pub(super) struct Values {
    pub(super) settings: Vec<Setting>,
    pub(super) left_out: Vec<LeftOut>,
}

impl Values {
    pub(super) fn add(&mut self, name: &'static str, decided: Result<Vec<Setting>, String>) {
        match decided {
            Ok(settings) => self.settings.extend(settings),
            Err(why) => self.left_out.push(LeftOut { name, why }),
        }
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
