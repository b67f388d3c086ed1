//! Locates the file of measured choices. Knows the variables that name it, not what is in it.

use std::path::PathBuf;

use crate::env::Env;
use crate::reader::Reader;

/// The file of measured choices: the one that is named, or this host's in the user's cache folder.
pub(crate) fn tuning_file(reader: &mut Reader<'_>, env: &Env) -> Option<PathBuf> {
    if let Some(taken) = reader.take(&["SPARK_CCL_TUNING"]) {
        return (taken.text != "off").then(|| PathBuf::from(taken.text));
    }
    let folder = |name: &str| {
        let folder = env.get(name).map(PathBuf::from);
        folder.filter(|folder| folder.is_absolute())
    };
    let cache =
        folder("XDG_CACHE_HOME").or_else(|| folder("HOME").map(|home| home.join(".cache")))?;
    // Different machines may share a home folder.
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    let host = host.trim().replace('/', "_");
    Some(cache.join("spark-ccl").join(format!("tuning-{host}.json")))
}
