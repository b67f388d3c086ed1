//! The texts of faults.

use super::*;

fn member(rank: u32, world: u32) -> Member {
    let name = format!("rank {world} (host{world}, pid 1{world})");
    Member::new(rank, world, name.into())
}

#[test]
fn a_rank_of_a_split_has_both_numbers() {
    assert_eq!(member(3, 3).to_string(), "rank 3 (host3, pid 13)");
    assert_eq!(
        member(1, 3).to_string(),
        "rank 1 (world rank 3 (host3, pid 13))"
    );
}

#[test]
fn a_timeout_tells_the_stopped_from_the_busy() {
    let last = Some((4, "barrier".to_string()));
    let fault = Fault::TimedOut {
        by: member(0, 0),
        sequence: 5,
        words: "all_reduce of 8 f32, sum".into(),
        waited: Duration::from_secs(600),
        late: vec![
            Late {
                rank: member(1, 1),
                last: last.clone(),
                age: Some(Duration::from_secs(590)),
                needs_thread: false,
            },
            Late {
                rank: member(2, 2),
                last,
                age: Some(Duration::from_millis(100)),
                needs_thread: false,
            },
            Late {
                rank: member(3, 3),
                last: None,
                age: Some(Duration::from_secs(600)),
                needs_thread: false,
            },
        ],
    };
    let text = fault.to_string();
    for part in [
        "rank 0 (host0, pid 10) gave up after 600.0s in operation #5 (all_reduce of 8 f32, sum)",
        "rank 1 (host1, pid 11), silent for 590.0s",
        "rank 2 (host2, pid 12), which is alive but has not made this call; \
         its last is operation #4 (barrier)",
        "rank 3 (host3, pid 13), silent for 600.0s",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
}

/// News from before a rank began to wait says nothing about now, also where the timeout is short.
#[test]
fn a_stopped_rank_is_never_called_alive() {
    let text = |waited: u64, age: Option<u64>| {
        let fault = Fault::TimedOut {
            by: member(0, 0),
            sequence: 17_001,
            words: "all_reduce".into(),
            waited: Duration::from_millis(waited),
            late: vec![Late {
                rank: member(1, 1),
                last: None,
                age: age.map(Duration::from_millis),
                needs_thread: false,
            }],
        };
        fault.to_string()
    };
    for (waited, age) in [
        (1000, None),
        (1000, Some(1600)),
        (2000, Some(2100)),
        (600_000, None),
    ] {
        let text = text(waited, age);
        assert!(
            text.contains("(stopped, or its host hangs); its last call is not known"),
            "{text}"
        );
        assert!(!text.contains("alive"), "{text}");
    }
    for (waited, age) in [(1000, 700), (2000, 1900), (600_000, 1000)] {
        let text = text(waited, Some(age));
        assert!(
            text.contains("alive but in no call that it has told of"),
            "{text}"
        );
    }
}

/// One fault of each kind but timeouts, and the part of its text that the troubleshooting guide
/// quotes.
fn faults(by: &Member, rank: &Member) -> Vec<(Fault, &'static str)> {
    let text = || "so".to_string();
    let (by, rank) = (by.clone(), rank.clone());
    let died = Fault::Died { rank: rank.clone() };
    let lost = Fault::Lost {
        rank: rank.clone(),
        error: text(),
    };
    let left = Fault::Left {
        rank: rank.clone(),
        last_sequence: 1,
        sequence: 2,
        words: text(),
    };
    let aborted = Fault::Aborted {
        by: rank.clone(),
        reason: text(),
    };
    let mismatch = |words: &str| Fault::Mismatch {
        sequence: 4,
        rank_a: by.clone(),
        words_a: text(),
        rank_b: rank.clone(),
        words_b: words.to_owned(),
    };
    let [mismatch, ended] = ["so", FINALIZE].map(mismatch);
    let link = Fault::Link {
        by,
        peer: rank,
        text: text(),
    };
    vec![
        (died, "died: its process ended without a goodbye"),
        (lost, "is lost: "),
        (left, "left the communicator "),
        (aborted, "aborted the communicator: "),
        (mismatch, " differs between the ranks: "),
        (ended, " called finalize after operation #"),
        (link, "the link between "),
    ]
}

/// Timeouts for each state of the late rank, and the parts of their texts that the troubleshooting
/// guide quotes.
fn timeouts(by: &Member, rank: &Member) -> Vec<(Fault, &'static str)> {
    let timed_out = |late| Fault::TimedOut {
        by: by.clone(),
        sequence: 5,
        words: "so".to_string(),
        waited: ALIVE,
        late,
    };
    let late = |last: Option<u64>, age| {
        let rank = rank.clone();
        let last = last.map(|sequence| (sequence, "so".to_string()));
        timed_out(vec![Late {
            rank,
            last,
            age: Some(age),
            needs_thread: false,
        }])
    };
    let here = Late {
        rank: rank.clone(),
        last: None,
        age: Some(ALIVE),
        needs_thread: true,
    };
    vec![
        (timed_out(vec![here]), "each rank needs a thread of its own"),
        (late(None, ALIVE * 2), "(stopped, or its host hangs)"),
        (
            late(None, ALIVE),
            "alive but in no call that it has told of",
        ),
        (
            late(Some(4), ALIVE),
            "alive but has not made this call; its last is ",
        ),
        (late(Some(5), ALIVE), "but does not progress in it"),
        (
            timed_out(Vec::new()),
            "every other rank is in it too, so the links are slow or stuck",
        ),
    ]
}

#[test]
fn a_timeout_on_devices_names_who_is_late() {
    let text = |last| {
        let late = Late {
            rank: member(1, 1),
            last: Some(last),
            age: Some(Duration::from_secs(590)),
            needs_thread: false,
        };
        let fault = Fault::TimedOut {
            by: member(0, 0),
            sequence: DEVICE_MARK | 7,
            words: "all_reduce".into(),
            waited: Duration::from_secs(3),
            late: vec![late],
        };
        fault.to_string()
    };
    let waits = ", which waits in operation #6 on the device (broadcast)";
    for (last, said) in [
        ((4, "barrier".to_owned()), ""),
        ((DEVICE_MARK | 6, "broadcast".to_owned()), waits),
    ] {
        let text = text(last);
        assert!(text.contains("#7 on the device"), "{text}");
        let named = format!("it waits for: rank 1 (host1, pid 11){said}; look");
        assert!(text.contains(&named), "{text}");
    }
}

#[test]
fn the_troubleshooting_guide_explains_every_fault() {
    let guide = include_str!("../../../../docs/troubleshooting.md");
    let [by, rank] = [member(0, 0), member(1, 1)];
    for (fault, quote) in faults(&by, &rank).into_iter().chain(timeouts(&by, &rank)) {
        assert!(fault.to_string().contains(quote), "{fault}");
        assert!(
            guide.contains(quote),
            "the guide does not explain {quote:?}"
        );
    }
}
