//! Configuration files of `NAME=value` lines.

use std::io;
use std::path::Path;
use std::time::Instant;

use crate::files;

/// Larger files are refused. No real file of settings is larger, but `/dev/zero` is.
const MAX_BYTES: usize = 1 << 20;

/// (line number from 1, name, value)
type Line = (usize, String, String);

/// The settings of a file, and warnings about malformed lines.
pub(crate) fn read(path: &Path, deadline: Instant) -> io::Result<(Vec<Line>, Vec<String>)> {
    let bytes = files::read(path, MAX_BYTES, deadline)?;
    let (lines, bad) = parse(&String::from_utf8_lossy(&bytes));
    let warn = |line| {
        let path = path.display();
        format!("{path}:{line} is ignored: expected NCCL_NAME=value or SPARK_CCL_NAME=value")
    };
    Ok((lines, bad.into_iter().map(warn).collect()))
}

/// The settings, and the numbers of malformed lines.
pub(crate) fn parse(text: &str) -> (Vec<Line>, Vec<usize>) {
    let mut lines = Vec::new();
    let mut bad = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        match line
            .split_once('=')
            .map(|(name, value)| (name.trim(), value.trim()))
        {
            Some((name, value)) if is_ours(name) => {
                lines.push((index + 1, name.to_owned(), value.to_owned()));
            }
            _ => bad.push(index + 1),
        }
    }
    (lines, bad)
}

/// Whether a file may set a variable. It must not set variables that identify a process (`RANK`,
/// `HOME`, ...).
fn is_ours(name: &str) -> bool {
    (name.starts_with("NCCL_") || name.starts_with("SPARK_CCL_"))
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lines_comments_and_nonsense() {
        let text = "# c\n\n NCCL_DEBUG = INFO \nRANK=3\nnonsense\nSPARK_CCL_X=a=b\nNCCL_E=\n";
        let (lines, bad) = parse(text);
        let expected = [
            (3, "NCCL_DEBUG", "INFO"),
            (6, "SPARK_CCL_X", "a=b"),
            (7, "NCCL_E", ""),
        ];
        assert_eq!(
            lines,
            expected.map(|(n, k, v)| (n, k.to_owned(), v.to_owned()))
        );
        assert_eq!(bad, [4, 5]);
    }

    #[test]
    fn an_endless_file_is_refused() {
        let deadline = Instant::now() + std::time::Duration::from_secs(60);
        let error = read(Path::new("/dev/zero"), deadline).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    proptest! {
        #[test]
        fn every_line_is_a_setting_or_bad_or_silent(text in "\\PC*") {
            let (lines, bad) = parse(&text);
            prop_assert!(lines.len() + bad.len() <= text.lines().count());
            for (_, name, _) in lines {
                prop_assert!(is_ours(&name));
            }
        }
    }
}
