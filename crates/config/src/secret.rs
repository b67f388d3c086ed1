//! The secret that admits a process to a communicator.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;

use crate::files;

const MIN_BYTES: usize = 16;
const MAX_BYTES: usize = 4096;

/// The secret's bytes. They are never printed: `Debug` is redacted, and there is no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// The bytes themselves.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// A secret from text without the white space around it. The error says what is wrong with it.
    pub(crate) fn new(text: &[u8]) -> Result<Self, String> {
        let bytes = text.trim_ascii();
        if (MIN_BYTES..=MAX_BYTES).contains(&bytes.len()) {
            return Ok(Self(bytes.to_vec()));
        }
        Err(format!(
            "a secret has {MIN_BYTES} to {MAX_BYTES} bytes, this one {}; \
             `openssl rand -hex 32` makes a good one",
            if bytes.len() > MAX_BYTES {
                "more".to_owned()
            } else {
                bytes.len().to_string()
            }
        ))
    }

    /// A secret from a file that is read until the deadline, and a warning if other users can read
    /// that file.
    pub(crate) fn from_file(
        path: &Path,
        deadline: Instant,
    ) -> Result<(Self, Option<String>), String> {
        let file = files::open_to_read(path).map_err(|error| error.to_string())?;
        let mode = file.metadata().map_err(|error| error.to_string())?.mode();
        // A little more than the limit, for white space around the secret.
        let bytes = files::read_open(&file, MAX_BYTES + 64, deadline);
        let bytes = bytes.map_err(|error| error.to_string())?;
        let warning = (mode & 0o044 != 0).then(|| {
            format!(
                "{path} holds a secret and others can read it (mode {mode:03o}): chmod 600 {path}",
                path = path.display(),
                mode = mode & 0o777
            )
        });
        Ok((Self::new(&bytes)?, warning))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(redacted)")
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    use super::*;

    const TEXT: &str = "0123456789abcdef";

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    fn write(mode: u32, text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        file
    }

    #[test]
    fn length_is_checked_and_the_text_never_printed() {
        let secret = Secret::new(b" 0123456789abcdef\n").unwrap();
        assert_eq!(secret.as_bytes(), TEXT.as_bytes());
        assert!(!format!("{secret:?}").contains("0123"));
        let error = Secret::new(b"short").unwrap_err();
        assert!(
            error.contains("16 to 4096") && !error.contains("short"),
            "{error}"
        );
        assert!(Secret::new(&[b'x'; 5000]).is_err());
    }

    #[test]
    fn a_file_that_others_can_read_is_a_warning() {
        let private = write(0o600, "0123456789abcdef\n");
        let (secret, warning) = Secret::from_file(private.path(), soon()).unwrap();
        assert_eq!(secret.as_bytes(), TEXT.as_bytes());
        assert_eq!(warning, None);
        let open = write(0o644, TEXT);
        let (_, warning) = Secret::from_file(open.path(), soon()).unwrap();
        assert!(warning.unwrap().contains("mode 644"));
    }

    #[test]
    fn missing_and_endless_files_are_errors() {
        assert!(Secret::from_file(Path::new("/nowhere/at/all"), soon()).is_err());
        assert!(Secret::from_file(Path::new("/dev/zero"), soon()).is_err());
    }
}
