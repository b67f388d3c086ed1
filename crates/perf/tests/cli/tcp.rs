//! TCP between two ranks, by pairs of interfaces.

use crate::cluster::Cluster;
use crate::program::{command, run};

#[test]
fn each_rail_alone_and_all_together() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    cluster.rails();
    let words = "-H node1,node2 --no-prefix";
    let measure = |args: &str| {
        let mut program = vec!["/proc/self/exe", "tcp_bw"];
        program.extend(args.split_whitespace());
        let run = cluster.launch(words, &program);
        assert_eq!(run.code, Some(0), "{args}: {}\n{}", run.stdout, run.stderr);
        run
    };
    let run = measure("--rails each -b 100 -e 40000 -f 400 -n 50 -w 5 --sockets 2 --bidirectional");
    assert!(
        run.stdout
            .contains("rail 1: rail1 (10.91.0.1) to rail1 (10.91.0.2), round trip"),
        "{}",
        run.stdout
    );
    let seen: Vec<_> = run
        .rows()
        .iter()
        .map(|row| [row[0], row[1], row[2], row[7]].join(" "))
        .collect();
    let expected = [
        "100 1 100 0",
        "40000 1 100 0",
        "100 1 100 0",
        "40000 1 100 0",
        "100 2 100 0",
        "40000 2 100 0",
    ];
    assert_eq!(seen, expected);

    let run = measure("--json -b 1M -e 1M -n 30");
    let printed: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    let row = &printed["rows"][0];
    assert_eq!(
        (&row["bytes"], &row["wrong"]),
        (&(1 << 20).into(), &0.into())
    );
    let carried = row["carried"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it.as_u64().unwrap());
    assert_eq!((carried.len(), carried.sum::<u64>()), (2, 30));
    assert_eq!(measure("--rails one -b 8 -e 8 -n 10").rows()[0][1], "1");

    // The time is over before the requests are.
    let run = measure("--rails one -b 8 -e 8 -n 1000000000 --seconds 1 -w 0");
    assert!(run.rows()[0][2].parse::<u64>().unwrap() < 1_000_000_000);
}

#[test]
fn what_makes_no_sense_is_refused() {
    for args in [
        "tcp_bw --procs 3",
        "tcp_bw -b 0",
        "tcp_bw -e 1G",
        "tcp_bw --sockets 0",
        "tcp_bw --rails two",
    ] {
        let run = run(args);
        assert_eq!(run.code, Some(6), "{args}: {}", run.stderr);
    }
    // Both ranks are on this host, which has no rail to itself.
    let output = command(&["tcp_bw"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("has a subnet in common"));
}
