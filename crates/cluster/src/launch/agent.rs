//! `spark-perf launch-agent`: starts the ranks of one host, and sees to it that they end.
//!
//! It is this program, because a shell script cannot do three things: adopt the processes that a
//! rank leaves behind, have the kernel end the ranks with it, and keep the lines of several ranks
//! whole.

mod family;
mod ports;
mod ranks;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use ports::Ports;
use ranks::Ranks;
use rustix::process::{Signal, getpid, set_child_subreaper};
use spark_ccl_console::{exit, signals, tether};

use super::wire::{Hello, Order};
use crate::error::Error;

/// How long a launcher may be silent before its order. It gives a sign of life every few seconds.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often to look for processes that are to be killed.
const ROUND: Duration = Duration::from_millis(50);
/// After how long to give up on a killed process: only the kernel can end it then.
const UNKILLABLE: Duration = Duration::from_secs(5);

/// The command line of an agent.
#[derive(Debug, Clone, clap::Parser)]
#[command(name = "spark-perf launch-agent", hide = true)]
pub(crate) struct AgentArgs {
    /// Is watched over by another
    #[arg(long)]
    inner: bool,
}

/// An event for the agent's main thread.
enum Event {
    Order(Box<Order>),
    /// A sign of life from the launcher.
    Heard,
    /// The launcher wants the ranks to end, or is gone.
    Stop,
    /// A rank has ended, and its end was reported.
    Reported,
    /// This process has no descendants.
    Alone,
    /// The launcher has everything that the ranks have printed, and their ends.
    Told,
}

/// Starts and ends ranks, as the launcher says over standard input and output.
pub(crate) fn run(args: &AgentArgs) -> Result<u8, Error> {
    set_child_subreaper(Some(getpid())).map_err(Error::system("adopting the ranks' processes"))?;
    if args.inner { serve() } else { watch_over() }
}

/// Runs the agent in a second process, and ends what it leaves behind if it is killed. If this
/// process is killed, the second one ends the ranks.
fn watch_over() -> Result<u8, Error> {
    let mut command = Command::new("/proc/self/exe");
    command.args(["launch-agent", "--inner"]);
    tether::ends_with_this_thread(&mut command, Signal::TERM);
    let status = command
        .status()
        .map_err(Error::system("starting the agent"))?;
    let mut end = Ending::begin(Duration::ZERO);
    while family::reap() && end.kill() {
        std::thread::sleep(ROUND);
    }
    let signal = status.signal().unwrap_or(0);
    let code = status.code().unwrap_or(128 + signal);
    Ok(u8::try_from(code).unwrap_or(exit::SYSTEM))
}

fn serve() -> Result<u8, Error> {
    let ports = Ports::hold().map_err(Error::system("finding free ports"))?;
    let (events, receiver) = channel();
    listen(events.clone());
    let stop = events.clone();
    signals::forward(move |_| stop.send(Event::Stop).is_ok())?;
    greet(&ports);
    let Some(order) = wait_for_order(&receiver) else {
        return Ok(0);
    };
    drop(ports);
    let ranks = Ranks::start(&order, &events);
    let limits = [order.lost_after, order.grace].map(Duration::from_secs_f64);
    Ok(watch(&receiver, ranks, limits))
}

/// Greets the launcher. If that fails, it is gone, which is noticed on standard input, too.
fn greet(ports: &Ports) {
    let interfaces = spark_ccl_transport::netif::list().unwrap_or_default();
    let hello = Hello {
        version: spark_ccl::VERSION.to_owned(),
        ports: ports.numbers(),
        interfaces: interfaces
            .into_iter()
            .map(|one| (one.name, one.addr))
            .collect(),
        connection: crate::remote::connection(),
    };
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(&hello.encode()).and_then(|()| out.flush());
}

/// Passes on what the launcher says.
fn listen(events: Sender<Event>) {
    std::thread::spawn(move || {
        let mut lines = BufReader::new(std::io::stdin()).split(b'\n');
        while let Some(Ok(line)) = lines.next() {
            let event = match Order::decode(&line) {
                Some(order) => Event::Order(Box::new(order)),
                None => Event::Heard,
            };
            if events.send(event).is_err() {
                return;
            }
        }
        // If nobody hears it, this process is about to end.
        let _ = events.send(Event::Stop);
    });
}

/// The order; `None` if the launcher has none.
fn wait_for_order(events: &Receiver<Event>) -> Option<Order> {
    loop {
        match events.recv_timeout(PATIENCE) {
            Ok(Event::Order(order)) => return Some(*order),
            Ok(Event::Heard) => {}
            Ok(_) | Err(_) => return None,
        }
    }
}

/// Waits until all processes have ended, and ends them when the launcher wants that. Never writes,
/// since the launcher may be gone.
fn watch(events: &Receiver<Event>, mut ranks: Ranks, limits: [Duration; 2]) -> u8 {
    let [silence, grace] = limits;
    let mut heard = Instant::now();
    let mut is_wanted = false;
    let mut end: Option<Ending> = None;
    loop {
        let deadline = end.as_ref().map_or(heard + silence, |end| end.next);
        match events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(Event::Heard | Event::Order(_)) => heard = Instant::now(),
            Ok(Event::Reported) => ranks.running -= 1,
            Ok(Event::Stop) => is_wanted = true,
            Ok(Event::Alone) => return tell(events, silence),
            // It comes after all ranks' ends.
            Ok(Event::Told) => return 0,
            Err(_) => match &mut end {
                Some(end) => {
                    if !end.kill() {
                        return exit::SYSTEM;
                    }
                }
                None => is_wanted = true,
            },
        }
        // Processes that ranks have left in the background end after them.
        if (is_wanted || ranks.running == 0) && end.is_none() {
            end = Some(Ending::begin(grace));
        }
    }
}

/// Waits until the launcher has got everything, for as long as it gives signs of life: its reader
/// may be slow.
fn tell(events: &Receiver<Event>, silence: Duration) -> u8 {
    let mut heard = Instant::now();
    loop {
        match events.recv_timeout((heard + silence).saturating_duration_since(Instant::now())) {
            Ok(Event::Told) => return 0,
            Ok(Event::Heard) => heard = Instant::now(),
            Ok(_) => {}
            Err(_) => return exit::SYSTEM,
        }
    }
}

/// The end of all descendants: first they are asked, then killed.
struct Ending {
    /// When the next step is due.
    next: Instant,
    /// When to give up.
    last: Instant,
}

impl Ending {
    fn begin(grace: Duration) -> Self {
        family::signal_all(Signal::TERM);
        // A stopped process would not react to the signal.
        family::signal_all(Signal::CONT);
        let next = Instant::now() + grace;
        Self {
            next,
            last: next + UNKILLABLE,
        }
    }

    /// Kills the descendants that are left; returns whether to try again.
    fn kill(&mut self) -> bool {
        family::signal_all(Signal::KILL);
        self.next = Instant::now() + ROUND;
        self.next < self.last
    }
}
