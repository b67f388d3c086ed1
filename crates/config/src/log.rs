//! The settings of logging: what is logged, and where to.

use std::path::PathBuf;

/// The filter of NCCL's level `VERSION`: only the line in which the library with NCCL's ABI says
/// its version.
const BANNER: &str = "spark_nccl::banner=info";

/// The events that are logged, and where to. By default, none are.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Log {
    /// A `tracing` filter such as `info` or `spark_ccl=debug,warn`. `None`: nothing is logged.
    pub filter: Option<String>,
    /// The file to log to, with `%h` for the host name and `%p` for the process id; standard error
    /// if `None`.
    pub file: Option<String>,
}

impl Log {
    /// The file to log to, with host name and process id filled in. `%%` stands for a percent sign.
    pub fn file_for(&self, host: &str, pid: u32) -> Option<PathBuf> {
        let pattern = self.file.as_deref()?;
        let mut path = String::with_capacity(pattern.len() + host.len());
        let mut letters = pattern.chars();
        while let Some(letter) = letters.next() {
            match (letter == '%').then(|| letters.next()) {
                None => path.push(letter),
                Some(Some('h')) => path.push_str(host),
                Some(Some('p')) => path.push_str(&pid.to_string()),
                Some(Some('%')) => path.push('%'),
                Some(other) => path.extend(Some('%').into_iter().chain(other)),
            }
        }
        Some(PathBuf::from(path))
    }

    /// The settings for a level of `NCCL_DEBUG`; `None` if it is unknown.
    pub(crate) fn from_nccl(level: &str) -> Option<Self> {
        let filter = match level.to_ascii_uppercase().as_str() {
            "NONE" => return Some(Self::default()),
            "VERSION" => BANNER.to_owned(),
            "WARN" | "ABORT" => format!("warn,{BANNER}"),
            "INFO" => "info".to_owned(),
            "TRACE" => "trace".to_owned(),
            _ => return None,
        };
        Some(Self {
            filter: Some(filter),
            ..Self::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_patterns() {
        let log = |file: &str| Log {
            file: Some(file.to_owned()),
            ..Log::default()
        };
        let expand = |file| log(file).file_for("spark1", 42).unwrap();
        assert_eq!(expand("/tmp/l.%h.%p"), PathBuf::from("/tmp/l.spark1.42"));
        assert_eq!(expand("100%%-%q-%"), PathBuf::from("100%-%q-%"));
        assert_eq!(Log::default().file_for("h", 1), None);
    }

    #[test]
    fn nccl_levels() {
        assert_eq!(
            Log::from_nccl("Info").unwrap().filter.as_deref(),
            Some("info")
        );
        for (level, filter) in [
            ("VERSION", "spark_nccl::banner=info"),
            ("WARN", "warn,spark_nccl::banner=info"),
        ] {
            assert_eq!(
                Log::from_nccl(level).unwrap().filter.as_deref(),
                Some(filter)
            );
        }
        assert_eq!(Log::from_nccl("LOUD"), None);
    }
}
