//! Groups, and the communicators in them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::thread;

use spark_ccl_nccl::{ArgumentError, Communicator, Config, Error, RedOp, Stream, WindowKind};

use crate::{Fake, floats, slice, stream};

fn pair(fake: &Fake) -> Vec<Communicator> {
    let comms = Communicator::init_all(fake.library, &[0, 1]).unwrap();
    fake.journal();
    comms
}

fn sum(comm: &Communicator) -> Result<(), Error> {
    let device = comm.device()?;
    let buffer = slice(0x1000, 8, spark_ccl_nccl::DType::F32, device);
    comm.all_reduce(buffer, buffer, RedOp::Sum, Stream::null(device))
}

fn names(journal: &[String]) -> Vec<&str> {
    journal
        .iter()
        .map(|line| line.split(' ').next().unwrap())
        .collect()
}

#[test]
fn groups_nest() {
    let fake = Fake::new();
    let comms = pair(&fake);
    let library = fake.library;
    let value = library.group(|| {
        sum(&comms[0])?;
        library.group(|| sum(&comms[1]))?;
        // The end of the inner group did not end the outer one: still a member.
        assert!(matches!(
            comms[0].revoke(),
            Err(Error::Grouped {
                in_other_thread: false,
                ..
            })
        ));
        Ok::<_, Error>(5)
    });
    assert_eq!(value.unwrap(), 5);
    assert_eq!(
        names(&fake.journal()),
        [
            "ncclGroupStart",
            "ncclAllReduce",
            "ncclGroupStart",
            "ncclAllReduce",
            "ncclGroupEnd",
            "ncclGroupEnd",
        ]
    );
}

#[test]
fn a_group_whose_body_fails_is_cancelled() {
    let fake = Fake::new();
    let comms = pair(&fake);
    let failed = fake.library.group(|| {
        sum(&comms[0])?;
        comms[0].send(floats(0x1000, 1), 0, stream())
    });
    let Err(Error::Argument {
        error: ArgumentError::Device { .. },
        ..
    }) = failed
    else {
        panic!("another result: {failed:?}");
    };
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        fake.library
            .group(|| -> Result<(), Error> { panic!("in a group") })
    }));
    assert!(panicked.is_err());
    let refused = "ncclAllReduce without a communicator";
    let journal = fake.journal();
    assert_eq!(journal.iter().filter(|line| *line == refused).count(), 2);
    let first = [
        "ncclGroupStart",
        "ncclAllReduce",
        "ncclAllReduce",
        "ncclGroupEnd",
    ];
    let second = ["ncclGroupStart", "ncclAllReduce", "ncclGroupEnd"];
    assert_eq!(names(&journal), [&first[..], &second[..]].concat());
    sum(&comms[0]).unwrap();
    assert_eq!(names(&fake.journal()), ["ncclAllReduce"]);
}

#[test]
fn a_failed_group_fails_its_communicators() {
    let fake = Fake::new();
    let comms = pair(&fake);
    fake.fail("ncclGroupEnd", 3);
    let error = fake.library.group(|| sum(&comms[1])).unwrap_err();
    let text = "ncclGroupEnd on rank 1: internal error (ncclInternalError 3); the cable is out";
    assert_eq!(error.to_string(), text);
    fake.journal();
    assert!(matches!(
        sum(&comms[1]),
        Err(Error::Unusable { revoked: false, .. })
    ));
    assert_eq!(fake.journal(), [""; 0]);
    sum(&comms[0]).unwrap();
}

#[test]
fn a_group_that_cannot_start_does_nothing() {
    let fake = Fake::new();
    let comms = pair(&fake);
    fake.fail("ncclGroupStart", 2);
    let result = fake.library.group(|| sum(&comms[0]));
    assert_eq!(
        result.unwrap_err().code().unwrap().name(),
        "ncclSystemError"
    );
    assert_eq!(names(&fake.journal()), ["ncclGroupStart"]);
}

#[test]
fn communicators_are_made_in_groups() {
    let fake = Fake::new();
    let id = fake.library.unique_id().unwrap();
    let make = |rank| Communicator::init_rank(fake.library, 2, id, rank, &Config::default());
    let made = fake
        .library
        .group(|| Ok::<_, Error>([make(0)?, make(1)?]))
        .unwrap();
    assert_eq!(made[1].device().unwrap(), 1);

    let parts = fake.library.group(|| {
        let parts = [
            made[0].split(Some(0), 0, None)?,
            made[1].split(None, 0, None)?,
        ];
        let early = parts[0].as_ref().unwrap().rank();
        assert!(
            matches!(
                early,
                Err(Error::Grouped {
                    in_other_thread: false,
                    ..
                })
            ),
            "{early:?}"
        );
        Ok::<_, Error>(parts)
    });
    let [Some(part), None] = parts.unwrap() else {
        panic!("the wrong ranks are in it");
    };
    assert_eq!(part.size().unwrap(), 1);

    let buffer = slice(0x3000, 8, spark_ccl_nccl::DType::F32, 1);
    let window = fake.library.group(|| {
        let window = made[1].register_window(buffer, WindowKind::Symmetric)?;
        assert!(!window.is_used());
        Ok::<_, Error>(window)
    });
    assert!(window.unwrap().is_used());
}

#[test]
fn communicators_dropped_in_a_group_live_until_it_ends() {
    let fake = Fake::new();
    let mut comms = pair(&fake);
    let [last, first] = [comms.pop().unwrap(), comms.pop().unwrap()];
    fake.library
        .group(|| {
            sum(&last)?;
            drop(last);
            sum(&first)?;
            let aborted = first.abort();
            assert!(matches!(aborted, Err(Error::Grouped { .. })), "{aborted:?}");
            Ok::<_, Error>(())
        })
        .unwrap();
    let journal = fake.journal();
    let (before, after) = journal.split_at(4);
    assert_eq!(names(before)[3], "ncclGroupEnd");
    assert_eq!(after, ["ncclCommAbort #1", "ncclCommAbort #0"]);
}

#[test]
fn another_thread_waits_for_the_end_of_a_group() {
    let fake = Fake::new();
    let comm = pair(&fake).pop().unwrap();
    let (give, taken) = mpsc::channel::<Communicator>();
    let (tell, told) = mpsc::channel();
    let (end, ended) = mpsc::channel();
    let thread = thread::spawn(move || {
        let comm = taken.recv().unwrap();
        tell.send(sum(&comm)).unwrap();
        ended.recv().unwrap();
        sum(&comm)
    });
    fake.library
        .group(|| {
            sum(&comm)?;
            give.send(comm).unwrap();
            let early = told.recv().unwrap();
            assert!(
                matches!(
                    early,
                    Err(Error::Grouped {
                        in_other_thread: true,
                        ..
                    })
                ),
                "{early:?}"
            );
            Ok::<_, Error>(())
        })
        .unwrap();
    end.send(()).unwrap();
    thread.join().unwrap().unwrap();
}

#[test]
fn groups_of_two_libraries_do_not_mix() {
    let [one, other] = [Fake::new(), Fake::new()];
    let mixed = one
        .library
        .group(|| other.library.group(|| Ok::<_, Error>(())));
    assert!(
        matches!(
            mixed,
            Err(Error::Grouped {
                in_other_thread: false,
                ..
            })
        ),
        "{mixed:?}"
    );
    assert_eq!(other.journal(), [""; 0]);
    // A communicator of the other library is in no group.
    let comms = pair(&other);
    one.library.group(|| sum(&comms[0])).unwrap();
    // Three calls of the cancelled first group, and two of the second.
    assert_eq!(names(&one.journal()).len(), 3 + 2);
    comms.into_iter().next().unwrap().abort().unwrap();
}
