//! Worlds of real processes, and the errors of the others when one is killed.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use spark_ccl_bootstrap::{Error, Options, Secret, Session, UniqueId};
use spark_ccl_testing::{Need, free_port, has};

use crate::common::{WATCHDOG, mesh, options, soon};

/// If set, this test program is a rank. Its value: rank, size of the world, what to do there,
/// secret (or "-"), and a unique id or a port.
const ROLE: &str = "SPARK_BOOTSTRAP_TEST_ROLE";
/// Marks the lines that a rank prints for its test.
const MARK: &str = "@ ";

struct Worker {
    child: Child,
    messages: mpsc::Receiver<String>,
}

impl Worker {
    fn start(rank: u32, size: u32, action: &str, secret: &str, rendezvous: &str) -> Self {
        let program = Command::new(std::env::current_exe().unwrap());
        let role = format!("{rank} {size} {action} {secret} {rendezvous}");
        Self::start_program(program, rank, &role)
    }

    /// Starts a rank of two as [`STRANGER`].
    fn start_stranger(program: &Path, rank: u32, action: &str, secret_and_place: &str) -> Self {
        let mut program = Command::new(program);
        program.uid(STRANGER).gid(STRANGER).current_dir("/");
        let role = format!("{rank} 2 {action} {secret_and_place}");
        Self::start_program(program, rank, &role)
    }

    fn start_program(mut program: Command, rank: u32, role: &str) -> Self {
        let mut child = program
            .args(["--ignored", "--exact", "processes::worker", "--nocapture"])
            .env(ROLE, role)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (sender, messages) = mpsc::channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                match line.strip_prefix(MARK) {
                    Some(message) => drop(sender.send(message.to_owned())),
                    None => eprintln!("rank {rank}: {line}"),
                }
            }
        });
        let worker = Worker { child, messages };
        assert_eq!(worker.next_message(), "started");
        worker
    }

    /// The rank's next message.
    fn next_message(&self) -> String {
        self.messages.recv_timeout(2 * WATCHDOG).unwrap()
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Acts as a rank if one of the tests below started this process.
#[test]
#[ignore = "the other tests here start it as a child process, with --ignored --exact; no test by itself"]
fn worker() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let [rank, size, action, secret, rendezvous] = role
        .split(' ')
        .collect::<Vec<_>>()
        .try_into()
        .expect("five words");
    let number = |text: &str| text.parse().unwrap();
    // Programs start slowly on a busy processor; ranks in a hurry count from here.
    eprintln!("{MARK}started");
    let text = match run_rank(number(rank), number(size), action, secret, rendezvous) {
        Ok(()) => "done".to_owned(),
        Err(error) => format!("{error:?} {error}"),
    };
    eprintln!("{MARK}{text}");
}

fn run_rank(
    rank: u32,
    size: u32,
    action: &str,
    secret: &str,
    rendezvous: &str,
) -> Result<(), Error> {
    if action == "make" {
        let id = UniqueId::create(&options())?;
        eprintln!("{MARK}{id}");
        std::thread::sleep(2 * WATCHDOG);
        return Ok(());
    }
    let secret = (secret != "-").then(|| Secret::from_text(secret.as_bytes()));
    let options = Options {
        init_timeout: if action == "hurry" {
            Duration::from_secs(4)
        } else {
            WATCHDOG
        },
        ..options()
    };
    let session = match rendezvous.parse() {
        Ok(port) => {
            let place = ("127.0.0.1", port);
            Session::at_address(place, rank, size, secret.as_ref(), true, &options)?
        }
        Err(_) => Session::join(&rendezvous.parse()?, rank, size, &options)?,
    };
    eprintln!("{MARK}joined");
    match action {
        "mesh" => mesh(&session),
        "hold" => std::thread::sleep(2 * WATCHDOG),
        _ => session.seal(Ok(()), soon())?,
    }
    Ok(())
}

fn start_all(size: u32, actions: &[&str], secret: &str, rendezvous: &str) -> Vec<Worker> {
    (0..size)
        .zip(actions.iter().cycle())
        .map(|(rank, action)| Worker::start(rank, size, action, secret, rendezvous))
        .collect()
}

#[test]
fn all_pairs_connect_between_processes() {
    let id = UniqueId::create(&options()).unwrap().to_string();
    let port = free_port().to_string();
    for (size, secret, rendezvous) in [(4, "-", &id), (3, "s", &port), (2, "-", &port)] {
        for worker in start_all(size, &["mesh"], secret, rendezvous) {
            assert_eq!(worker.next_message(), "joined");
            assert_eq!(worker.next_message(), "done");
        }
    }
}

#[test]
fn a_killed_rank_is_named_by_all_others() {
    let id = UniqueId::create(&options()).unwrap().to_string();
    let mut workers = start_all(3, &["seal", "hold", "seal"], "-", &id);
    for worker in &workers {
        assert_eq!(worker.next_message(), "joined");
    }
    let mut killed = workers.remove(1);
    let name = format!("pid {})", killed.child.id());
    killed.kill();
    let errors: Vec<String> = workers.iter().map(Worker::next_message).collect();
    assert_eq!(errors[0], errors[1]);
    assert!(errors[0].starts_with("Lost"), "{}", errors[0]);
    assert!(
        errors[0].contains("rank 1 (") && errors[0].contains(&name),
        "{}",
        errors[0]
    );
}

#[test]
fn a_rendezvous_that_is_killed_with_its_rank_is_named_by_all_others() {
    let port = free_port().to_string();
    let mut workers = start_all(3, &["hold", "seal", "seal"], "-", &port);
    for worker in &workers {
        assert_eq!(worker.next_message(), "joined");
    }
    workers[0].kill();
    for worker in &workers[1..] {
        let error = worker.next_message();
        assert!(error.starts_with("Lost"), "{error}");
        let name = format!("the rendezvous at 127.0.0.1:{port} went away");
        assert!(error.contains(&name), "{error}");
    }
}

#[test]
fn an_id_that_is_over_says_so_and_what_to_do() {
    let mut maker = Worker::start(0, 2, "make", "-", "-");
    let id = maker.next_message();
    // The first one gives up, and with it the rendezvous.
    let impatient = Worker::start(0, 2, "hurry", "-", &id).next_message();
    assert!(impatient.starts_with("Missing"), "{impatient}");
    let late = Worker::start(1, 2, "seal", "-", &id).next_message();
    assert!(
        late.contains("this rank is late: rank 1 of 2 did not arrive"),
        "{late}"
    );
    maker.kill();
    let orphan = Worker::start(1, 2, "seal", "-", &id).next_message();
    assert!(orphan.contains("its process has ended"), "{orphan}");
    for error in [late, orphan] {
        assert!(error.starts_with("Expired"), "{error}");
        for part in ["it was made ", " s ago and good for 60 s", "make a new one"] {
            assert!(error.contains(part), "{error}");
        }
    }
}

#[test]
fn an_id_whose_ranks_have_met_admits_nobody_else() {
    let id = UniqueId::create(&options()).unwrap().to_string();
    for worker in start_all(2, &["seal"], "-", &id) {
        assert_eq!(worker.next_message(), "joined");
        assert_eq!(worker.next_message(), "done");
    }
    let error = Worker::start(0, 2, "seal", "-", &id).next_message();
    assert!(error.starts_with("Expired"), "{error}");
    assert!(error.contains("its ranks have met already"), "{error}");
}

#[test]
fn a_process_with_a_wrong_secret_stays_outside() {
    let port = free_port().to_string();
    // It waits for the other, which gives up early.
    let outside = Worker::start(1, 2, "seal", "wrong", &port);
    let inside = Worker::start(0, 2, "hurry", "right", &port);
    let error = outside.next_message();
    assert!(error.starts_with("Auth"), "{error}");
    let error = inside.next_message();
    assert!(error.starts_with("Missing"), "{error}");
    assert!(error.contains("rank 1 of 2"), "{error}");
    assert!(
        error.contains("1 connections with a different secret"),
        "{error}"
    );
}

#[test]
fn processes_that_disagree_hear_the_same() {
    let id = UniqueId::create(&options()).unwrap().to_string();
    let workers =
        [(0, 3), (1, 3), (1, 4)].map(|(rank, size)| Worker::start(rank, size, "seal", "-", &id));
    let errors = workers.each_ref().map(Worker::next_message);
    assert!(errors[0].starts_with("Mismatch"), "{}", errors[0]);
    assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
    assert!(
        errors[0].contains("2 processes are rank 1"),
        "{}",
        errors[0]
    );
    for worker in &workers[1..] {
        let pid = format!("pid {}", worker.child.id());
        assert!(errors[0].contains(&pid), "{}", errors[0]);
    }
}

/// A copy of this program that other users may run. Dropping it removes it.
struct Copied(tempfile::TempDir);

impl Copied {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let anybody = std::fs::Permissions::from_mode(0o755);
        let copied = Copied(folder);
        std::fs::set_permissions(copied.0.path(), anybody.clone()).unwrap();
        std::fs::copy(std::env::current_exe().unwrap(), copied.path()).unwrap();
        std::fs::set_permissions(copied.path(), anybody).unwrap();
        copied
    }

    fn path(&self) -> std::path::PathBuf {
        self.0.path().join("rank")
    }
}

/// A user other than that of the tests.
const STRANGER: u32 = 1;

fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn assert_refused(error: &str, theirs: u32, ours: u32) {
    assert!(error.starts_with("User"), "{error}");
    let users = format!("belongs to user id {theirs}, and this process to user id {ours}");
    for part in [&users, "SPARK_CCL_SECRET"] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn without_a_secret_another_user_does_not_become_a_rank() {
    if !has(Need::Users) {
        return;
    }
    let (copied, port) = (Copied::new(), free_port().to_string());
    let root = Worker::start(0, 2, "mesh", "-", &port);
    let intruder = Worker::start_stranger(&copied.path(), 1, "mesh", &format!("- {port}"));
    assert_refused(&intruder.next_message(), own_user(), STRANGER);
    let rightful = Worker::start(1, 2, "mesh", "-", &port);
    for worker in [&root, &rightful] {
        assert_eq!(worker.next_message(), "joined");
        assert_eq!(worker.next_message(), "done");
    }
}

#[test]
fn without_a_secret_no_rank_joins_another_users_rendezvous() {
    if !has(Need::Users) {
        return;
    }
    let (copied, port) = (Copied::new(), free_port().to_string());
    let victim = Worker::start(1, 2, "mesh", "-", &port);
    let pretender = Worker::start_stranger(&copied.path(), 0, "hurry", &format!("- {port}"));
    assert_refused(&victim.next_message(), STRANGER, own_user());
    let error = pretender.next_message();
    assert!(error.starts_with("Missing"), "{error}");
    // An id has a secret, and is valid for all processes that were given it.
    let id = UniqueId::create(&options()).unwrap().to_string();
    let ranks = [
        Worker::start(0, 2, "mesh", "-", &id),
        Worker::start_stranger(&copied.path(), 1, "mesh", &format!("- {id}")),
    ];
    for worker in &ranks {
        assert_eq!(worker.next_message(), "joined");
        assert_eq!(worker.next_message(), "done");
    }
}

#[test]
fn with_a_secret_ranks_may_belong_to_several_users() {
    if !has(Need::Users) {
        return;
    }
    let (copied, port) = (Copied::new(), free_port().to_string());
    let root = Worker::start(0, 2, "mesh", "shared", &port);
    let other = Worker::start_stranger(&copied.path(), 1, "mesh", &format!("shared {port}"));
    for worker in [&root, &other] {
        assert_eq!(worker.next_message(), "joined");
        assert_eq!(worker.next_message(), "done");
    }
}
