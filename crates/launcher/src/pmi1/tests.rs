//! The PMI-1 client against a process manager in a thread.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::Barrier;
use std::thread::{self, JoinHandle};

use proptest::prelude::*;

use super::*;

type Space = Arc<Mutex<BTreeMap<String, String>>>;

/// Answers as a launcher until the rank finalizes; refuses values that are too long.
fn serve(stream: &UnixStream, space: &Space, barrier: &Barrier, longest: usize) {
    let mut requests = BufReader::new(stream).lines();
    while let Some(Ok(request)) = requests.next() {
        let fields = parse(&request);
        let field = |name: &str| fields[name].clone();
        let answer = match fields["cmd"].as_str() {
            "init" => "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0".to_owned(),
            "get_maxes" => format!("cmd=maxes kvsname_max=256 keylen_max=64 vallen_max={longest}"),
            "get_my_kvsname" => "cmd=my_kvsname kvsname=kvs_1".to_owned(),
            "put" => {
                assert_eq!(field("kvsname"), "kvs_1");
                assert!(field("value").len() < longest && field("key").len() < 64);
                space.lock().insert(field("key"), field("value"));
                "cmd=put_result rc=0 msg=success".to_owned()
            }
            "barrier_in" => {
                barrier.wait();
                "cmd=barrier_out".to_owned()
            }
            "get" => match space.lock().get(&field("key")) {
                Some(value) => format!("cmd=get_result rc=0 msg=success value={value}"),
                None => "cmd=get_result rc=-1 msg=not_found value=unknown".to_owned(),
            },
            "finalize" => "cmd=finalize_ack".to_owned(),
            other => panic!("{other}"),
        };
        let mut stream = stream;
        writeln!(stream, "{answer}").unwrap();
    }
}

/// Connects each rank to one launcher.
fn launch(ranks: usize, longest: usize) -> Vec<UnixStream> {
    let space = Space::default();
    let barrier = Arc::new(Barrier::new(ranks));
    let connect = || {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (space, barrier) = (Arc::clone(&space), Arc::clone(&barrier));
        thread::spawn(move || serve(&theirs, &space, &barrier, longest));
        ours
    };
    std::iter::repeat_with(connect).take(ranks).collect()
}

/// Rank 0 puts both values, and the others get them.
fn broadcast(ranks: usize, longest: usize, values: &[Vec<u8>; 2]) {
    let threads: Vec<JoinHandle<()>> = launch(ranks, longest)
        .into_iter()
        .enumerate()
        .map(|(rank, stream)| {
            let values = values.clone();
            thread::spawn(move || {
                let mut wire = Wire::begin(stream, soon()).unwrap();
                for (key, value) in ["one", "two"].iter().zip(values) {
                    if rank == 0 {
                        wire.publish(key, &value, soon()).unwrap();
                    } else {
                        assert_eq!(wire.read(key, soon()).unwrap(), value);
                    }
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(30)
}

#[test]
fn values_of_any_length_arrive() {
    for longest in [32, 256, 1024, 4096] {
        broadcast(3, longest, &[vec![7; 5000], Vec::new()]);
        broadcast(2, longest, &[vec![1], vec![2; 510]]);
    }
}

#[test]
fn a_missing_rank_is_a_timeout_and_the_connection_is_not_used_again() {
    let mut streams = launch(2, 1024);
    let mut wire = Wire::begin(streams.remove(0), soon()).unwrap();
    let error = wire
        .publish("key", b"value", Instant::now() + Duration::from_millis(200))
        .unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    let error = wire.read("key", soon()).unwrap_err();
    assert!(error.to_string().contains("earlier request"), "{error}");
}

#[test]
fn a_key_that_is_not_there_is_an_error() {
    let mut streams = launch(1, 1024);
    let mut wire = Wire::begin(streams.remove(0), soon()).unwrap();
    let error = wire.read("nothing", soon()).unwrap_err();
    assert!(error.to_string().contains("rc=-1"), "{error}");
}

#[test]
fn a_launcher_that_is_gone_or_talks_nonsense_is_an_error() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    drop(theirs);
    assert!(Wire::begin(ours, soon()).is_err());
    for nonsense in [
        "hello\n",
        "cmd=response_to_init rc=1\n",
        "\u{0}\n",
        "cmd=maxes\n",
    ] {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(nonsense.as_bytes()).unwrap();
        assert!(Wire::begin(ours, soon()).is_err(), "{nonsense}");
    }
}

#[test]
fn an_endless_line_is_refused() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let writer = thread::spawn(move || {
        let mut theirs = theirs;
        while theirs.write_all(&[b'x'; 4096]).is_ok() {}
    });
    assert!(Wire::begin(ours, soon()).is_err());
    writer.join().unwrap();
}

#[test]
fn a_descriptor_that_is_not_open_is_named() {
    for fd in ["1000000", "2147483647"] {
        let fd = fd.parse().unwrap();
        let error = Pmi1Space::new(fd).get("key", soon()).unwrap_err();
        assert!(error.to_string().contains("PMI_FD"), "{error}");
    }
}

#[test]
fn another_thread_in_an_exchange_is_not_waited_for_beyond_the_deadline() {
    let other = OPEN.lock();
    let deadline = Instant::now() + Duration::from_millis(100);
    let error = Pmi1Space::new(-1).get("key", deadline).unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    drop(other);
}

proptest! {
    #[test]
    fn pieces_are_short_and_join_to_the_value(value: Vec<u8>, longest in 2_usize..600) {
        let pieces = pieces(&value, longest);
        let (count, first) = pieces[0].split_once('.').unwrap();
        prop_assert_eq!(count.parse(), Ok(pieces.len()));
        let text: String = std::iter::once(first).chain(pieces[1..].iter().map(String::as_str)).collect();
        prop_assert_eq!(hex::decode(&text), Some(value));
        if longest >= 13 {
            prop_assert!(pieces.iter().all(|piece| piece.len() <= longest));
        }
    }

    #[test]
    fn any_answer_is_parsed(line: String) {
        for (name, value) in parse(&line) {
            let field = format!("{name}={value}");
            prop_assert!(line.contains(&field));
        }
    }

    /// One byte of the launcher's answers is changed; then the launcher is silent.
    #[test]
    fn damaged_answers_are_errors_or_values(at: prop::sample::Index, with: u8) {
        let mut answers = b"cmd=response_to_init rc=0\ncmd=maxes vallen_max=64\n\
            cmd=my_kvsname kvsname=kvs_1\ncmd=barrier_out\n\
            cmd=get_result rc=0 value=2.01\ncmd=get_result rc=0 value=02\n".to_vec();
        let at = at.index(answers.len());
        answers[at] = with;
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(&answers).unwrap();
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        let value = Wire::begin(ours, soon()).and_then(|mut wire| wire.read("key", soon()));
        prop_assert!(value.is_err() || value.is_ok_and(|value| value.len() <= 2));
    }
}

/// One thread waits for the launcher while another one forks. The child gets an error at once,
/// instead of blocking.
#[test]
fn a_child_is_refused_although_its_parent_holds_the_connection() {
    let soon = || Instant::now() + Duration::from_secs(1);
    assert!(open(-1, soon()).is_err(), "nothing is open there");
    let held = OPEN.lock();
    // SAFETY: the child runs on this thread alone and ends in `_exit`, so it never returns to the
    // test harness. `open` refuses before it takes a lock, and glibc keeps its allocator usable in
    // the child.
    let child = match unsafe { libc::fork() } {
        0 => {
            // SAFETY: alarm takes an integer. Its signal ends the child if it blocks.
            unsafe { libc::alarm(20) };
            let refused = open(-1, soon());
            let fine = refused.is_err_and(|error| error.to_string().contains("forked child"));
            // SAFETY: `_exit` takes an integer and never returns, so nothing in this process is
            // used after it.
            unsafe { libc::_exit(i32::from(!fine)) }
        }
        child => child,
    };
    let mut status = 0;
    // SAFETY: `status` is a live local of the type that waitpid writes to.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    drop(held);
    assert_eq!((waited, status), (child, 0));
}
