//! Reads variables from the snapshot, and records which ones were used.

use std::fmt;
use std::ops::RangeInclusive;

use crate::env::{Env, Origin, Value};
use crate::error::Error;
use crate::{parse, variables};

/// A variable that was set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Used {
    /// The variable.
    pub name: String,
    /// Its value; `redacted` if it is a secret.
    pub value: String,
    /// Where it was set.
    pub origin: Origin,
}

impl Used {
    pub(crate) fn new(name: &str, value: &Value) -> Self {
        let secret = variables::find(name).is_some_and(|variable| variable.secret);
        let text = if secret {
            "redacted"
        } else {
            value.text.trim()
        };
        Self {
            name: name.to_owned(),
            value: text.to_owned(),
            origin: value.origin.clone(),
        }
    }
}

impl fmt::Display for Used {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={} (from {})", self.name, self.value, self.origin)
    }
}

/// A variable that is being read: its name, and its value with a trimmed, non-empty text.
#[derive(Clone, Copy)]
pub(crate) struct Taken<'a> {
    pub(crate) name: &'static str,
    pub(crate) text: &'a str,
    pub(crate) value: &'a Value,
}

impl Taken<'_> {
    /// The value, where code has set it with its type.
    pub(crate) fn typed<T: Clone + 'static>(&self) -> Option<T> {
        self.value.typed.as_ref()?.downcast_ref().cloned()
    }

    pub(crate) fn invalid(&self, expected: &str) -> Error {
        Error::Invalid {
            name: self.name.to_owned(),
            value: self.text.to_owned(),
            origin: self.value.origin.clone(),
            expected: expected.to_owned(),
        }
    }
}

/// Reads variables, and records each one that decides something as used.
pub(crate) struct Reader<'a> {
    env: &'a Env,
    pub(crate) used: Vec<Used>,
    pub(crate) warnings: Vec<String>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(env: &'a Env) -> Self {
        Self {
            env,
            used: Vec::new(),
            warnings: env.warnings().to_vec(),
        }
    }

    /// The first of the names with a non-empty value. It is recorded as used.
    pub(crate) fn take(&mut self, names: &[&'static str]) -> Option<Taken<'a>> {
        let taken = names.iter().find_map(|&name| {
            let value = self.env.value(name)?;
            let text = value.text.trim();
            (!text.is_empty()).then_some(Taken { name, text, value })
        })?;
        self.used.push(Used::new(taken.name, taken.value));
        Some(taken)
    }

    /// A typed value; `None` if nothing is set. The error for an invalid value says what is
    /// expected.
    pub(crate) fn parsed<T: Clone + 'static>(
        &mut self,
        names: &[&'static str],
        expected: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some(taken) = self.take(names) else {
            return Ok(None);
        };
        let value = taken.typed().or_else(|| parse(taken.text));
        value.map(Some).ok_or_else(|| taken.invalid(expected))
    }

    /// A number within a range.
    pub(crate) fn number(
        &mut self,
        names: &[&'static str],
        range: RangeInclusive<usize>,
    ) -> Result<Option<usize>, Error> {
        let expected = format!("a number from {} to {}", range.start(), range.end());
        self.parsed(names, &expected, |text| {
            parse::number(text).filter(|number| range.contains(number))
        })
    }

    /// A switch.
    pub(crate) fn boolean(&mut self, name: &'static str) -> Result<Option<bool>, Error> {
        self.parsed(&[name], "0 or 1", parse::boolean)
    }
}
