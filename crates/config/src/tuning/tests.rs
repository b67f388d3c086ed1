//! Tuning files are read back as written, and damaged ones are refused.

use super::*;
use proptest::prelude::*;

const PAIR: Layout = Layout {
    links: Links::SharedMemory,
    ranks: 2,
    hosts: 1,
};

fn entry(collective: &str, steps: &[(u64, &str)]) -> TuningEntry {
    let step = |&(up_to, algorithm): &(u64, &str)| TuningStep {
        up_to,
        algorithm: algorithm.parse().unwrap(),
    };
    TuningEntry {
        layout: PAIR,
        collective: Operation::from_name(collective).unwrap(),
        steps: steps.iter().map(step).collect(),
    }
}

fn sample() -> Tuning {
    let mut tuning = Tuning::default();
    tuning.put(entry("all_reduce", &[(4096, "direct"), (65536, "ring")]));
    tuning
}

#[test]
fn what_is_saved_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new/folder/tuning.json");
    assert_eq!(Tuning::read(&path).unwrap(), Tuning::default());
    let mut tuning = sample();
    tuning.save(&path).unwrap();
    assert_eq!(Tuning::read(&path).unwrap(), tuning);
    assert_eq!(Tuning::parse(tuning.text().as_bytes()).unwrap(), tuning);
    // Only the file itself remains in its folder.
    tuning.put(entry("all_reduce", &[(1, "ring")]));
    tuning.put(entry("broadcast", &[(1, "chain")]));
    tuning.save(&path).unwrap();
    let read = Tuning::read(&path).unwrap();
    let collectives: Vec<_> = read.of(PAIR).map(|entry| entry.collective.name()).collect();
    assert_eq!(collectives, ["all_reduce", "broadcast"]);
    let others = Layout { ranks: 3, ..PAIR };
    assert_eq!(read.of(others).count(), 0);
    assert_eq!(path.parent().unwrap().read_dir().unwrap().count(), 1);
}

#[test]
fn layouts_are_told_apart_by_their_links() {
    let links = [
        (Links::SharedMemory, "shm", "shm"),
        (Links::Tcp, "tcp", "tcp"),
        (Links::Rdma, "rdma", "rdma"),
        (Links::SharedMemoryAndTcp, "shm+tcp", "shm and tcp"),
        (Links::SharedMemoryAndRdma, "shm+rdma", "shm and rdma"),
    ];
    let mut tuning = Tuning::default();
    for (links, name, words) in links {
        let layout = Layout { links, ..PAIR };
        assert_eq!(layout.to_string(), format!("2 ranks on 1 host, {words}"));
        tuning.put(TuningEntry {
            layout,
            ..entry("all_reduce", &[(1, "ring")])
        });
        let text = tuning.text();
        assert!(text.contains(&format!("\"links\":\"{name}\"")), "{text}");
        assert_eq!(Tuning::parse(text.as_bytes()).unwrap(), tuning);
    }
    for (links, ..) in links {
        assert_eq!(tuning.of(Layout { links, ..PAIR }).count(), 1, "{links:?}");
    }
}

#[test]
fn what_is_wrong_is_said() {
    let problem = |text: &str| Tuning::parse(text.as_bytes()).unwrap_err().to_string();
    let text = sample().text();
    let with = |from: &str, to: &str| {
        assert!(text.contains(from), "{text}");
        problem(&text.replace(from, to))
    };
    assert!(with("\"version\":1", "\"version\":2").contains("version 2"));
    assert!(with("all_reduce", "all_increase").contains("all_increase"));
    assert!(with("ring", "rign").contains("rign"));
    assert!(with("65536", "4096").contains("do not ascend"));
    assert!(with("\"shm\"", "\"smoke\"").contains("smoke"));
    assert!(with("\"up_to\"", "\"below\"").contains("below"));
    assert!(problem("").contains("spark-perf tune"));
    assert!(problem(&" ".repeat(MAX_BYTES as usize + 1)).contains("more than"));
    assert!(matches!(
        Tuning::read(Path::new("/dev/zero")),
        Err(TuningError::Malformed(_))
    ));
    assert!(matches!(
        Tuning::read(Path::new("/")),
        Err(TuningError::Io(_))
    ));
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_panic(bytes: Vec<u8>) {
        prop_assert!(Tuning::parse(&bytes).is_err());
    }

    #[test]
    fn a_damaged_file_is_refused_or_makes_sense(at in 0usize..300, with: u8) {
        let mut bytes = sample().text().into_bytes();
        if let Some(byte) = bytes.get_mut(at) { *byte = with; }
        if let Ok(tuning) = Tuning::parse(&bytes) {
            prop_assert_eq!(Tuning::parse(tuning.text().as_bytes()).unwrap(), tuning);
        }
    }
}
