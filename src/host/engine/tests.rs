//! An engine's log lines, and when they are emitted; what a look at it advances; and how it ends.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use spark_ccl_testing::hearing;
use spark_ccl_transport::Bell;

use super::super::blocked;
use super::*;
use crate::api::communicator::Communicator;

/// The subscriber may block, and the other threads are needed.
#[test]
fn other_threads_are_woken_up_before_anything_is_said() {
    let comms = Communicator::local(2).unwrap();
    let pending = comms[0].recv(vec![0_u8], 1).start().unwrap();
    let bell = Bell::shared().unwrap();
    blocked::note(&bell);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let hear = {
        let (bell, seen) = (Arc::clone(&bell), Arc::clone(&seen));
        move |_: &str| {
            let mut polled = [PollFd::new(&*bell, PollFlags::IN)];
            let rung = poll(&mut polled, Some(&Timespec::default())).unwrap();
            seen.lock().push(rung);
        }
    };
    let engine = comms[0].membership().engine();
    hearing(hear, || {
        let core = engine.lock();
        bell.silence();
        spark_ccl_log::warn!("said under the lock");
        engine.leave(core);
    });
    blocked::forget(&bell);
    assert_eq!(*seen.lock(), [1]);
    comms[1].send(&[7_u8], 0).run().unwrap();
    pending.wait().unwrap();
}

#[test]
fn what_an_engine_has_to_say_is_said_when_its_thread_ends() {
    let comms = Communicator::local(1).unwrap();
    let engine = comms[0].membership().engine();
    engine
        .core
        .lock()
        .remarks
        .push("a test says this".to_owned());
    engine.run_in_background(|| true);
    assert!(engine.core.lock().remarks.is_empty());
}

#[test]
fn what_has_begun_goes_on_when_no_more_may_begin() {
    let comms = Communicator::local(2).unwrap();
    let pending = comms[0].recv(vec![0_u8], 1).start().unwrap();
    comms[0].membership().with(Core::close).unwrap();
    let refused = comms[0].send(&[1_u8], 1).run().unwrap_err();
    assert!(matches!(refused, Error::Invalid { .. }), "{refused}");
    comms[1].send(&[7_u8], 0).run().unwrap();
    assert_eq!(pending.wait().unwrap(), [7]);
}

#[test]
fn looks_of_no_length_push_other_engines() {
    let [looked_at, other] = [(); 2].map(|()| Communicator::local(2).unwrap());
    let pending = looked_at[0].recv(vec![0_u8], 1).start().unwrap();
    let pushed = other[0].recv(vec![0_u8], 1).start().unwrap();
    other[1].send(&[7_u8], 0).run().unwrap();
    let is_idle = || other[0].membership().with(|core| core.is_idle()).unwrap();
    while !is_idle() {
        assert!(!pending.wait_for(Duration::ZERO), "nobody sends");
    }
    assert_eq!(pushed.wait().unwrap(), [7]);
    looked_at[1].send(&[8_u8], 0).run().unwrap();
    assert_eq!(pending.wait().unwrap(), [8]);
}
