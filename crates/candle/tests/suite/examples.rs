//! The examples, at their small size, with processes as ranks.

use std::process::Command;

use crate::files::folder;

/// What an example prints.
fn run(name: &str, arguments: &[&str]) -> (bool, String) {
    let mut program = std::env::current_exe().unwrap();
    program.pop();
    program.pop();
    program.extend(["examples", name]);
    assert!(
        program.exists(),
        "{}: cargo builds it with all tests",
        program.display()
    );
    // Ranks that hang are ended with the group of processes that this makes.
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", "120"]).arg(program);
    let output = command.args(arguments).output().unwrap();
    assert_ne!(output.status.code(), Some(124), "{name} hangs: {output:?}");
    let text = [output.stdout, output.stderr]
        .map(|it| String::from_utf8(it).unwrap())
        .concat();
    (output.status.success(), text)
}

/// The lines that begin with a word, of a run that succeeds.
fn lines(name: &str, arguments: &[&str], word: &str) -> Vec<String> {
    let (succeeds, text) = run(name, arguments);
    assert!(succeeds, "{text}");
    let mut lines: Vec<_> = text
        .lines()
        .filter(|it| it.starts_with(word))
        .map(str::to_owned)
        .collect();
    lines.sort();
    lines
}

#[test]
fn two_and_four_ranks_serve_the_tokens_of_one() {
    let tokens = |ranks| {
        lines(
            "serve",
            &["--tokens", "12", "--ranks", ranks, "--check"],
            "tokens: ",
        )
    };
    let alone = tokens("1");
    assert_eq!(alone.len(), 1);
    assert_eq!(alone[0].split(',').count(), 12);
    assert_eq!(tokens("2"), alone);
    assert_eq!(tokens("4"), alone);
}

#[test]
fn a_folder_is_served_and_each_ranks_memory_is_shown() {
    let folder = folder();
    let model = folder.path().to_str().unwrap();
    let weights = |ranks: &str| -> Vec<usize> {
        let arguments = [
            "--model", model, "--prompt", "3,4", "--tokens", "2", "--ranks", ranks,
        ];
        let lines = lines("serve", &arguments, "rank ");
        let number = |line: &String| line.split(' ').nth(4).unwrap().parse().unwrap();
        lines.iter().map(number).collect()
    };
    let whole = weights("1")[0];
    for (ranks, count) in [("2", 2), ("4", 4)] {
        let parts = weights(ranks);
        assert_eq!(parts.len(), count);
        for part in parts {
            // All ranks have the norms.
            assert!(
                part > whole / count && part < whole / count + whole / 100,
                "{part}"
            );
        }
    }
}

/// The losses of an example with several ranks, which shows its speed and calls with each.
fn losses(name: &str, ranks: &str) -> Vec<f64> {
    let lines = lines(name, &["--steps", "6", "--ranks", ranks], "step ");
    let number = |line: &String| {
        let shown: Vec<_> = line.split(", ").collect();
        assert!(shown[1].ends_with(" samples/s"), "{line}");
        assert!(shown[2].ends_with(" % in calls"), "{line}");
        shown[0].rsplit(' ').next().unwrap().parse().unwrap()
    };
    lines.iter().map(number).collect()
}

#[test]
fn a_pipeline_and_data_parallel_training_have_the_losses_of_one_rank() {
    for name in ["pipeline", "train"] {
        let alone = losses(name, "1");
        assert_eq!(alone.len(), 6);
        assert!(alone[5] < alone[0] / 2.0, "nothing is learned: {alone:?}");
        for ranks in ["2", "4"] {
            let found = losses(name, ranks);
            assert_eq!(found.len(), alone.len());
            for (one, other) in found.iter().zip(&alone) {
                assert!(
                    (one - other).abs() < 1e-5 * other.abs(),
                    "{name}, {ranks} ranks: {one} {other}"
                );
            }
        }
    }
}

#[test]
fn serving_shows_its_speed_and_the_share_of_calls() {
    let shown = lines("serve", &["--tokens", "17"], "after ");
    assert_eq!(shown.len(), 2);
    for (line, begin) in shown.iter().zip(["after 16 tokens: ", "after 8 tokens: "]) {
        assert!(
            line.starts_with(begin) && line.contains(" tokens/s, "),
            "{line}"
        );
        assert!(line.ends_with(" % in calls"), "{line}");
    }
}

#[test]
fn what_ranks_cannot_share_ends_all_of_them() {
    let (succeeds, text) = run("serve", &["--ranks", "3"]);
    assert!(
        !succeeds && text.contains("3 ranks cannot share evenly"),
        "{text}"
    );
    let (succeeds, text) = run("pipeline", &["--ranks", "3"]);
    assert!(
        !succeeds && text.contains("the model has 4 blocks"),
        "{text}"
    );
    let (succeeds, text) = run("serve", &["--ranks", "0"]);
    assert!(!succeeds && text.contains("at least one rank"), "{text}");
    let (succeeds, text) = run("serve", &["--tokens", "many"]);
    assert!(
        !succeeds && text.contains("--tokens many: not a number"),
        "{text}"
    );
}
