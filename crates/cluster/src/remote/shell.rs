//! The command line that the login shell of another host gets.

/// Has a POSIX shell find spark-perf and run it with these arguments.
///
/// The login shell need not be POSIX: it gets words in single quotes without anything else that a
/// shell could expand.
pub(super) fn find_and_run(program: Option<&str>, arguments: &[&str]) -> String {
    let here = || {
        std::env::current_exe()
            .ok()?
            .into_os_string()
            .into_string()
            .ok()
    };
    let candidates = match program {
        Some(program) => vec![program.to_owned()],
        None => here()
            .into_iter()
            .chain(["spark-perf".to_owned()])
            .collect(),
    };
    let mut words = vec!["exec".to_owned(), "sh".to_owned(), "-c".to_owned()];
    words.push(quote(SEARCH));
    words.push("sh".to_owned());
    words.extend(candidates.iter().map(|word| quote(word)));
    words.push("--".to_owned());
    words.extend(arguments.iter().map(|word| quote(word)));
    words.join(" ")
}

/// The arguments are where the program may be, and, after `--`, its own.
const SEARCH: &str = "\
until [ \"$1\" = -- ]; do command -v \"$1\" >/dev/null 2>&1 && found=${found:-$1}; shift; done; \
shift; exec \"${found:-$HOME/.cargo/bin/spark-perf}\" \"$@\"";

/// A word that a shell takes as it is.
fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn run(line: &str) -> (Option<i32>, String) {
        let output = Command::new("sh")
            .args(["-c", line])
            .env("HOME", "/nonexistent")
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        (output.status.code(), text)
    }

    #[test]
    fn arguments_arrive_as_they_are() {
        let words = ["a b", "it's", "$HOME", "\\", "*", "", "--", "\"!"];
        let line = find_and_run(Some("printf"), &[&["<%s>"], &words[..]].concat());
        let expected: String = words.iter().flat_map(|word| ["<", word, ">"]).collect();
        assert_eq!(run(&line), (Some(0), expected));
    }

    #[test]
    fn a_program_that_is_nowhere_is_not_found() {
        let line = find_and_run(Some("/nonexistent/spark-perf"), &["gids"]);
        assert_eq!(run(&line), (Some(127), String::new()));
    }
}
