//! Reports and pictures are written as a whole or not at all.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use spark_ccl_config::files;

/// Writes a file by way of a draft. A link in its place is replaced, not followed; a device or
/// pipe, such as `/dev/stdout`, is written to.
///
/// # Errors
///
/// As the system says.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if fs::metadata(path).is_ok_and(|known| !known.is_file()) {
        return files::create(path)?.write_all(bytes);
    }
    files::replace(path, &path.with_extension("new"), bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_link_is_replaced_and_a_device_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let [path, mine, null] = ["path", "mine", "null"].map(|name| folder.path().join(name));
        fs::write(&mine, "mine").unwrap();
        symlink(&mine, &path).unwrap();
        symlink("/dev/null", &null).unwrap();
        replace(&path, b"new").unwrap();
        replace(&null, b"new").unwrap();
        assert_eq!(fs::read(&mine).unwrap(), b"mine");
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert!(fs::read_link(&null).is_ok());
        assert!(replace(folder.path(), b"new").is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
    }
}
