//! Slurm's node lists: `node[01-03,7],gpu5`.

use std::ops::RangeInclusive;

/// The first host of a Slurm node list, such as `node01` of `node[01-03,7],gpu5`.
///
/// `None` if the list does not follow the grammar.
pub(crate) fn first_host(list: &str) -> Option<String> {
    let mut hosts = split_outside_brackets(list)?.into_iter();
    let first = first_of_item(hosts.next()?)?;
    for item in hosts {
        first_of_item(item)?;
    }
    Some(first)
}

/// Splits at the commas outside of brackets; refuses unbalanced and nested brackets.
fn split_outside_brackets(list: &str) -> Option<Vec<&str>> {
    let mut items = Vec::new();
    let (mut start, mut inside) = (0, false);
    for (at, c) in list.char_indices() {
        match c {
            '[' if !inside => inside = true,
            ']' if inside => inside = false,
            '[' | ']' => return None,
            ',' if !inside => {
                items.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    items.push(&list[start..]);
    (!inside).then_some(items)
}

/// The first host of `rack[1-2]node[03,7]`: the first number of each bracket.
fn first_of_item(item: &str) -> Option<String> {
    let mut host = String::with_capacity(item.len());
    let mut rest = item;
    while let Some((before, after)) = rest.split_once('[') {
        let (numbers, after) = after.split_once(']')?;
        host.push_str(before);
        host.push_str(first_number(numbers)?);
        rest = after;
    }
    host.push_str(rest);
    (!host.is_empty() && host.chars().all(is_host_char)).then_some(host)
}

/// The first number of `01-03,7` as written: leading zeros belong to the host's name.
fn first_number(numbers: &str) -> Option<&str> {
    let mut first = None;
    for range in numbers.split(',') {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        if !is_number(low) || !is_number(high) {
            return None;
        }
        let bounds: RangeInclusive<u64> = low.parse().ok()?..=high.parse().ok()?;
        if bounds.is_empty() {
            return None;
        }
        first.get_or_insert(low);
    }
    first
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

fn is_host_char(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '-' | '_' | '.')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn finds_the_first_host() {
        for (list, host) in [
            ("localhost", "localhost"),
            ("a,b", "a"),
            ("node[01-03,7]", "node01"),
            ("node[7,01-03],gpu5", "node7"),
            ("rack[1-2]n[003-010].lab", "rack1n003.lab"),
            ("gpu-a.example.org,node[1-2]", "gpu-a.example.org"),
        ] {
            assert_eq!(first_host(list).as_deref(), Some(host), "{list}");
        }
    }

    #[test]
    fn refuses_what_is_not_a_list() {
        for list in [
            "",
            ",",
            "a,",
            "a,,b",
            "node[",
            "node]",
            "node[]",
            "node[1-]",
            "node[3-1]",
            "node[a-b]",
            "node[[1]]",
            "node[1",
            "a b",
            "node[1-2-3]",
            "node[+1]",
            "node[99999999999999999999]",
        ] {
            assert_eq!(first_host(list), None, "{list}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_answered(list in ".{0,40}") {
            if let Some(host) = first_host(&list) {
                prop_assert!(!host.is_empty() && host.chars().all(is_host_char));
            }
        }

        #[test]
        fn ranges_begin_with_their_low_end(
            prefix in "[a-z]{1,8}", low in 0_u32..1000, more in 0_u32..1000, width in 1_usize..6,
        ) {
            let list = format!("{prefix}[{low:0width$}-{:0width$},5],z[1-2]", low + more);
            prop_assert_eq!(first_host(&list), Some(format!("{prefix}{low:0width$}")));
        }
    }
}
