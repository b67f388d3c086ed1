//! Writes the recorded trees of made-up hosts, which the tests use: `spark`, `pair`, `ring`,
//! `switch` or `server`.
//!
//! `cargo run -p spark-ccl-topology --features testing --example recorded -- ring FOLDER` makes a
//! folder for each host, which
//! `spark-perf topo --from FOLDER/spark-1,FOLDER/spark-2,FOLDER/spark-3` reads.
#![forbid(unsafe_code)]

use std::path::Path;
use std::process::ExitCode;

use spark_ccl_topology::testing::{self, Recorded};

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [kind, folder] = arguments.as_slice() else {
        eprintln!("expected what to write, and a folder");
        return ExitCode::from(6);
    };
    let Some(hosts) = hosts(kind) else {
        eprintln!("{kind}: expected spark, pair, ring, switch or server");
        return ExitCode::from(6);
    };
    for host in hosts {
        let name = host.host().name;
        host.write(&Path::new(folder).join(&name));
        println!("{name}");
    }
    ExitCode::SUCCESS
}

fn hosts(kind: &str) -> Option<Vec<Recorded>> {
    Some(match kind {
        "spark" => vec![testing::spark("spark-1", 1)],
        "pair" => testing::pair(),
        "ring" => testing::ring(),
        "switch" => testing::switch(),
        "server" => vec![testing::nvlink_server("h200")],
        _ => return None,
    })
}
