//! Tests of network faults on a connection. They change the network only on the emulated machine
//! made for these tests, by its command `rails`.

use std::process::Command;
use std::time::{Duration, Instant};

use spark_ccl_testing::{Need, has};
use spark_ccl_verbs::{AsyncEvent, CompletionError, Mtu, PollRoom, Status};

use crate::ends::{Connected, connected};
use crate::events;
use crate::kernel::{Ends, soft_roce};

/// Two ends joined by a cable, and their network interfaces.
fn cabled() -> Option<(Connected, Connected, String, String)> {
    if !has(Need::Cables) {
        return None;
    }
    let (one, other) = connected()?;
    let name = |end: &Connected| end.test_port.gid.netdev.clone().unwrap();
    let (here, there) = (name(&one), name(&other));
    assert_ne!(here, there);
    Some((one, other, here, there))
}

/// Commands that undo a test's changes, however it ends.
struct Changed(Vec<String>);

impl Changed {
    fn new(how: &str, back: &[String]) -> Self {
        run(how);
        Self(back.to_vec())
    }
}

impl Drop for Changed {
    fn drop(&mut self) {
        self.0.iter().for_each(|command| run(command));
    }
}

fn run(command: &str) {
    let mut words = command.split(' ');
    let mut program = Command::new(words.next().unwrap());
    assert!(program.args(words).status().unwrap().success(), "{command}");
}

fn write(one: &mut Connected, other: &Connected) {
    one.write(1, one.piece(0, 8192), other.remote(0));
}

/// The result of the only request, if it ends in time.
fn ending(one: &Connected, limit: Duration) -> Option<Result<(), CompletionError>> {
    let start = Instant::now();
    let mut room = PollRoom::default();
    while start.elapsed() < limit {
        if let Some(ended) = one.queue.poll(&mut room).unwrap().next() {
            return Some(ended.map(drop));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    None
}

/// The request's failure, whose message must contain `advice`.
fn failure(one: &Connected, advice: &str) -> Status {
    let error = one.next().expect_err("the request succeeded");
    assert!(error.to_string().contains(advice), "{error}");
    error.status
}

#[test]
fn a_cable_that_carries_nothing() {
    let Some((mut one, other, here, _)) = cabled() else {
        return;
    };
    let cut = format!("rails impair {here} loss 100%");
    let _back = Changed::new(&cut, &[format!("rails impair {here}")]);
    write(&mut one, &other);
    assert_eq!(
        failure(&one, "the network loses packets"),
        Status::RetryExceeded
    );
    // No port notices.
    assert_eq!(one.test_port.context.next_event().unwrap(), None);
}

#[test]
fn a_port_of_the_peer_that_goes_down() {
    let Some((mut one, other, _, there)) = cabled() else {
        return;
    };
    let back = [format!("rails up {there}")];
    let _back = Changed::new(&format!("rails down {there}"), &back);
    for end in [&one, &other] {
        assert_eq!(
            events::next(&end.test_port.context),
            AsyncEvent::PortError(1)
        );
    }
    write(&mut one, &other);
    assert_eq!(
        failure(&one, "the network loses packets"),
        Status::RetryExceeded
    );
}

#[test]
fn a_port_here_that_goes_down() {
    let Some((mut one, other, here, _)) = cabled() else {
        return;
    };
    let back = [format!("rails up {here}")];
    let down = Changed::new(&format!("rails down {here}"), &back);
    assert_eq!(
        events::next(&one.test_port.context),
        AsyncEvent::PortError(1)
    );
    write(&mut one, &other);
    assert_unable(&one);
    drop(down);
    assert_eq!(
        events::next(&one.test_port.context),
        AsyncEvent::PortActive(1)
    );
}

#[test]
fn an_address_here_that_goes() {
    let Some((mut one, other, here, _)) = cabled() else {
        return;
    };
    let own = one.test_port.gid.gid.ipv4().unwrap();
    let prefix = if own.is_link_local() { 16 } else { 24 };
    let address = |change| format!("ip addr {change} {own}/{prefix} dev {here}");
    // The routes were removed together with the address.
    let back = [address("add"), format!("rails up {here}")];
    let _back = Changed::new(&address("del"), &back);
    assert_eq!(
        events::next(&one.test_port.context),
        AsyncEvent::GidChange(1)
    );
    write(&mut one, &other);
    assert_unable(&one);
}

/// Checks that the request has failed because this end could not send it.
fn assert_unable(one: &Connected) {
    let status = failure(one, "the network interface here");
    let ends = Ends(
        Status::LocalOperation,
        Status::Flushed,
        Status::LocalOperation,
    );
    assert!(ends.include(&one.test_port, status), "{status:?}");
}

#[test]
fn packets_that_became_too_long() {
    let Some((mut one, other, here, _)) = cabled() else {
        return;
    };
    let mtu = |bytes| format!("ip link set {here} mtu {bytes}");
    let short = Changed::new(&mtu(1500), &[mtu(9000)]);
    let port = one.test_port.context.port(1).unwrap();
    assert_eq!(port.active_mtu, Mtu::B1024);
    write(&mut one, &other);
    match soft_roce(&one.test_port) {
        // The sender never gets an error, so only a deadline helps. Here the transfer continues
        // once packets pass again.
        Some((6, 1)) => {
            assert_eq!(ending(&one, Duration::from_millis(300)), None);
            drop(short);
            assert!(one.next().is_ok());
        }
        _ => assert_eq!(failure(&one, "the network interface here"), Status::Flushed),
    }
}
