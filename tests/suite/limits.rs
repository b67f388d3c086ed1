//! Limits that hold whatever the system, a file or a name server does.

use std::io::Write;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use spark_ccl::{Builder, Communicator, Error};
use spark_ccl_testing::{Need, has, with_enough_time};

/// Far longer than anything here takes, and far shorter than it would take without its limit.
const WATCHDOG: Duration = Duration::from_secs(60);

/// Marks the process that a test starts.
const ALONE: &str = "SPARK_CCL_TEST_ALONE";

fn builder() -> Builder {
    Communicator::builder().set("SPARK_CCL_INIT_TIMEOUT", "1")
}

/// A rank that reads its unique id from this file.
fn by_file(builder: &Builder, path: &Path) -> Result<Communicator, Error> {
    let builder = builder.clone().set("SPARK_CCL_RANK", "0");
    let builder = builder.set("SPARK_CCL_SIZE", "1");
    let path = path.to_str().unwrap();
    builder.set("SPARK_CCL_UNIQUE_ID_FILE", path).from_env()
}

fn pipe(folder: &tempfile::TempDir) -> PathBuf {
    let path = folder.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
    path
}

#[test]
fn a_file_without_an_end_is_not_read_for_ever() {
    let begin = Instant::now();
    let folder = tempfile::tempdir().unwrap();
    let pipe = pipe(&folder);
    for (path, why) in [
        (Path::new("/dev/zero"), "larger than 65536 bytes"),
        (&pipe, "not delivered all in time"),
    ] {
        let error = by_file(&builder(), path).err().unwrap().to_string();
        let name = format!("SPARK_CCL_UNIQUE_ID_FILE={}", path.display());
        assert!(error.contains(why) && error.contains(&name), "{error}");
        let secret = builder().set("SPARK_CCL_SECRET_FILE", path.to_str().unwrap());
        let error = secret.local(1).err().unwrap().to_string();
        assert!(error.contains("SPARK_CCL_SECRET_FILE"), "{error}");
    }
    // A rank also works without measured choices.
    let tuning = builder().set("SPARK_CCL_TUNING", pipe.to_str().unwrap());
    assert_eq!(tuning.local(1).unwrap().len(), 1);
    assert!(begin.elapsed() < WATCHDOG, "{:?}", begin.elapsed());
}

#[test]
fn a_pipe_that_delivers_in_time_is_as_good_as_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = pipe(&folder);
    let builder = builder().set("SPARK_CCL_INIT_TIMEOUT", "60");
    let id = builder.unique_id().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            let mut pipe = std::fs::File::options().write(true).open(&pipe).unwrap();
            writeln!(pipe, "{id}").unwrap();
        });
        assert_eq!(by_file(&builder, &pipe).unwrap().size(), 1);
    });
}

/// Runs in its own network and mount namespaces, where the only name server never answers.
#[test]
fn a_silent_name_server_does_not_outlast_the_deadline() {
    const NAME: &str = "limits::a_silent_name_server_does_not_outlast_the_deadline";
    if std::env::var_os(ALONE).is_some() {
        return meet_at_a_name_that_nobody_tells();
    }
    if !has(Need::Namespaces) {
        return;
    }
    let mut resolver = tempfile::NamedTempFile::new().unwrap();
    writeln!(
        resolver,
        "nameserver 127.0.0.1\noptions timeout:30 attempts:5"
    )
    .unwrap();
    let enter = "ip link set lo up && mount --bind \"$0\" /etc/resolv.conf && exec \"$@\"";
    let mut alone = Command::new("unshare");
    alone
        .args(["--net", "--mount", "sh", "-c", enter])
        .arg(resolver.path());
    alone
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", NAME]);
    let output = alone.env(ALONE, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}"
    );
}

fn meet_at_a_name_that_nobody_tells() {
    let _silent = UdpSocket::bind("127.0.0.1:53").unwrap();
    // Before it is over, rank 0 has to listen, and rank 1 to ask.
    with_enough_time(Duration::from_secs(1), |limit| {
        let begin = Instant::now();
        // Rank 0 needs no address for its rendezvous, but resolves the name to choose the best
        // interface.
        for (rank, why) in [
            (0, "rank 1 of 2 did not arrive"),
            (1, "host name nowhere.example"),
        ] {
            let builder = Communicator::builder().init_timeout(limit);
            let secret = builder.secret(b"a secret of some length");
            let rank = secret.rank(rank).size(2).meet_at("nowhere.example", 29_500);
            let error = rank.from_env().err().unwrap().to_string();
            if !error.contains(why) {
                return Err(error);
            }
        }
        assert!(begin.elapsed() < WATCHDOG, "{:?}", begin.elapsed());
        Ok(())
    });
}
