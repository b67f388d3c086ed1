//! Asks several hosts at once.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use super::{Error, Host};
use crate::at_once::at_once;
use crate::long::tell_if_long;

/// Asks each host, by its number, in a thread of its own, for at most `limit`; returns the answers
/// in the order of the hosts. If that takes long, the user is told which hosts have not answered.
pub(super) fn ask_all<R: Send>(
    hosts: &[Host],
    limit: Duration,
    ask: impl Fn(usize, &Host) -> Result<R, Error> + Sync,
) -> Vec<Result<R, Error>> {
    let answered: Vec<AtomicBool> = hosts.iter().map(|_| AtomicBool::new(false)).collect();
    let ask_one = |number: usize, host| {
        let answer = ask(number, host);
        // Relaxed, as the load in `silent`: the flag orders no other memory.
        answered[number].store(true, Relaxed);
        answer
    };
    let work = || {
        let answers = at_once(hosts.iter().enumerate(), |(number, host)| {
            ask_one(number, host)
        });
        let panicked = |host| move |_| Err(Error::panicked(host));
        let answers = hosts.iter().zip(answers);
        answers
            .map(|(host, answer)| answer.unwrap_or_else(panicked(host)))
            .collect()
    };
    let silent = || -> Vec<&str> {
        let all = hosts.iter().zip(&answered);
        // Relaxed, as the store in `ask_one`: the flag orders no other memory.
        all.filter(|(_, answered)| !answered.load(Relaxed))
            .map(|(host, _)| host.name.as_str())
            .collect()
    };
    tell_if_long(|| waiting(hosts, &silent(), limit), work)
}

/// The line for a user who waits for these hosts; `None` if there are none.
fn waiting(all: &[Host], silent: &[&str], limit: Duration) -> Option<String> {
    let count = match all.len() {
        1 => "1 host".to_owned(),
        more => format!("{more} hosts"),
    };
    let way = if all.iter().all(|host| host.is_here) {
        ""
    } else {
        " over ssh"
    };
    let line = || {
        format!(
            "asking {count}{way}; no answer yet from {} ({} s at most)",
            silent.join(", "),
            limit.as_secs()
        )
    };
    (!silent.is_empty()).then(line)
}

#[cfg(test)]
mod tests {
    use super::super::parse_list;
    use super::*;

    #[test]
    fn those_that_are_waited_for_are_named() {
        let line = |hosts: &str, silent: &[&str]| {
            let hosts = parse_list(hosts).unwrap();
            waiting(&hosts, silent, Duration::from_secs(60))
        };
        assert_eq!(
            line("a,b,c", &["b", "c"]).unwrap(),
            "asking 3 hosts over ssh; no answer yet from b, c (60 s at most)"
        );
        assert_eq!(
            line("a", &["a"]).unwrap(),
            "asking 1 host over ssh; no answer yet from a (60 s at most)"
        );
        assert_eq!(line("a,b", &[]), None);
    }
}
