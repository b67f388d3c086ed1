//! Modelled times.

use crate::program::{Run, run, succeed};

/// The columns of a row with one algorithm: ranks, time, bus bandwidth, best.
fn cells(run: &Run) -> Vec<(u32, f64, f64)> {
    let number = |cell: &str| cell.trim_start_matches('~').parse().unwrap();
    run.rows()
        .iter()
        .map(|row| (row[0].parse().unwrap(), number(row[1]), number(row[2])))
        .collect()
}

#[test]
fn known_formulas() {
    // 2 (n - 1) messages of 7 us; the time of 1 KiB at 100 GB/s is negligible.
    let out = succeed("simulate --algo ring --bytes 1K --ranks 2,8,512 --alpha 7 --beta 100");
    assert!(out.stdout.contains("MODELLED, not measured"));
    for (ranks, us, _) in cells(&out) {
        let known = 7.0 * 2.0 * f64::from(ranks - 1);
        assert!((us - known).abs() < 0.2, "{ranks} ranks: {us} for {known}");
    }
    // At 1 GiB, bandwidth dominates.
    let out = succeed("simulate --algo ring --bytes 1G --ranks 8 --beta 10");
    let bus_bw = cells(&out)[0].2;
    assert!((9.8..=10.0).contains(&bus_bw), "{bus_bw}");
}

#[test]
fn two_sparks_by_hand() {
    let two = |args: &str| {
        let all = format!("simulate --ranks 2 --alpha 2 --beta 20 --memory 30 {args}");
        cells(&succeed(&all))[0]
    };
    // Without copies, an all_gather is as fast as the wire. Otherwise one core copies each sent and
    // each received byte, at 15 GB/s.
    let gather = "--collective all_gather --algo pairwise --bytes 1G";
    let bus_bw = two(&format!("{gather} --path zero-copy")).2;
    assert!((19.8..=20.0).contains(&bus_bw), "{bus_bw}");
    let bus_bw = two(gather).2;
    assert!((7.4..=7.5).contains(&bus_bw), "{bus_bw}");
    // One message in each direction; a message that is fetched costs three latencies.
    for (path, us) in [("safe", 2.0), ("zero-copy", 6.0)] {
        for collective in ["all_reduce", "all_gather"] {
            let args = format!("--collective {collective} --algo direct --bytes 8 --path {path}");
            let (_, modelled, _) = two(&args);
            assert!((modelled - us).abs() < 0.1, "{args}: {modelled}");
        }
    }
}

#[test]
fn closed_forms_agree_with_the_simulation() {
    let table = |exact: &str| {
        let args = "simulate --topology hosts8 --bytes 16M --ranks 16,32,64";
        succeed(&format!("{args} --algo hierarchical --exact {exact}"))
    };
    let (followed, closed) = (table("64"), table("2"));
    assert_eq!(followed.rows().len(), 3);
    assert!(!followed.rows().iter().any(|row| row[1].starts_with('~')));
    assert!(closed.rows().iter().all(|row| row[1].starts_with('~')));
    for (followed, closed) in cells(&followed).iter().zip(cells(&closed)) {
        let ratio = closed.1 / followed.1;
        assert!((0.9..1.1).contains(&ratio), "{followed:?} {closed:?}");
    }
}

#[test]
fn fewer_rails_are_slower_and_the_hierarchy_wins_across_hosts() {
    let time = |args: &str| {
        let all = format!("simulate --topology hosts8 --bytes 64M --ranks 32 {args}");
        cells(&succeed(&all))[0].1
    };
    assert!(time("--algo hierarchical --rails 1") > 2.0 * time("--algo hierarchical"));
    assert!(time("--algo ring") > 3.0 * time("--algo hierarchical"));
    let out = succeed("simulate --topology hosts8 --bytes 64M --ranks 32");
    assert_eq!(*out.rows()[0].last().unwrap(), "hierarchical");
}

#[test]
fn measured_points_are_compared_with_the_model() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run.json");
    let path = path.display();
    succeed(&format!("all_reduce -t 2 -b 1K -e 64K -f 8 -n 2 -J {path}"));
    let out = succeed(&format!(
        "simulate --algo ring --bytes 1K --ranks 2 --measured {path}"
    ));
    let beside = out.stdout.split("# Measured").nth(1).unwrap();
    let ratios = beside.lines().filter(|line| line.ends_with('x')).count();
    assert_eq!(ratios, 3, "{beside}");

    let path = directory.path().join("other.json");
    let path = path.display();
    succeed(&format!("broadcast -t 2 -b 1K -e 1K -n 2 -J {path}"));
    let out = run(&format!("simulate --measured {path}"));
    assert_eq!(out.code, Some(6), "{}", out.stderr);
    assert!(out.stderr.contains("broadcast"), "{}", out.stderr);
}

#[test]
fn plots() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.svg");
    let args = format!(
        "simulate --bytes 1M --ranks 2,4,8 --plot {}",
        path.display()
    );
    succeed(&args);
    let text = std::fs::read_to_string(path).unwrap();
    for part in [
        "all_reduce on sparks, 1 MiB, modelled",
        "halving-doubling",
        "ranks",
    ] {
        assert!(text.contains(part), "{part}");
    }
}

#[test]
fn nonsense_is_refused_with_exit_code_6() {
    for (args, word) in [
        ("--topology torus", "torus"),
        ("--bytes x", "not a size"),
        ("--bytes 0", "--bytes 0"),
        ("--ranks 1", "--ranks 1"),
        ("--ranks many", "many"),
        ("--algo linear", "--algo linear"),
        ("--algo one-sided", "--algo one-sided"),
        (
            "--collective all_gather --algo double-tree",
            "expected ring",
        ),
        ("--collective broadcast", "all_reduce or all_gather"),
        ("--path zero-copy --topology hosts8", "zero-copy"),
        ("--memory 0", "--memory 0"),
        ("--alpha 0", "--alpha 0"),
        ("--beta nan", "--beta"),
        ("--rails 9 --topology hosts8", "--rails 9"),
        ("--rails 2", "hosts8"),
        ("--plot a.pdf", ".svg or .png"),
        ("--measured /nonexistent.json", "nonexistent"),
        ("all_reduce", "all_reduce"),
    ] {
        let out = run(&format!("simulate {args}"));
        assert_eq!(out.code, Some(6), "{args}: {}", out.stderr);
        assert!(out.stderr.contains(word), "{args}: {}", out.stderr);
        assert_eq!(out.stdout, "", "{args}");
    }
    let out = run("simulate --bytes 1K --ranks 2 --plot /nonexistent/a.svg");
    assert_eq!(out.code, Some(2), "{}", out.stderr);
    let help = run("simulate --help");
    assert_eq!(help.code, Some(0));
    assert!(help.stdout.contains("MODELLED") && help.stdout.contains("Exit codes"));
}
