//! A snapshot of all variables and their origins.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::{file, files, parse};

/// The variable that says how long the ranks may take to meet.
pub(crate) const INIT_TIMEOUT: &str = "SPARK_CCL_INIT_TIMEOUT";
/// The default of [`INIT_TIMEOUT`].
pub(crate) const DEFAULT_INIT_TIMEOUT: Duration = Duration::from_secs(120);

/// Where a value was set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The process environment.
    Environment,
    /// A line of a configuration file.
    File {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// The program itself, or its command line.
    Code(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Environment => f.write_str("environment"),
            Origin::File { path, line } => write!(f, "{}:{line}", path.display()),
            Origin::Code(by) => f.write_str(by),
        }
    }
}

/// A value and its origin.
#[derive(Clone)]
pub struct Value {
    /// The text as it was set, or the text of a typed value in logs and errors.
    pub text: String,
    /// Where it was set.
    pub origin: Origin,
    /// The value, if code has set it with its type.
    pub(crate) typed: Option<Arc<dyn Any + Send + Sync>>,
}

impl Value {
    fn new(text: impl Into<String>, origin: Origin) -> Self {
        Self {
            text: text.into(),
            origin,
            typed: None,
        }
    }
}

/// A snapshot of all variables. Code takes precedence over the environment, and the environment
/// over files.
///
/// `Debug` prints names and origins, never values: some of them are secrets.
#[derive(Clone, Default)]
pub struct Env {
    values: BTreeMap<String, Value>,
    warnings: Vec<String>,
}

impl Env {
    /// The process environment, supplemented by NCCL's configuration files: the one that
    /// `SPARK_CCL_CONF_FILE` or `NCCL_CONF_FILE` names (by default `~/.nccl.conf`), then
    /// `/etc/nccl.conf`.
    pub fn from_process() -> Self {
        let mut env = Self::from_pairs(
            std::env::vars_os().map(|(k, v)| (lossy(k.as_os_str()), lossy(v.as_os_str()))),
        );
        env.read_config_files(Path::new("/etc/nccl.conf"));
        env
    }

    /// Only these pairs, as if they were the process environment. No file is read.
    pub fn from_pairs<K: Into<String>, V: Into<String>>(
        pairs: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        let mut env = Self::default();
        for (name, text) in pairs {
            let value = Value::new(text, Origin::Environment);
            env.values.insert(name.into(), value);
        }
        env
    }

    /// Sets a value from code, which takes precedence over all others. `by` names the origin for
    /// users: `"--path"`, `"Builder::set"`.
    pub fn set(&mut self, name: &str, text: &str, by: &str) {
        let value = Value::new(text, Origin::Code(by.to_owned()));
        self.values.insert(name.to_owned(), value);
    }

    /// Like [`set`](Self::set), for a value that needs no parsing. It has the type of its field in
    /// [`Settings`](crate::Settings), or `Vec<u8>` for a secret. The `text` of a secret must not
    /// reveal it.
    pub fn set_typed<T: Any + Send + Sync>(&mut self, name: &str, text: &str, value: T, by: &str) {
        let value = Value {
            typed: Some(Arc::new(value)),
            ..Value::new(text, Origin::Code(by.to_owned()))
        };
        self.values.insert(name.to_owned(), value);
    }

    /// The text of a variable that is set.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(|value| value.text.as_str())
    }

    /// The text of a variable that is set, and its origin.
    pub fn value(&self, name: &str) -> Option<&Value> {
        self.values.get(name)
    }

    /// All variables that are set, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.values
            .iter()
            .map(|(name, value)| (name.as_str(), value))
    }

    /// Adds the `NAME=value` lines of a file of at most 1 MiB for names that are not set yet. A
    /// pipe has a quarter of `SPARK_CCL_INIT_TIMEOUT`, 5 s at most, to deliver them.
    ///
    /// Malformed lines become warnings, which [`Settings`](crate::Settings) passes on.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn add_file(&mut self, path: &Path) -> std::io::Result<()> {
        let deadline = Instant::now() + files::patience(self.init_timeout());
        let (lines, warnings) = file::read(path, deadline)?;
        self.warnings.extend(warnings);
        for (line, name, text) in lines {
            let path = path.to_owned();
            let value = Value::new(text, Origin::File { path, line });
            self.values.entry(name).or_insert(value);
        }
        Ok(())
    }

    /// The time that the ranks have to meet: as set, if that is valid, else the default.
    pub fn init_timeout(&self) -> Duration {
        let value = self.value(INIT_TIMEOUT);
        let time = value.and_then(|value| match &value.typed {
            Some(typed) => typed.downcast_ref().copied(),
            None => parse::seconds(&value.text),
        });
        time.unwrap_or(DEFAULT_INIT_TIMEOUT)
    }

    /// The warnings about the files that were read.
    pub(crate) fn warnings(&self) -> &[String] {
        &self.warnings
    }

    fn read_config_files(&mut self, system: &Path) {
        let named = ["SPARK_CCL_CONF_FILE", "NCCL_CONF_FILE"]
            .into_iter()
            .find_map(|name| Some((name, self.get(name).filter(|text| !text.is_empty())?)));
        if let Some((name, path)) = named {
            let path = PathBuf::from(path);
            if let Err(error) = self.add_file(&path) {
                let path = path.display();
                self.warnings
                    .push(format!("{name}={path} cannot be read: {error}"));
            }
        } else if let Some(home) = self.get("HOME").filter(|home| !home.is_empty()) {
            self.add_optional(&Path::new(home).join(".nccl.conf"));
        }
        self.add_optional(system);
    }

    fn add_optional(&mut self, path: &Path) {
        match self.add_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                self.warnings
                    .push(format!("{} cannot be read: {error}", path.display()));
            }
            _ => {}
        }
    }
}

impl fmt::Debug for Env {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(
                self.values
                    .iter()
                    .map(|(name, value)| (name, &value.origin)),
            )
            .finish()
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Value")
            .field("origin", &self.origin)
            .finish_non_exhaustive()
    }
}

fn lossy(text: &std::ffi::OsStr) -> String {
    text.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_wins_over_environment_and_that_over_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nccl.conf");
        std::fs::write(&path, "# mine\nNCCL_A=file\nNCCL_B = file\nNCCL_C=file\n").unwrap();
        let conf = path.to_str().unwrap();
        let mut env = Env::from_pairs([
            ("NCCL_CONF_FILE", conf),
            ("NCCL_A", "env"),
            ("NCCL_B", "env"),
        ]);
        env.set("NCCL_A", "code", "--a");
        env.read_config_files(&dir.path().join("absent"));
        assert_eq!(env.get("NCCL_A"), Some("code"));
        assert_eq!(env.value("NCCL_A").unwrap().origin.to_string(), "--a");
        assert_eq!(env.get("NCCL_B"), Some("env"));
        assert_eq!(env.value("NCCL_B").unwrap().origin, Origin::Environment);
        assert_eq!(env.get("NCCL_C"), Some("file"));
        assert_eq!(
            env.value("NCCL_C").unwrap().origin.to_string(),
            format!("{conf}:4")
        );
        assert!(env.warnings().is_empty());
    }

    #[test]
    fn home_file_then_system_file() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(".nccl.conf"), "NCCL_A=home").unwrap();
        let system = dir.path().join("etc");
        std::fs::write(&system, "NCCL_A=system\nNCCL_B=system").unwrap();
        let mut env = Env::from_pairs([("HOME", dir.path().to_str().unwrap())]);
        env.read_config_files(&system);
        assert_eq!(env.get("NCCL_A"), Some("home"));
        assert_eq!(env.get("NCCL_B"), Some("system"));
    }

    #[test]
    fn a_named_file_that_is_missing_is_a_warning() {
        let mut env = Env::from_pairs([("NCCL_CONF_FILE", "/nowhere/at/all")]);
        env.read_config_files(Path::new("/nowhere/either"));
        assert_eq!(env.warnings().len(), 1);
        assert!(env.warnings()[0].contains("NCCL_CONF_FILE=/nowhere/at/all"));
    }

    #[test]
    fn debug_prints_no_values() {
        let env = Env::from_pairs([("SPARK_CCL_SECRET", "hunter2hunter2hunter2")]);
        assert!(!format!("{env:?}").contains("hunter2"));
        let value = env.value("SPARK_CCL_SECRET").unwrap();
        assert!(!format!("{value:?}").contains("hunter2"));
    }
}
