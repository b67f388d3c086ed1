//! Fuzz targets: the parsers of settings, of configuration files, and of files with measurements.

use spark_ccl_types::{Algorithm, Operation};

use crate::{
    AlgorithmChoice, Env, GpuLayout, GpuWire, HostPort, KernelEntry, KernelStep, Layout, Links,
    Pattern, Settings, Tuning, TuningEntry, TuningStep, VARIABLES, file, parse,
};

/// A target's name, the function that must accept any bytes, and valid inputs to start from.
pub type Target = (&'static str, fn(&[u8]), fn() -> Vec<Vec<u8>>);

/// All targets of this crate.
pub const TARGETS: &[Target] = &[
    ("settings", settings, some_settings),
    ("settings-file", settings_file, || {
        seeds(&["# comment\nNCCL_DEBUG = INFO\nSPARK_CCL_SHM=0\n"])
    }),
    ("values", values, || {
        seeds(&[
            "1.5",
            "64K",
            "^ring,tree;broadcast:chain",
            "=mlx5_0:1",
            "[::1]:4",
        ])
    }),
    ("tuning", tuning, some_tuning),
];

fn seeds(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// Each line is a value. Its first byte selects the variable; variables that name files are
/// skipped.
fn settings(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let known: Vec<_> = VARIABLES.iter().map(|variable| variable.name).collect();
    let pairs = text.lines().filter_map(|line| {
        let (first, value) = line.split_at_checked(1)?;
        let name = known[usize::from(first.as_bytes()[0]) % known.len()];
        let names_a_file = ["FILE", "TUNING", "LIBRARY"]
            .iter()
            .any(|part| name.contains(part));
        (!names_a_file).then_some((name, value))
    });
    let _ = Settings::from_env(&Env::from_pairs(pairs));
}

fn some_settings() -> Vec<Vec<u8>> {
    let values = [
        "1",
        "0",
        "ring",
        "eth0,^lo",
        "64K",
        "10.5",
        "auto",
        "all_reduce:tree",
    ];
    let line = |(index, value): (usize, &&str)| format!("{}{value}\n", (index as u8 + 48) as char);
    let every = |shift: usize| {
        let all =
            (0..VARIABLES.len()).map(|index| (index, &values[(index + shift) % values.len()]));
        all.map(line).collect::<String>().into_bytes()
    };
    (0..values.len()).map(every).collect()
}

fn settings_file(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (lines, bad) = file::parse(&text);
    assert!(lines.len() + bad.len() <= text.lines().count());
}

fn values(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let _ = (parse::seconds(&text), parse::boolean(&text));
    let _ = (parse::bytes(&text), parse::number(&text));
    let _ = AlgorithmChoice::parse_nccl(&text);
    if let Ok(choice) = text.parse::<AlgorithmChoice>() {
        assert!(
            choice.to_string().parse::<AlgorithmChoice>().is_ok(),
            "{text}"
        );
    }
    let pattern = Pattern::parse(&text);
    let _ = (pattern.allows("mlx5_0", 1), pattern.position(&text));
    if let Some(place) = HostPort::parse(&text) {
        assert_eq!(HostPort::parse(&place.to_string()), Some(place));
    }
}

fn tuning(bytes: &[u8]) {
    if let Ok(tuning) = Tuning::parse(bytes) {
        assert_eq!(Tuning::parse(tuning.text().as_bytes()).unwrap(), tuning);
    }
}

fn some_tuning() -> Vec<Vec<u8>> {
    let step = |up_to, algorithm| TuningStep { up_to, algorithm };
    let mut tuning = Tuning::default();
    for links in [Links::SharedMemory, Links::SharedMemoryAndRdma] {
        tuning.put(TuningEntry {
            layout: Layout {
                links,
                ranks: 4,
                hosts: 2,
            },
            collective: Operation::AllReduce,
            steps: vec![step(4096, Algorithm::Direct), step(65536, Algorithm::Ring)],
        });
    }
    let without_gpus = tuning.text();
    let step = |up_to, kernel: &str| KernelStep {
        up_to,
        kernel: kernel.to_owned(),
    };
    tuning.put_kernels(KernelEntry {
        layout: GpuLayout {
            gpu: "NVIDIA H200".to_owned(),
            wire: GpuWire::Lines,
            ctas: 32,
            ranks: 2,
        },
        collective: Operation::AllGather,
        steps: vec![
            step(65536, "side_by_side_packets"),
            step(1 << 20, "led_side_by_side"),
        ],
    });
    seeds(&[&without_gpus, &tuning.text()])
}

#[cfg(test)]
#[test]
fn any_bytes_are_read_or_refused() {
    spark_ccl_testing::fuzz(TARGETS);
}
