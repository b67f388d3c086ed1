//! The traces of a job: processes, shared memory, network namespaces.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::processes::patience;

/// A variable in the environment of all the job's processes.
const MARK: &str = "SPARK_TEST_JOB";
/// How long the last processes may take to end.
const GRACE: Duration = Duration::from_secs(5);

pub(super) struct Traces {
    mark: String,
    files: BTreeSet<PathBuf>,
    /// Inodes of the job's memory and network namespaces.
    inodes: BTreeSet<u64>,
}

impl Traces {
    pub(super) fn new(seed: u32) -> Self {
        Self {
            mark: format!("{}-{seed}", std::process::id()),
            files: named_memory(),
            inodes: BTreeSet::new(),
        }
    }

    /// The variable that marks the job's processes.
    pub(super) fn mark(&self) -> (&'static str, &str) {
        (MARK, &self.mark)
    }

    /// Records the inodes of these processes.
    pub(super) fn take(&mut self, pids: Vec<u32>) {
        self.inodes = pids.into_iter().flat_map(inodes).collect();
        let own = namespace(std::process::id());
        self.inodes.retain(|&inode| Some(inode) != own);
    }

    /// A trace that is left when everything should have ended.
    pub(super) fn left(&self) -> Option<String> {
        let deadline = Instant::now() + GRACE * patience();
        loop {
            let left = self.look()?;
            if Instant::now() > deadline {
                return Some(left);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn look(&self) -> Option<String> {
        let variable = format!("{MARK}={}\0", self.mark);
        for pid in processes() {
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            if contains(&environment, variable.as_bytes()) {
                return Some(format!("process {pid} runs"));
            }
            if !self.inodes.is_disjoint(&inodes(pid)) {
                return Some(format!("process {pid} holds memory or a namespace"));
            }
        }
        // Other programs may have created theirs there, and use it.
        let new = named_memory()
            .into_iter()
            .filter(|file| !self.files.contains(file));
        let unused = new
            .into_iter()
            .find(|file| !processes().any(|pid| uses(pid, file)));
        unused.map(|file| format!("{} is there", file.display()))
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

fn processes() -> impl Iterator<Item = u32> {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The inodes of the process's mapped shared memory, and of its network namespace.
fn inodes(pid: u32) -> BTreeSet<u64> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let memory = maps
        .lines()
        .filter(|line| line.contains("/memfd:spark-ccl"));
    let inodes = memory.filter_map(|line| line.split_whitespace().nth(4)?.parse().ok());
    inodes.chain(namespace(pid)).collect()
}

fn namespace(pid: u32) -> Option<u64> {
    let link = std::fs::read_link(format!("/proc/{pid}/ns/net")).ok()?;
    let inode = link.to_str()?.strip_prefix("net:[")?.strip_suffix(']')?;
    inode.parse().ok()
}

fn named_memory() -> BTreeSet<PathBuf> {
    let all = std::fs::read_dir("/dev/shm")
        .into_iter()
        .flatten()
        .flatten();
    all.map(|entry| entry.path()).collect()
}

fn uses(pid: u32, file: &std::path::Path) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let open = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten()
        .flatten();
    maps.contains(file.to_str().unwrap_or_default())
        || open
            .filter_map(|fd| std::fs::read_link(fd.path()).ok())
            .any(|target| target == file)
}
