//! Typed access to the snapshot of the environment.

use crate::Error;

/// Looks up a variable; the caller owns the snapshot.
pub(crate) type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// A variable's trimmed text. An empty variable counts as not set, as after a shell's
/// `VAR= command`.
pub(crate) fn text(env: Lookup<'_>, name: &str) -> Option<String> {
    env(name)
        .map(|value| value.trim().to_owned())
        .filter(|value| !value.is_empty())
}

pub(crate) fn number(env: Lookup<'_>, name: &str, expected: &str) -> Result<Option<u32>, Error> {
    text(env, name)
        .map(|value| parse(name, &value, expected))
        .transpose()
}

pub(crate) fn port(env: Lookup<'_>, name: &str) -> Result<Option<u16>, Error> {
    text(env, name)
        .map(|value| match value.parse::<u16>() {
            Ok(port) if port > 0 => Ok(port),
            _ => Err(invalid(name, &value, "a port from 1 to 65535")),
        })
        .transpose()
}

/// Whether a flag is set, by the words that torch's `str2bool` accepts.
pub(crate) fn flag(env: Lookup<'_>, name: &str) -> bool {
    text(env, name).is_some_and(|value| {
        ["1", "true", "yes", "y"].contains(&value.to_ascii_lowercase().as_str())
    })
}

pub(crate) fn invalid(variable: &str, value: &str, expected: &str) -> Error {
    Error::Invalid {
        variable: variable.to_owned(),
        value: value.to_owned(),
        expected: expected.to_owned(),
    }
}

fn parse(name: &str, value: &str, expected: &str) -> Result<u32, Error> {
    value.parse().map_err(|_| invalid(name, value, expected))
}
