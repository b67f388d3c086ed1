//! The symbols of the shared library.

use std::collections::BTreeMap;
use std::process::Command;

use crate::library;

/// The output of a tool of binutils about the library.
fn tell(tool: &str, arguments: &[&str]) -> String {
    let output = Command::new(tool)
        .args(arguments)
        .arg(library())
        .output()
        .expect("nm and readelf are needed: install binutils");
    assert!(output.status.success(), "{tool}");
    String::from_utf8(output.stdout).unwrap()
}

/// The addresses of all exported symbols.
fn exported() -> BTreeMap<String, String> {
    let symbols = tell("nm", &["-D", "--defined-only", "--format=posix"]);
    let symbols = symbols.lines().map(|line| {
        let mut words = line.split(' ').map(str::to_owned);
        let (name, kind) = (words.next().unwrap(), words.next().unwrap());
        assert_eq!(kind, "T", "{line}");
        (name, words.next().unwrap())
    });
    symbols.collect()
}

#[test]
fn what_is_exported_is_on_record() {
    let exported = exported();
    let record: Vec<_> = include_str!("../../symbols.txt").lines().collect();
    assert_eq!(exported.keys().collect::<Vec<_>>(), record);
}

#[test]
fn twins_are_at_one_address() {
    let exported = exported();
    let twins = exported
        .iter()
        .filter_map(|(name, at)| Some((name.strip_prefix('p')?, at)));
    let mut count = 0;
    for (name, at) in twins {
        assert_eq!(exported[name], *at, "{name}");
        count += 1;
    }
    assert_eq!(count, 96);
}

#[test]
fn it_stands_in_for_nccl() {
    let dynamic = tell("readelf", &["--dynamic", "--wide"]);
    for word in ["[libnccl.so.2]", "NODELETE", "SYMBOLIC"] {
        assert!(dynamic.contains(word), "{word}: {dynamic}");
    }
}
