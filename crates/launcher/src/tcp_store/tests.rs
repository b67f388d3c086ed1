//! The store client against a store in a thread.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use proptest::prelude::*;
use rustix::net::{AddressFamily, SocketType};
use spark_ccl_log::{Condvar, Mutex};

use super::*;

type Values = Arc<(Mutex<HashMap<Vec<u8>, Vec<u8>>>, Condvar)>;

#[test]
fn a_silent_address_leaves_time_for_the_others() {
    let [short, long] = [4, 300].map(Duration::from_secs);
    assert_eq!(share(long, 0, 1), long);
    for others in [0, 1, 2] {
        assert_eq!(share(long, others, 3), ATTEMPT);
    }
    assert_eq!(share(short, 3, 4), Duration::from_secs(1));
}

/// Starts a store with the same protocol on a free port.
fn serve() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        let values = Values::default();
        for stream in listener.incoming() {
            let values = Arc::clone(&values);
            // A thread ends with an error when its client closes the stream.
            thread::spawn(move || serve_one(stream.unwrap(), &values).unwrap_err());
        }
    });
    port
}

fn serve_one(mut stream: TcpStream, values: &Values) -> io::Result<()> {
    assert_eq!(take::<1>(&mut stream)?, [0]);
    assert_eq!(take::<4>(&mut stream)?, 0x3C85_F7CE_u32.to_ne_bytes());
    loop {
        match take::<1>(&mut stream)?[0] {
            1 => {
                let key = take_bytes(&mut stream)?;
                let value = take_bytes(&mut stream)?;
                values.0.lock().insert(key, value);
                values.1.notify_all();
            }
            3 => {
                let key = take_bytes(&mut stream)?;
                let value = values.0.lock()[&key].clone();
                stream.write_all(&(value.len() as u64).to_ne_bytes())?;
                stream.write_all(&value)?;
            }
            5 => {
                assert_eq!(u64::from_ne_bytes(take(&mut stream)?), 1);
                let key = take_bytes(&mut stream)?;
                stream.write_all(&[u8::from(!values.0.lock().contains_key(&key))])?;
            }
            6 => {
                assert_eq!(u64::from_ne_bytes(take(&mut stream)?), 1);
                let key = take_bytes(&mut stream)?;
                let is_unknown = |known: &mut HashMap<_, _>| !known.contains_key(&key);
                drop(values.1.wait_while(values.0.lock(), is_unknown));
                stream.write_all(&[0])?;
            }
            other => panic!("request {other}"),
        }
    }
}

fn take<const N: usize>(stream: &mut TcpStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn take_bytes(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; u64::from_ne_bytes(take(stream)?) as usize];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn store(port: u16) -> TcpStore {
    TcpStore::new("127.0.0.1".to_owned(), port, "spark_ccl/run/0/".to_owned())
}

fn after(time: Duration) -> Instant {
    Instant::now() + time
}

const LONG: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(300);

#[test]
fn what_is_put_is_got_by_those_who_wait_already() {
    let port = serve();
    let readers: Vec<_> = (0..3)
        .map(|_| thread::spawn(move || store(port).get("root", after(LONG)).unwrap()))
        .collect();
    let mut writer = store(port);
    writer.put("other", b"no", after(LONG)).unwrap();
    writer.put("root", b"10.0.0.1:7", after(LONG)).unwrap();
    for reader in readers {
        assert_eq!(reader.join().unwrap(), b"10.0.0.1:7");
    }
}

#[test]
fn a_store_that_comes_late_is_found() {
    // The port is bound, and refuses connections until `listen`.
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let listener = TcpListener::from(socket);
    let port = listener.local_addr().unwrap().port();
    let reader = thread::spawn(move || store(port).get("root", after(LONG)));
    thread::sleep(SHORT);
    rustix::net::listen(&listener, 1).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    let expected = [
        validate_request(),
        keys_request(WAIT, "spark_ccl/run/0/root"),
    ]
    .concat();
    let mut request = vec![0; expected.len()];
    stream.read_exact(&mut request).unwrap();
    assert_eq!(request, expected);
    stream.write_all(&[STOP_WAITING]).unwrap();
    stream.write_all(&3_u64.to_ne_bytes()).unwrap();
    stream.write_all(b"abc").unwrap();
    assert_eq!(reader.join().unwrap().unwrap(), b"abc");
}

#[test]
fn a_key_that_nobody_puts_is_a_timeout() {
    let error = store(serve()).get("root", after(SHORT)).unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    assert!(
        error.to_string().contains("torchrun's store at 127.0.0.1:"),
        "{error}"
    );
}

#[test]
fn after_a_timeout_the_next_request_gets_its_own_answer() {
    let port = serve();
    let mut reader = store(port);
    reader.get("late", after(SHORT)).unwrap_err();
    let mut writer = store(port);
    writer.put("late", b"1", after(LONG)).unwrap();
    writer.put("next", b"2", after(LONG)).unwrap();
    assert_eq!(reader.get("next", after(LONG)).unwrap(), b"2");
}

#[test]
fn a_server_that_is_no_store_is_an_error() {
    for answer in [
        &b""[..],
        b"HTTP/1.1 400 Bad Request\r\n",
        &[0, 255, 255, 255, 255, 255, 255, 255, 255],
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(answer).unwrap();
            // The client may be gone before it has read everything.
            let _ = io::copy(&mut stream.try_clone().unwrap().take(20), &mut io::sink());
        });
        let error = store(port).get("root", after(LONG)).unwrap_err();
        assert!(matches!(error, Error::Space { .. }), "{error}");
        server.join().unwrap();
    }
}

#[test]
fn nobody_listens() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let error = store(port).put("root", b"", after(SHORT)).unwrap_err();
    assert!(error.to_string().contains(&port.to_string()), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_answers_are_read_or_refused(
        stop in 0_u8..2,
        length in prop_oneof![0_u64..40, any::<u64>()],
        value in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut theirs, _) = listener.accept().unwrap();
        let answer = [&[stop][..], &length.to_ne_bytes(), &value].concat();
        theirs.write_all(&answer).unwrap();
        drop(theirs);
        let mut timed = Timed { stream: &mut ours, deadline: after(LONG) };
        match timed.expect(STOP_WAITING).and_then(|()| timed.value()) {
            Ok(got) => prop_assert_eq!(&got[..], &value[..length as usize]),
            Err(_) => prop_assert!(stop != STOP_WAITING || length > value.len() as u64),
        }
    }
}
