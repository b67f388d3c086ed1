//! Tuning files are read back as written, and damaged ones are refused.

use proptest::prelude::*;

use super::*;

const PAIR: Layout = Layout {
    links: Links::SharedMemory,
    ranks: 2,
    hosts: 1,
};

fn late() -> Instant {
    Instant::now() + std::time::Duration::from_secs(60)
}

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

fn on_gpus() -> GpuLayout {
    GpuLayout {
        gpu: "NVIDIA H200".to_owned(),
        wire: GpuWire::Lines,
        ctas: 32,
        ranks: 2,
    }
}

fn kernels(steps: &[(u64, &str)]) -> KernelEntry {
    let step = |&(up_to, kernel): &(u64, &str)| KernelStep {
        up_to,
        kernel: kernel.to_owned(),
    };
    KernelEntry {
        layout: on_gpus(),
        collective: Operation::AllGather,
        steps: steps.iter().map(step).collect(),
    }
}

fn sample() -> Tuning {
    let mut tuning = Tuning::default();
    tuning.put_kernels(kernels(&[(1024, "packets"), (8192, "led")]));
    tuning.put(entry("all_reduce", &[(4096, "direct"), (65536, "ring")]));
    tuning
}

#[test]
fn what_is_saved_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new/folder/tuning.json");
    assert_eq!(Tuning::read(&path, late()).unwrap(), Tuning::default());
    let mut tuning = sample();
    tuning.save(&path).unwrap();
    assert_eq!(Tuning::read(&path, late()).unwrap(), tuning);
    assert_eq!(Tuning::parse(tuning.text().as_bytes()).unwrap(), tuning);
    // Only the file itself remains in its folder.
    tuning.put(entry("all_reduce", &[(1, "ring")]));
    tuning.put(entry("broadcast", &[(1, "chain")]));
    tuning.save(&path).unwrap();
    let read = Tuning::read(&path, late()).unwrap();
    let collectives: Vec<_> = read.of(PAIR).map(|entry| entry.collective.name()).collect();
    assert_eq!(collectives, ["all_reduce", "broadcast"]);
    let others = Layout { ranks: 3, ..PAIR };
    assert_eq!(read.of(others).count(), 0);
    assert_eq!(path.parent().unwrap().read_dir().unwrap().count(), 1);
}

#[test]
fn a_link_in_place_of_the_draft_is_not_written_through() {
    let folder = tempfile::tempdir().unwrap();
    let [path, mine] = ["tuning.json", "mine"].map(|name| folder.path().join(name));
    std::fs::write(&mine, "mine").unwrap();
    let draft = path.with_extension(format!("{}.new", std::process::id()));
    std::os::unix::fs::symlink(&mine, draft).unwrap();
    sample().save(&path).unwrap();
    assert_eq!(Tuning::read(&path, late()).unwrap(), sample());
    assert_eq!(std::fs::read(&mine).unwrap(), b"mine");
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
fn kernels_are_kept_for_each_layout_of_gpus() {
    let mut tuning = sample();
    let all = kernels(&[(64, "lines")]);
    tuning.put_kernels(all.clone());
    assert_eq!(tuning.kernels_of(&on_gpus()).collect::<Vec<_>>(), [&all]);
    let layout = on_gpus();
    for other in [
        GpuLayout {
            gpu: "NVIDIA H100 80GB HBM3".to_owned(),
            ..layout.clone()
        },
        GpuLayout {
            wire: GpuWire::Host,
            ..layout.clone()
        },
        GpuLayout {
            ctas: 8,
            ..layout.clone()
        },
        GpuLayout { ranks: 3, ..layout },
    ] {
        assert_eq!(tuning.kernels_of(&other).count(), 0, "{other}");
    }
    let said = "2 ranks on NVIDIA H200, peers' memory, by lines, up to 32 CTAs";
    assert_eq!(on_gpus().to_string(), said);
}

/// Files of earlier versions, and of machines without GPUs.
#[test]
fn files_without_kernels_are_read() {
    let text = r#"{"version":1,"entries":[]}"#;
    let tuning = Tuning::parse(text.as_bytes()).unwrap();
    assert_eq!(
        (tuning.text(), tuning),
        (text.to_owned(), Tuning::default())
    );
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
    assert!(with("\"lines\"", "\"ropes\"").contains("ropes"));
    assert!(with("8192", "1024").contains("steps of all_gather do not ascend"));
    assert!(with("\"kernel\"", "\"colonel\"").contains("colonel"));
    assert!(with("\"up_to\"", "\"below\"").contains("below"));
    assert!(problem("").contains("spark-perf tune"));
    assert!(problem(&" ".repeat(MAX_BYTES + 1)).contains("more than"));
    for (path, why) in [("/dev/zero", "larger than 49152 bytes"), ("/", "directory")] {
        let error = Tuning::read(Path::new(path), late()).unwrap_err();
        assert!(matches!(error, TuningError::Io(_)), "{error}");
        assert!(error.to_string().contains(why), "{error}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_panic(bytes: Vec<u8>) {
        prop_assert!(Tuning::parse(&bytes).is_err());
    }

    #[test]
    fn a_damaged_file_is_refused_or_makes_sense(at in 0usize..500, with: u8) {
        let mut bytes = sample().text().into_bytes();
        if let Some(byte) = bytes.get_mut(at) { *byte = with; }
        if let Ok(tuning) = Tuning::parse(&bytes) {
            prop_assert_eq!(Tuning::parse(tuning.text().as_bytes()).unwrap(), tuning);
        }
    }
}
