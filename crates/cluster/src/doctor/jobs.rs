//! The settings that jobs will have: those of this process, and of files.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use spark_ccl_config::{Env, Origin};

use super::checks::Pinned;
use crate::error::Error;

/// The longest file of settings, in bytes.
const LONGEST: u64 = 1 << 20;

/// The settings in this process's environment, which `launch` passes on.
pub(crate) fn environment() -> Vec<Pinned> {
    let env = Env::from_process();
    let own = env
        .iter()
        .filter(|(name, value)| is_ours(name) && value.origin == Origin::Environment);
    let settings: Vec<_> = own
        .map(|(name, value)| (name.to_owned(), value.text.clone()))
        .collect();
    let is_any = !settings.is_empty();
    let pinned = Pinned {
        from: "the environment".to_owned(),
        settings,
    };
    is_any.then_some(pinned).into_iter().collect()
}

/// Adds the settings of files, each as `docker run --env-file` or a shell takes it.
pub(super) fn with_files(files: &[PathBuf]) -> Result<Vec<Pinned>, Error> {
    let mut all = environment();
    for path in files {
        let text = read(path).map_err(Error::system(format!("--env-file {}", path.display())))?;
        all.push(Pinned {
            from: path.display().to_string(),
            settings: parse(&text),
        });
    }
    Ok(all)
}

fn read(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(LONGEST).read_to_string(&mut text)?;
    Ok(text)
}

fn parse(text: &str) -> Vec<(String, String)> {
    let pairs = text.lines().filter_map(|line| {
        let line = line.trim();
        let (name, value) = line
            .strip_prefix("export ")
            .unwrap_or(line)
            .split_once('=')?;
        let value = value.trim();
        let inner = ['\'', '"'].iter().find_map(|&quote| {
            value
                .strip_prefix(quote)
                .and_then(|value| value.strip_suffix(quote))
        });
        Some((name.trim().to_owned(), inner.unwrap_or(value).to_owned()))
    });
    pairs.filter(|(name, _)| is_ours(name)).collect()
}

fn is_ours(name: &str) -> bool {
    name.starts_with("NCCL_") || name.starts_with("SPARK_CCL_")
}

#[cfg(test)]
mod tests {
    #[test]
    fn files_of_docker_and_of_shells() {
        let text = "# a comment\nNCCL_DEBUG=INFO\nexport NCCL_IB_HCA='=a,b'\nPATH=/bin\n\
                    SPARK_CCL_NET = \"tcp\"\nNCCL_X\n";
        let expected = [
            ("NCCL_DEBUG", "INFO"),
            ("NCCL_IB_HCA", "=a,b"),
            ("SPARK_CCL_NET", "tcp"),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(super::parse(text), expected);
    }
}
