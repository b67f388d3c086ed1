//! libFuzzer on the target that `FUZZ_TARGET` names; its right inputs go to the folder
//! `FUZZ_SEEDS`.
#![no_main]

use std::path::PathBuf;
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;

type Target = (&'static str, fn(&[u8]), fn() -> Vec<Vec<u8>>);

fn target() -> &'static Target {
    static TARGET: OnceLock<Target> = OnceLock::new();
    TARGET.get_or_init(|| {
        let all = [
            spark_ccl_bootstrap::fuzz::TARGETS,
            spark_ccl_config::fuzz::TARGETS,
            spark_ccl_control::fuzz::TARGETS,
            spark_ccl_launcher::fuzz::TARGETS,
            spark_ccl_topology::fuzz::TARGETS,
            spark_ccl_status::fuzz::TARGETS,
            spark_ccl_training::fuzz::TARGETS,
            spark_ccl_transport::fuzz::TARGETS,
        ];
        let name = std::env::var("FUZZ_TARGET").expect("FUZZ_TARGET names a target");
        let mut named = all.into_iter().flatten().filter(|target| target.0 == name);
        *named.next().unwrap_or_else(|| panic!("{name} is no target"))
    })
}

fn write_seeds() {
    let folder = PathBuf::from(std::env::var_os("FUZZ_SEEDS").expect("FUZZ_SEEDS names a folder"));
    for (number, seed) in target().2().iter().enumerate() {
        std::fs::write(folder.join(format!("seed-{number}")), seed).expect("a folder to write to");
    }
}

fuzz_target!(
    init: write_seeds(),
    |bytes: &[u8]| target().1(bytes)
);
