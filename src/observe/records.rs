//! The files of records: JSON, and pickles that PyTorch's analyzer reads.

use std::fmt::Display;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use spark_ccl_config::files;
use spark_ccl_status::record::{Group, Record};

use crate::error::Error;

/// The subfolder with pickles alone: the analyzer takes all files of a folder for pickles.
const PICKLES: &str = "fr_trace";
/// The text before a rank's number, by which the analyzer finds that.
const PREFIX: &str = "rank_";

/// Writes what a rank of the world has recorded, as JSON and as a pickle, each atomically. Returns
/// the file with JSON.
pub(super) fn write_for_fault(
    folder: &Path,
    rank: u32,
    groups: &[Group],
) -> Result<PathBuf, Error> {
    let record = Record::new(&library(), groups);
    let pickles = folder.join(PICKLES);
    fs::create_dir_all(&pickles).map_err(|error| refused(&pickles, error))?;
    let draft = folder.join(format!(".{PREFIX}{rank}-pid{}.draft", std::process::id()));
    let replace = |path: &Path, bytes: &[u8]| {
        files::replace(path, &draft, bytes).map_err(|error| refused(path, error))
    };
    let pickle = pickles.join(format!("{PREFIX}{rank}"));
    replace(&pickle, &encoded(&pickle, record.pickle())?)?;
    let json = folder.join(format!("{PREFIX}{rank}.json"));
    replace(&json, &encoded(&json, record.json())?)?;
    Ok(json)
}

/// Writes a record to a file: as JSON if its name says so, else as a pickle.
pub(super) fn write(path: &Path, groups: &[Group]) -> Result<(), Error> {
    let record = Record::new(&library(), groups);
    let is_json = path
        .extension()
        .is_some_and(|extension| extension == "json");
    let bytes = if is_json {
        encoded(path, record.json())
    } else {
        encoded(path, record.pickle())
    };
    let bytes = bytes?;
    files::create(path)
        .and_then(|mut file| file.write_all(&bytes))
        .map_err(|error| refused(path, error))
}

fn encoded<E: Display>(path: &Path, bytes: Result<Vec<u8>, E>) -> Result<Vec<u8>, Error> {
    bytes.map_err(|error| refused(path, error))
}

fn refused(path: &Path, error: impl Display) -> Error {
    Error::System {
        what: format!("writing the record of operations to {}", path.display()),
        problem: error.to_string(),
    }
}

fn library() -> String {
    format!("spark-ccl {}", crate::world::VERSION)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{lchown, symlink};

    use spark_ccl_testing::{Need, has};

    use super::*;

    #[test]
    fn a_record_is_not_written_through_a_link_of_another_user() {
        if !has(Need::Chown) {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let [path, mine] = ["rank_0.json", "mine"].map(|name| folder.path().join(name));
        fs::write(&mine, "mine").unwrap();
        symlink(&mine, &path).unwrap();
        lchown(&path, Some(65534), None).unwrap();
        let refused = write(&path, &[]).unwrap_err().to_string();
        assert!(
            refused.contains("rank_0.json") && refused.contains("another user"),
            "{refused}"
        );
        assert_eq!(fs::read(&mine).unwrap(), b"mine");
        fs::remove_file(&path).unwrap();
        write(&path, &[]).unwrap();
        assert!(fs::read_to_string(&path).unwrap().contains("version"));
    }
}
