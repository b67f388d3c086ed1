//! The example `train` as processes: the same losses by any number of ranks, also when ranks are
//! killed, and also while they write a checkpoint.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use spark_ccl::{Communicator, rank_variables};
use spark_ccl_testing::{scramble, seed};

/// The time limit of everything that is not a test's subject.
const WATCHDOG: Duration = Duration::from_secs(120);

/// Small enough for tests.
const SMALL: [&str; 5] = ["width=16", "context=16", "layers=1", "batch=8", "every=1"];

fn command(arguments: &[&str]) -> Command {
    // This test is in target/profile/deps; cargo builds the examples beside that folder.
    let test = std::env::current_exe().unwrap();
    let profile = test.ancestors().nth(2).unwrap();
    let mut command = Command::new(profile.join("examples/train"));
    for (name, _) in std::env::vars() {
        if name.starts_with("SPARK_CCL_") {
            command.env_remove(name);
        }
    }
    // So that the test ends, whatever goes wrong.
    command.env("SPARK_CCL_TIMEOUT", "60");
    command.args(SMALL).args(arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A text of its own: documents change.
fn text(folder: &Path) -> String {
    let file = folder.join("text");
    let words = [
        "ranks ",
        "reduce ",
        "gradients ",
        "in ",
        "buckets.\n",
        "A ",
        "sum ",
    ];
    let text = (0..2000).map(|it| words[(scramble(1, it) % 7) as usize]);
    std::fs::write(&file, text.collect::<String>()).unwrap();
    format!("text={}", file.display())
}

/// The text that a successful process has printed.
fn printed(output: Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// The losses in the lines of progress, by step; of a step that was repeated, the last one. NaN
/// where there is none.
fn losses(text: &str) -> Vec<f64> {
    let mut losses = Vec::new();
    for line in text.lines() {
        let Some((step, rest)) = line
            .strip_prefix("step ")
            .and_then(|it| it.split_once(": loss "))
        else {
            continue;
        };
        let step: usize = step.parse().unwrap();
        let loss: f64 = rest.split(',').next().unwrap().parse().unwrap();
        losses.resize(step.max(losses.len()), f64::NAN);
        losses[step - 1] = loss;
    }
    losses
}

fn assert_alike(seen: &[f64], expected: &[f64]) {
    assert_eq!(seen.len(), expected.len());
    for (step, (seen, expected)) in seen.iter().zip(expected).enumerate() {
        let is_alike = (seen - expected).abs() <= 1e-5 * expected;
        assert!(is_alike, "loss {step}: {seen}, not {expected}");
    }
}

/// Of 200 losses, each bar shows four; they become smaller.
fn assert_plotted(printed: &str) {
    let plot = printed.split("\nloss\n").nth(1).unwrap();
    let bars = plot.lines().take(8).map(|line| {
        let bars = line.chars().skip("   1.2345 ".len());
        bars.filter(|it| !it.is_whitespace()).count()
    });
    let bars: Vec<_> = bars.collect();
    assert!(bars.is_sorted() && bars[0] > 0 && bars[4] < 50, "{plot}");
    assert_eq!(bars[7], 50, "{plot}");
}

#[test]
fn the_losses_do_not_depend_on_ranks_and_shares() {
    let folder = tempfile::tempdir().unwrap();
    let text = text(folder.path());
    let run = |ranks: &str, sharded: &str| {
        let arguments = ["steps=200", &text, ranks, sharded];
        let printed = printed(command(&arguments).output().unwrap());
        assert!(
            printed.contains("samples/s") && printed.contains("% exposed"),
            "{printed}"
        );
        assert_plotted(&printed);
        losses(&printed)
    };
    let alone = run("ranks=1", "sharded=0");
    assert_eq!(alone.len(), 200);
    assert!(
        alone[199] < alone[0] * 0.7,
        "{} became {}",
        alone[0],
        alone[199]
    );
    for ranks in ["ranks=1", "ranks=2", "ranks=4"] {
        for sharded in ["sharded=0", "sharded=1"] {
            let seen = run(ranks, sharded);
            assert_alike(&seen, &alone);
        }
    }
}

#[test]
fn a_run_without_steps_plots_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let at = format!("folder={}", folder.path().join("checkpoints").display());
    let arguments = ["steps=2", &text(folder.path()), &at];
    let run = || printed(command(&arguments).output().unwrap());
    assert!(run().contains("\nloss\n"));
    let again = run();
    assert!(
        again.contains("2 ranks, ") && !again.contains("loss"),
        "{again}"
    );
}

/// The losses of one rank that nothing happens to.
fn alone(arguments: &[&str]) -> Vec<f64> {
    let output = command(arguments).arg("ranks=1").output().unwrap();
    losses(&printed(output))
}

/// Ranks as processes that are killed at the end.
struct Ranks(Vec<Child>);

impl Ranks {
    fn start(count: usize, arguments: &[&str]) -> Self {
        Self::start_with(count, arguments, &[])
    }

    fn start_with(count: usize, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let id = Communicator::builder().unique_id().unwrap();
        let ranks = (0..count).map(|rank| {
            let mut command = command(arguments);
            command
                .envs(rank_variables(&id, rank, count))
                .envs(variables.iter().copied());
            command.spawn().unwrap()
        });
        Self(ranks.collect())
    }

    /// Kills one. Returns what it had printed.
    fn kill(&mut self, rank: usize) -> String {
        let mut victim = self.0.remove(rank);
        victim.kill().unwrap();
        let output = victim.wait_with_output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    fn pid(&self, rank: usize) -> Pid {
        Pid::from_raw(self.0[rank].id().cast_signed()).unwrap()
    }

    /// Stops one, all of whose threads stand when this returns. The others cannot tell it from one
    /// that hangs.
    fn stop(&self, rank: usize) {
        let pid = self.pid(rank);
        kill_process(pid, Signal::STOP).unwrap();
        let (_, status) = waitpid(Some(pid), WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped(), "rank {rank} has ended: {status:?}");
    }

    /// Wakes one that was stopped.
    fn wake(&self, rank: usize) {
        kill_process(self.pid(rank), Signal::CONT).unwrap();
    }

    /// Their outputs when they have ended.
    fn outputs(mut self) -> Vec<Output> {
        let ranks = std::mem::take(&mut self.0).into_iter();
        ranks.map(|it| it.wait_with_output().unwrap()).collect()
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Waits until this is so, or the watchdog's time has passed.
fn wait_until(mut is_so: impl FnMut() -> bool, what: &str) {
    let deadline = Instant::now() + WATCHDOG;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// The names in a folder that begin like this.
fn names(folder: &Path, begin: &str) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.map(|it| it.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(begin)).collect()
}

/// The step of the last checkpoint; 0 if there is none.
fn last_step(checkpoints: &Path) -> u64 {
    let names = names(checkpoints, "step-").into_iter();
    let steps = names.filter_map(|name| name.split('-').nth(1)?.parse().ok());
    steps.max().unwrap_or(0)
}

/// Kills one of three ranks at a random step, this often, and each of them in turn. The other two
/// go on from the last checkpoint, and have the losses of a rank that nothing happens to. Returns
/// how long it took each time until they had saved a checkpoint by themselves.
fn kill_ranks(rounds: u64, steps: u64) -> Vec<Duration> {
    let folder = tempfile::tempdir().unwrap();
    let text = text(folder.path());
    // So many that this test sees one of the first checkpoints before the last, also when busy.
    let arguments = ["steps=500", &text, "sharded=1"];
    let alone = alone(&arguments);
    let round = |round: u64| {
        let checkpoints = folder.path().join(round.to_string());
        let at = format!("folder={}", checkpoints.display());
        let mut ranks = Ranks::start(3, &[&arguments[..], &[&at]].concat());
        let step = 5 + scramble(seed(), round) % steps;
        wait_until(|| last_step(&checkpoints) >= step, "no checkpoint");
        let since = Instant::now();
        let killed = (round % 3) as usize;
        let before = ranks.kill(killed);
        // The next one may be of all three, and was being written when one died.
        let own = last_step(&checkpoints) + 2;
        wait_until(|| last_step(&checkpoints) >= own, "they do not go on");
        let took = since.elapsed();
        let outputs = ranks.outputs();
        assert!(
            outputs.iter().all(|output| output.status.success()),
            "{outputs:?}"
        );
        let [said, printed] = [&outputs[0].stderr, &outputs[0].stdout]
            .map(|it| String::from_utf8_lossy(it).into_owned());
        assert!(
            said.contains(&format!("rank {killed} ")) && said.contains("going on"),
            "{said}"
        );
        assert!(printed.contains("2 ranks, "), "{printed}");
        // Rank 0 prints a step's loss before it saves a checkpoint of it, so no loss is missing.
        assert_alike(&losses(&(before + &printed)), &alone);
        took
    };
    (0..rounds).map(round).collect()
}

#[test]
fn ranks_go_on_from_the_last_checkpoint_when_one_is_killed() {
    assert_eq!(kill_ranks(3, 20).len(), 3);
}

/// Rank 0 of three, which writes and prints most, is stopped after some steps, or while a
/// checkpoint is being written, and never wakes up. The others give up waiting, and go on without
/// it.
fn go_on_without_rank_0(in_writing: bool) {
    let folder = tempfile::tempdir().unwrap();
    let text = text(folder.path());
    let arguments = ["steps=500", &text, "sharded=1"];
    let alone = alone(&arguments);
    let checkpoints = folder.path().join("checkpoints");
    let at = format!("folder={}", checkpoints.display());
    // How long calls wait for a rank that is there, and `recover` for its answer. That of ranks
    // that live, too, so it is long for a busy machine.
    let soon = [("SPARK_CCL_TIMEOUT", "20"), ("SPARK_CCL_LOST_AFTER", "10")];
    let mut ranks = Ranks::start_with(3, &[&arguments[..], &[&at]].concat(), &soon);
    wait_until(|| last_step(&checkpoints) >= 5, "no checkpoint");
    let is_writing = || !names(&checkpoints, ".writing-").is_empty();
    loop {
        wait_until(|| !in_writing || is_writing(), "nothing is written");
        ranks.stop(0);
        if !in_writing || is_writing() {
            break;
        }
        // It ended what it wrote before it stood.
        ranks.wake(0);
    }
    // Rank 0 gives checkpoints their names, so this stays so until the others go on alone.
    assert!(last_step(&checkpoints) < 500, "it stopped too late");
    wait_until(|| last_step(&checkpoints) == 500, "they do not go on");
    let before = ranks.kill(0);
    let outputs = ranks.outputs();
    assert!(outputs.iter().all(|it| it.status.success()), "{outputs:?}");
    let [said, printed] =
        [&outputs[0].stderr, &outputs[0].stdout].map(|it| String::from_utf8_lossy(it).into_owned());
    assert!(
        said.contains("rank 0 ") && said.contains("going on"),
        "{said}"
    );
    assert!(printed.contains("2 ranks, "), "{printed}");
    assert_alike(&losses(&(before + &printed)), &alone);
}

#[test]
fn ranks_go_on_from_the_last_checkpoint_when_rank_0_stops() {
    go_on_without_rank_0(false);
}

#[test]
fn ranks_go_on_from_the_last_checkpoint_when_rank_0_stops_in_writing() {
    go_on_without_rank_0(true);
}

/// The times are a promise, which a busy machine may break.
#[test]
#[ignore = "half a minute, on a machine that does nothing else; .ci/full runs it"]
fn ranks_go_on_within_ten_seconds() {
    let took = kill_ranks(10, 200);
    println!("from each kill to a new checkpoint of the ranks that are left: {took:?}");
    let longest = took.iter().max().unwrap();
    assert!(*longest < Duration::from_secs(10), "{longest:?}");
}

/// All ranks are killed while a checkpoint is being written; started again, they go on from the one
/// before it, to the same end.
#[test]
fn no_checkpoint_is_half_written() {
    let folder = tempfile::tempdir().unwrap();
    let text = text(folder.path());
    // Each kill leaves steps for the later ones, also where it comes late.
    let arguments = ["steps=500", &text, "sharded=1"];
    let alone = alone(&arguments);
    let checkpoints = folder.path().join("checkpoints");
    let at = format!("folder={}", checkpoints.display());
    let with_folder = [&arguments[..], &[&at]].concat();
    let (seed, mut half) = (seed(), 0);
    for kill in 0..20 {
        // So that what is seen is being written now.
        for left in names(&checkpoints, ".writing-") {
            std::fs::remove_dir_all(checkpoints.join(left)).unwrap();
        }
        let ranks = Ranks::start(2, &with_folder);
        wait_until(
            || !names(&checkpoints, ".writing-").is_empty(),
            "nothing is written",
        );
        std::thread::sleep(Duration::from_micros(scramble(seed, kill) % 3000));
        drop(ranks);
        half += usize::from(!names(&checkpoints, ".writing-").is_empty());
    }
    assert!(half > 0, "no kill has left a checkpoint that is not whole");
    let outputs = Ranks::start(2, &with_folder).outputs();
    let printed = printed(outputs.into_iter().next().unwrap());
    let losses = losses(&printed);
    // What was printed before is lost.
    let first = losses.iter().position(|loss| !loss.is_nan()).unwrap();
    assert_alike(&losses[first..], &alone[first..]);
}
