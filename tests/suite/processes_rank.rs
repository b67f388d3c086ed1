//! The process side of `processes.rs`: a rank that obeys orders, line by line.

use std::io::{IoSlice, Read};
use std::mem::{MaybeUninit, forget};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::cmsg_space;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{
    DumpableBehavior, Resource, Rlimit, Signal, set_dumpable_behavior,
    set_parent_process_death_signal, setrlimit,
};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use spark_ccl::{
    Communicator, DType, Error, Operation, Pending, Rails, RedOp, Registered, UniqueId,
};

use crate::blocked_log::{self, answer};
use crate::collectives_model::Case;
use crate::dropping::Dropping;
use crate::footprint::Ranks;
use crate::processes::ROLE;
use crate::processes_calls::{self, number};
use crate::values::message;

/// A rank, if the test program was started as one; not a test by itself.
#[test]
#[ignore = "a process that other tests start"]
fn rank() {
    let Ok(parent) = std::env::var(ROLE) else {
        return;
    };
    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    if std::os::unix::process::parent_id().to_string() != parent {
        return;
    }
    let mut state = State::default();
    for order in std::io::stdin().lines() {
        match state.obey(&order.unwrap()) {
            Ok(text) => answer(&text),
            Err(error) => answer(&format!("error: {error}")),
        }
    }
}

#[derive(Default)]
struct State {
    communicator: Option<Arc<Communicator>>,
    dropping: Option<Dropping>,
    ordinary: Vec<f32>,
    registered: Option<Registered<f32>>,
    /// The ranks for `perform`: several, or the communicator's one.
    ranks: Ranks,
    /// Streams to itself, over which it has passed descriptors.
    passed: Option<(UnixStream, UnixStream)>,
}

impl State {
    /// Obeys an order. Returns the outcome: "ok" if there is nothing else to say.
    fn obey(&mut self, order: &str) -> Result<String, Error> {
        let words: Vec<&str> = order.split(' ').collect();
        match words[..] {
            ["id"] => return Ok(Communicator::builder().unique_id()?.to_string()),
            ["join", id, rank, size] => self.join(id, number(rank), number(size))?,
            ["join-by-environment"] => {
                self.communicator = Some(Arc::new(Communicator::from_env()?));
            }
            ["local", size] => drop(Communicator::local(number(size))?),
            ["ranks", size] => self.ranks = Ranks::local(number(size))?,
            ["perform", step] => self.perform(step)?,
            ["split", color, key] => self.split(number(color), number(key))?,
            ["shrink", ref lost @ ..] => self.shrink(lost)?,
            ["recover"] => return self.recover(),
            ["go-on-by", function, ref call @ ..] => return self.go_on_by(function, call),
            ["start-and-shrink", count] => self.start_and_shrink(number(count))?,
            ["shrink-over-and-over", times] => return self.shrink_over_and_over(number(times)),
            ["leave-in-flight", count] => self.leave_in_flight(number(count), drop)?,
            ["forget-in-flight", count] => self.leave_in_flight(number(count), forget)?,
            ["start-send", to, count] => self.start_send(number(to), number(count))?,
            ["without-leave-to-trace"] => without(CapabilitySet::SYS_PTRACE),
            ["undumpable"] => undumpable(),
            ["undumpable-after", millis] => undumpable_after(millis_of(millis)),
            ["lock-at-most", kib] => lock_at_most(number(kib)),
            ["open-files-at-most", count] => limit(Resource::Nofile, number(count)),
            ["pass-descriptors-but", count] => {
                self.passed = Some(pass_descriptors_but(number(count)));
            }
            ["sleep", millis] => std::thread::sleep(millis_of(millis)),
            ["abort", reason] => self.communicator().abort(reason),
            ["leave"] => self.communicator().leave()?,
            ["leave-later", millis] => self.leave_later(millis_of(millis)),
            ["abort-later", millis, reason] => self.abort_later(millis_of(millis), reason),
            ["loop", memory, count] => self.repeat(memory, number(count))?,
            ["fill", memory, value] => self.buffer(memory).fill(value.parse().unwrap()),
            ["check"] => self.communicator().check()?,
            ["keep", count] => self.registered = Some(self.communicator().alloc(number(count))?),
            ["fork", what] => assert!(crate::fork::fork(
                what,
                crate::fork::Inherited {
                    communicator: &mut self.communicator,
                    registered: &mut self.registered,
                }
            )),
            ["record", path] => self.communicator().record(path)?,
            ["drop-memory"] => self.dropping = Some(Dropping::start(self.communicator())),
            ["drop"] => *self = Self::default(),
            ["finalize"] => self.finalize()?,
            ["exit"] => std::process::exit(0),
            ["finalize-and-exit"] => self.finalize_and_exit()?,
            ["call", ref call @ ..] => self.call(call)?,
            ["rounds", rounds, ref call @ ..] => {
                self.rounds(number(rounds), call, Duration::MAX)?;
            }
            ["rounds-that-tell", rounds, ref call @ ..] => {
                self.rounds(number(rounds), call, Duration::from_secs(1))?;
            }
            _ => return self.say(&words),
        }
        Ok("ok".to_owned())
    }

    /// Answers a question.
    fn say(&mut self, question: &[&str]) -> Result<String, Error> {
        match *question {
            ["block-log"] => {
                blocked_log::block();
                Ok("ok".to_owned())
            }
            ["count-other-than", memory, value] => {
                let bits = value.parse::<f32>().unwrap().to_bits();
                let buffer = self.buffer(memory).iter();
                let others = buffer.filter(|x| x.to_bits() != bits).count();
                Ok(others.to_string())
            }
            ["explain", memory, count] => {
                let registered = memory == "registered";
                let communicator = self.communicator();
                let count = number(count);
                let choice =
                    communicator.explain(Operation::AllReduce, DType::F32, count, registered)?;
                Ok(choice.to_string())
            }
            ["links"] => {
                let links = self.communicator().links();
                let texts: Vec<String> = links.iter().map(ToString::to_string).collect();
                Ok(texts.join("; "))
            }
            ["probe", from] => loop {
                if let Some((dtype, count)) = self.communicator().probe(number(from))? {
                    break Ok(format!("{dtype:?} {count}"));
                }
            },
            ["rails", peer] => {
                let Rails {
                    in_use,
                    dropped,
                    returned,
                } = self.communicator().rails()[number(peer)];
                Ok(format!(
                    "{in_use} in use, {dropped} dropped, {returned} returned"
                ))
            }
            _ => panic!("{question:?} is neither an order nor a question"),
        }
    }

    fn join(&mut self, id: &str, rank: usize, size: usize) -> Result<(), Error> {
        let id: UniqueId = id.parse()?;
        self.registered = None;
        self.communicator = Some(Arc::new(Communicator::connect(&id, rank, size)?));
        Ok(())
    }

    fn perform(&mut self, step: &str) -> Result<(), Error> {
        if self.ranks.is_empty() {
            self.ranks = Ranks::of(self.communicator());
        }
        self.ranks.perform(step)
    }

    /// Continues in the part.
    fn split(&mut self, color: usize, key: usize) -> Result<(), Error> {
        let part = self.communicator().split(Some(color as u32), key as i32)?;
        self.communicator = part.map(Arc::new);
        Ok(())
    }

    /// Continues with the remaining ranks; keeps this communicator if that fails.
    fn shrink(&mut self, lost: &[&str]) -> Result<(), Error> {
        let lost: Vec<usize> = lost.iter().map(|rank| number(rank)).collect();
        self.communicator = Some(Arc::new(self.communicator().shrink(&lost)?));
        Ok(())
    }

    /// Starts what the others `call` as `f32 all_reduce sum`, and shrinks before it waits for that.
    fn start_and_shrink(&mut self, count: usize) -> Result<(), Error> {
        let communicator = self.communicator();
        let input =
            Case::new(Operation::AllReduce, count).contribution::<f32>(communicator.rank(), count);
        let call = communicator.all_reduce(input, vec![0.0; count], RedOp::Sum);
        let pending = call.start()?;
        self.shrink(&[])?;
        pending.wait().map_err(Error::from).map(drop)
    }

    /// Continues with the ranks that agree; keeps this communicator if that fails. Returns their
    /// number.
    fn recover(&mut self) -> Result<String, Error> {
        let communicator = self.communicator().recover()?;
        let size = communicator.size();
        self.communicator = Some(Arc::new(communicator));
        Ok(size.to_string())
    }

    /// Shrinks or recovers until a call succeeds. Returns the number of remaining ranks. The pause
    /// is for deaths that are about to be noticed.
    fn go_on_by(&mut self, function: &str, call: &[&str]) -> Result<String, Error> {
        loop {
            match function {
                "shrink" => self.shrink(&[])?,
                _ => drop(self.recover()?),
            }
            std::thread::sleep(Duration::from_millis(300));
            match self.call(call) {
                Ok(()) => return Ok(self.communicator().size().to_string()),
                Err(Error::Failed(_)) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Shrinks without a loss, over and over. Returns how many more descriptors and threads there
    /// are at the end than after the first rounds.
    fn shrink_over_and_over(&mut self, times: usize) -> Result<String, Error> {
        let in_use = || {
            ["fd", "task"].map(|what| {
                let entries = std::fs::read_dir(format!("/proc/self/{what}")).unwrap();
                entries.count()
            })
        };
        let mut first = in_use();
        for round in 0..times {
            self.shrink(&[])?;
            self.call(&["f32", "all_reduce", "sum", "1000"])?;
            if round == 4 {
                first = in_use();
            }
        }
        let more: Vec<String> = std::iter::zip(in_use(), first)
            .map(|(last, first)| last.saturating_sub(first).to_string())
            .collect();
        Ok(more.join(" "))
    }

    fn communicator(&self) -> Arc<Communicator> {
        Arc::clone(self.communicator.as_ref().expect("a communicator"))
    }

    fn finalize(&mut self) -> Result<(), Error> {
        self.dropping = None;
        let communicator = self.communicator.take().unwrap();
        Arc::try_unwrap(communicator).unwrap().finalize()
    }

    /// Ends without dropping the communicator.
    fn finalize_and_exit(&self) -> Result<(), Error> {
        self.communicator().finalize()?;
        answer("ok");
        std::process::exit(0)
    }

    /// Starts what the others `call` as `f32 all_reduce sum`, passes the handle to `end`, and drops
    /// the communicator.
    fn leave_in_flight(
        &mut self,
        count: usize,
        end: impl FnOnce(Pending<(Vec<f32>, Vec<f32>)>),
    ) -> Result<(), Error> {
        let communicator = self.communicator.take().unwrap();
        let input =
            Case::new(Operation::AllReduce, count).contribution::<f32>(communicator.rank(), count);
        let call = communicator.all_reduce(input, vec![0.0; count], RedOp::Sum);
        end(call.start()?);
        drop(communicator);
        Ok(())
    }

    /// Starts a message, and then does nothing for it.
    fn start_send(&self, to: usize, count: usize) -> Result<(), Error> {
        let communicator = self.communicator();
        let payload = message::<f32>(communicator.rank(), to, count);
        std::mem::forget(communicator.send(payload, to).start()?);
        Ok(())
    }

    fn abort_later(&self, delay: Duration, reason: &str) {
        let (communicator, reason) = (self.communicator(), reason.to_owned());
        std::thread::spawn(move || {
            std::thread::sleep(delay);
            communicator.abort(&reason);
        });
    }

    fn leave_later(&self, delay: Duration) {
        let communicator = self.communicator();
        std::thread::spawn(move || {
            std::thread::sleep(delay);
            communicator.leave().unwrap();
        });
    }

    fn buffer(&mut self, memory: &str) -> &mut [f32] {
        match memory {
            "ordinary" => &mut self.ordinary,
            "registered" => self.registered.as_mut().unwrap(),
            _ => panic!("{memory:?} is no kind of memory"),
        }
    }

    /// Reduces a buffer of `count` elements over and over. Reports the first completion.
    fn repeat(&mut self, memory: &str, count: usize) -> Result<(), Error> {
        let communicator = self.communicator();
        match memory {
            "ordinary" => self.ordinary = vec![0.0; count],
            _ => self.registered = Some(communicator.alloc(count)?),
        }
        let value = communicator.rank() as f32 + 1.0;
        self.buffer(memory).fill(value);
        for round in 0.. {
            match memory {
                "ordinary" => communicator
                    .all_reduce_in_place(&mut self.ordinary, RedOp::Max)
                    .run()?,
                _ => communicator
                    .all_reduce_in_place(self.registered.as_mut().unwrap(), RedOp::Max)
                    .run()?,
            }
            if round == 0 {
                answer("running");
            }
        }
        Ok(())
    }

    /// Makes a call over and over. Reports the first completion, and then about every `every`.
    fn rounds(&self, rounds: usize, call: &[&str], every: Duration) -> Result<(), Error> {
        let mut said: Option<Instant> = None;
        for _ in 0..rounds {
            self.call(call)?;
            if said.is_none_or(|said| said.elapsed() > every) {
                answer("running");
                said = Some(Instant::now());
            }
        }
        Ok(())
    }

    fn call(&self, call: &[&str]) -> Result<(), Error> {
        processes_calls::call(&self.communicator(), call)
    }
}

/// From now on, this process may lock at most `kib` KiB of memory, like an ordinary user's.
fn lock_at_most(kib: usize) {
    without(CapabilitySet::IPC_LOCK);
    limit(Resource::Memlock, kib * 1024);
}

fn limit(resource: Resource, most: usize) {
    let limit = Rlimit {
        current: Some(most as u64),
        maximum: Some(most as u64),
    };
    setrlimit(resource, limit).unwrap();
}

/// Passes descriptors to itself until the kernel lets this user pass only `count` more untaken
/// ones.
fn pass_descriptors_but(count: usize) -> (UnixStream, UnixStream) {
    let (mut from, to) = UnixStream::pair().unwrap();
    let passed = [to.as_fd()];
    let outcome = loop {
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&passed)));
        let sent = sendmsg(
            &to,
            &[IoSlice::new(&[0])],
            &mut control,
            SendFlags::DONTWAIT,
        );
        if let Err(error) = sent {
            break error;
        }
    };
    assert_eq!(outcome, Errno::TOOMANYREFS);
    for _ in 0..count {
        from.read_exact(&mut [0]).unwrap();
    }
    (from, to)
}

/// Drops a privilege, on this thread.
fn without(privilege: CapabilitySet) {
    let mut own = capabilities(None).unwrap();
    own.effective.remove(privilege);
    set_capabilities(None, own).unwrap();
}

fn undumpable_after(delay: Duration) {
    std::thread::spawn(move || {
        std::thread::sleep(delay);
        undumpable();
    });
}

/// Makes this process unreadable to others, like one that handles keys.
fn undumpable() {
    set_dumpable_behavior(DumpableBehavior::NotDumpable).unwrap();
}

fn millis_of(text: &str) -> Duration {
    Duration::from_millis(number(text) as u64)
}
