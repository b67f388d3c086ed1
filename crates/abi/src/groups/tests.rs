//! Tests of groups.

use std::sync::{Arc, Barrier};

use spark_ccl_log::Mutex;

use super::*;

#[test]
fn ranks_of_a_group_meet_at_its_end() {
    let (both, seen) = (Arc::new(Barrier::new(2)), Arc::new(Mutex::new(Vec::new())));
    start().unwrap();
    for (order, number) in [(1, 10), (2, 20), (1, 11), (2, 21)] {
        let (both, seen) = (Arc::clone(&both), Arc::clone(&seen));
        let meeting = move || {
            both.wait();
            seen.lock().push(number);
            Ok(())
        };
        meet(order, Box::new(meeting)).unwrap();
    }
    assert_eq!(seen.lock().len(), 0);
    assert_eq!(end().unwrap(), Progress::Done);
    for own in [[10, 11], [20, 21]] {
        let seen = seen.lock();
        let seen = seen.iter().filter(|number| own.contains(number));
        assert_eq!(seen.copied().collect::<Vec<_>>(), own);
    }
}

#[test]
fn a_meeting_that_fails_fails_its_group() {
    let failed = || Err(Failure::invalid("nobody came"));
    start().unwrap();
    meet(1, Box::new(failed)).unwrap();
    meet(2, Box::new(|| Ok(()))).unwrap();
    assert_eq!(end().unwrap_err().message(), "nobody came");
    assert_eq!(
        meet(1, Box::new(failed)).unwrap_err().message(),
        "nobody came"
    );
    assert_eq!(end().unwrap_err().kind(), Kind::Usage);
}

#[test]
fn a_call_that_fails_keeps_ranks_from_meeting() {
    let waits = || unreachable!("nobody comes");
    start().unwrap();
    meet(1, Box::new(waits)).unwrap();
    meet_in_background(2, Box::new(waits)).unwrap();
    keep_failure(&Failure::invalid("a bad call"));
    assert_eq!(end().unwrap_err().message(), "a bad call");
}

#[test]
fn an_abandoned_group_is_closed_whatever_it_has() {
    let waits = || unreachable!("nobody comes");
    start().unwrap();
    meet(1, Box::new(waits)).unwrap();
    start().unwrap();
    assert!(abandon().unwrap().is_none());
    assert!(abandon().is_err() && !is_open());
}

#[test]
fn a_panic_fails_a_meeting_alone() {
    let met = Arc::new(Mutex::new(false));
    let meets = Arc::clone(&met);
    start().unwrap();
    let meeting = move || {
        *meets.lock() = true;
        Ok(())
    };
    meet(1, Box::new(meeting)).unwrap();
    meet(2, Box::new(|| panic!("a planned panic"))).unwrap();
    assert_eq!(end().unwrap_err().kind(), Kind::Internal);
    assert!(*met.lock());
}

#[test]
fn meetings_in_the_background_begin_at_the_end() {
    let (both, own) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let other = Arc::clone(&both);
    let waits = move || {
        other.wait();
        Ok(())
    };
    start().unwrap();
    assert_eq!(
        meet_in_background(2, Box::new(waits)).unwrap(),
        Progress::Done
    );
    // It waits for this thread, which goes on.
    assert_eq!(end().unwrap(), Progress::Background);
    both.wait();
    let other = Arc::clone(&own);
    let alone = move || {
        other.wait();
        Ok(())
    };
    assert_eq!(
        meet_in_background(2, Box::new(alone)).unwrap(),
        Progress::Background
    );
    own.wait();
}
