//! The driver, libraries, and the files that NCCL reads.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use spark_ccl_config::{Env, shown};

use super::Tree;
use crate::model::{ConfFile, Library, Software};

/// Folders into which NCCL's packages install libraries.
const FOLDERS: &[&str] = &[
    "lib",
    "lib64",
    "usr/lib",
    "usr/lib64",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib/x86_64-linux-gnu",
    "usr/local/lib",
    "usr/local/cuda/lib64",
    "usr/local/nccl/lib",
];
/// The text before the version in a build of NCCL.
const MARK: &[u8] = b"NCCL version ";
/// The number of bytes of a library that are searched. NVIDIA's builds have some 300 MB.
const LARGEST: u64 = 2 << 30;

/// More places, from this process's settings.
#[derive(Debug, Default)]
pub(super) struct Places {
    libraries: Vec<String>,
    conf: Vec<String>,
}

impl Places {
    pub(super) fn of(env: &Env) -> Self {
        let all = |name: &str| env.get(name).unwrap_or_default().to_owned();
        let mut libraries: Vec<_> = all("LD_LIBRARY_PATH")
            .split(':')
            .map(str::to_owned)
            .collect();
        let own = all("SPARK_CCL_NCCL_LIBRARY");
        if let Some(folder) = Path::new(&own).parent() {
            libraries.push(folder.display().to_string());
        }
        for folder in ["", "/lib", "/nvidia/nccl/lib"] {
            libraries.push(format!("{own}{folder}"));
        }
        libraries.retain(|folder| folder.starts_with('/'));
        let home = all("HOME");
        let mut conf = vec![
            all("SPARK_CCL_CONF_FILE"),
            all("NCCL_CONF_FILE"),
            format!("{home}/.nccl.conf"),
        ];
        conf.retain(|path| path.starts_with('/'));
        Self { libraries, conf }
    }
}

pub(super) fn software(
    tree: &Tree,
    places: &Places,
    cuda: Option<String>,
    cuda_problem: Option<String>,
) -> Software {
    Software {
        driver: tree.text("sys/module/nvidia/version"),
        cuda,
        cuda_problem,
        peermem: tree.has("sys/module/nvidia_peermem"),
        toolkits: toolkits(tree),
        nccl: nccl(tree, places),
        conf: conf(tree, places),
    }
}

/// CUDA's toolkits: the folders `usr/local/cuda*` with a `version.json`.
fn toolkits(tree: &Tree) -> Vec<Library> {
    let folders = tree.names("usr/local").into_iter();
    let folders = folders.filter(|name| name.starts_with("cuda"));
    let toolkit = |name: String| {
        let path = format!("usr/local/{name}/version.json");
        let value: serde_json::Value = serde_json::from_str(&tree.file(&path)?).ok()?;
        let version = value.get("cuda")?.get("version")?.as_str()?;
        let real = tree.resolved(&path)?;
        Some(Library {
            path: format!("/{}", real.parent()?.display()),
            version: Some(version.to_owned()),
            bytes: 0,
        })
    };
    let mut found: Vec<_> = folders.filter_map(toolkit).collect();
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found.dedup();
    found
}

/// Every file that is an NCCL library, once, however many links lead to it.
fn nccl(tree: &Tree, places: &Places) -> Vec<Library> {
    let own = places.libraries.iter().map(String::as_str);
    let folders = own.chain(FOLDERS.iter().copied());
    let files = folders.flat_map(|folder| {
        let names = tree.names(folder).into_iter();
        let names = names.filter(|name| name.starts_with("libnccl.so"));
        names.filter_map(move |name| tree.resolved(&format!("{folder}/{name}")))
    });
    let mut found: Vec<Library> = Vec::new();
    for file in files {
        let path = format!("/{}", file.display());
        if !found.iter().any(|library| library.path == path) {
            let bytes = std::fs::metadata(tree.at(&path)).map_or(0, |about| about.len());
            let version =
                version_of_name(&file).or_else(|| version_of_build(&tree.regular(&path)?));
            found.push(Library {
                path,
                version,
                bytes,
            });
        }
    }
    found
}

/// `2.28.9` of `libnccl.so.2.28.9`, the packages' form of the name.
fn version_of_name(file: &Path) -> Option<String> {
    let version = file.file_name()?.to_str()?.strip_prefix("libnccl.so.")?;
    (version.split('.').count() == 3).then(|| version.to_owned())
}

/// The version that a build of NCCL prints. Python's wheels do not have it in the file's name.
fn version_of_build(file: &PathBuf) -> Option<String> {
    const BLOCK: usize = 1 << 20;
    /// The longest version; also, the bytes kept of a block, as the text may continue in the next.
    const LONGEST: usize = 64;
    let mut file = File::open(file).ok()?.take(LARGEST);
    let mut bytes = Vec::with_capacity(BLOCK + LONGEST);
    loop {
        let kept = bytes.len().saturating_sub(LONGEST);
        bytes.drain(..kept);
        let read = Read::by_ref(&mut file)
            .take(BLOCK as u64)
            .read_to_end(&mut bytes);
        if read.ok()? == 0 {
            return None;
        }
        if let Some(version) = version_in(&bytes) {
            return Some(version);
        }
    }
}

/// The version after NCCL's mark, such as `2.28.9+cuda13.0`, without the `+` and what follows.
fn version_in(bytes: &[u8]) -> Option<String> {
    let mut places = bytes.windows(MARK.len()).enumerate();
    places.find_map(|(at, window)| {
        let rest = bytes.get(at + MARK.len()..).filter(|_| window == MARK)?;
        let is_part = |byte: &&u8| byte.is_ascii_digit() || **byte == b'.';
        let version: Vec<u8> = rest.iter().take_while(is_part).copied().collect();
        let version = String::from_utf8(version).ok()?;
        let parts = version.split('.').filter(|part| !part.is_empty()).count();
        (parts == 3).then_some(version)
    })
}

/// The existing configuration files and their settings.
fn conf(tree: &Tree, places: &Places) -> Vec<ConfFile> {
    let own = places.conf.iter().map(String::as_str);
    let paths = own.chain(["/root/.nccl.conf", "/etc/nccl.conf"]);
    let mut found: Vec<ConfFile> = Vec::new();
    for path in paths {
        let mut env = Env::default();
        let is_known = found.iter().any(|file| file.path == path);
        let file = tree.regular(path).filter(|_| !is_known);
        if file.is_some_and(|file| env.add_file(&file).is_ok()) {
            let settings = env.iter();
            let settings = settings
                .map(|(name, value)| (name.to_owned(), shown(name, &value.text).to_owned()));
            found.push(ConfFile {
                path: path.to_owned(),
                settings: settings.collect(),
            });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_of_files_are_not_told() {
        let mut recorded = crate::testing::spark("a", 1);
        recorded.set(
            "etc/nccl.conf",
            "NCCL_DEBUG=INFO\nSPARK_CCL_SECRET=hunter2-a\nSPARK_CCL_UNIQUE_ID=hunter2-b\n\
             SPARK_CCL_SECRT=hunter2-c\nSPARK_CCL_NET=tcp",
        );
        let host = recorded.host();
        assert!(!host.to_json().contains("hunter2"), "{}", host.to_json());
        let settings = &host.software.conf[0].settings;
        let value = |name: &str| settings.iter().find(|one| one.0 == name).unwrap().1.clone();
        assert_eq!(value("NCCL_DEBUG"), "INFO");
        assert_eq!(value("SPARK_CCL_NET"), "tcp");
        assert_eq!(value("SPARK_CCL_SECRET"), "redacted");
    }

    #[test]
    fn versions_of_nccl() {
        let of = |name: &str| version_of_name(Path::new(name));
        assert_eq!(of("usr/lib/libnccl.so.2.28.9").as_deref(), Some("2.28.9"));
        assert_eq!(of("libnccl.so.2"), None);
        let in_bytes = |text: &str| version_in(text.as_bytes());
        assert_eq!(
            in_bytes("..NCCL version %d NCCL version 2.30.7+cuda13.0\0").as_deref(),
            Some("2.30.7")
        );
        assert_eq!(in_bytes("NCCL version 2.30"), None);
    }

    #[test]
    fn a_version_across_two_blocks_is_found() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut bytes = vec![b'x'; (1 << 20) - 15];
        bytes.extend(b"NCCL version 2.28.9+cuda13.0");
        bytes.resize(3 << 20, b'y');
        std::fs::write(file.path(), bytes).unwrap();
        let found = version_of_build(&file.path().to_owned());
        assert_eq!(found.as_deref(), Some("2.28.9"));
        std::fs::write(file.path(), "nothing").unwrap();
        assert_eq!(version_of_build(&file.path().to_owned()), None);
    }
}
