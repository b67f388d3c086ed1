//! One attempt to put a failed rail back into use.

use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::Arc;
use std::time::{Duration, Instant};

use spark_ccl_verbs::PollRoom;

use super::job::{Job, discard};
use crate::LinkError;
use crate::rdma::link::control::Control;
use crate::rdma::link::message::ControlMessage;
use crate::rdma::link::offer::End;
use crate::rdma::link::plan::Plan;
use crate::rdma::link::rail::{LOOKS, Rail, Silence};
use crate::rdma::link::slots::Slots;
use crate::rdma::link::unconnected::{Unconnected, listen, send_greeting};

/// How long the greetings over a working rail may take. Each end must look several times, and only
/// during calls; so the time between two looks counts only up to a part of this.
const GREETING: Duration = Duration::from_secs(5);

/// An attempt to put a rail back into use.
#[derive(Debug)]
pub(super) struct Try {
    stage: Stage,
    /// The verdict that this end has sent, and the one that it has received: whether the rail
    /// works.
    said: Option<bool>,
    heard: Option<bool>,
}

#[derive(Debug)]
enum Stage {
    /// A queue pair is being made. The second field is the peer's, if it was offered already.
    Making(Job<Unconnected>, Option<End>),
    /// The queue pair was offered to the peer.
    Offered(Unconnected),
    /// The queue pair is being connected. The peer gets the offer afterwards, unless it has it
    /// already.
    Connecting(Job<Rail>, Option<End>),
    Greeting(Greeting),
    /// This end has sent its verdict.
    Over(Option<Rail>),
}

/// The result of a try.
#[derive(Clone, Copy)]
pub(super) enum Outcome {
    Carries,
    Fails,
    /// The local port is not active; the peer was not asked.
    Untried,
}

#[derive(Debug)]
struct Greeting {
    rail: Rail,
    has_greeted: bool,
    has_heard: bool,
    silence: Silence,
}

/// The parts of a link that a try works on.
pub(super) struct Environment<'a> {
    pub(super) plan: &'a Arc<Plan>,
    /// The rail's index in the link.
    pub(super) rail: usize,
    /// The address of the peer's slots.
    pub(super) start: u64,
    pub(super) slots: &'a Slots,
    pub(super) control: &'a mut Control,
}

impl Try {
    /// Begins a try: without `peer` at the first end, with the offered queue pair at the other.
    pub(super) fn new(plan: &Arc<Plan>, peer: Option<End>) -> Self {
        let plan = Arc::clone(plan);
        let job = Job::start(move || {
            if plan.local.renewed()?.is_active() {
                Ok(Unconnected::new(&plan)?)
            } else {
                Err("its port is not active".into())
            }
        });
        Self {
            stage: Stage::Making(job, peer),
            said: None,
            heard: None,
        }
    }

    /// Whether the peer may use the rail: this end has sent a good verdict, and the peer has not
    /// sent a bad one.
    pub(super) fn may_be_in_use(&self) -> bool {
        self.said == Some(true) && self.heard != Some(false)
    }

    /// Whether the result depends only on the peer's verdict.
    pub(super) fn is_undecided(&self) -> bool {
        self.said == Some(true) && self.heard.is_none()
    }

    pub(super) fn into_rail(self) -> Option<Rail> {
        match self.stage {
            Stage::Over(rail) => rail,
            _ => None,
        }
    }

    /// Whether the peer has not been told of the try.
    pub(super) fn is_unknown_to_peer(&self) -> bool {
        matches!(self.stage, Stage::Making(_, None))
    }

    /// The result, once both ends have it.
    pub(super) fn outcome(&self) -> Option<Outcome> {
        if self.said.is_none() && matches!(self.stage, Stage::Over(_)) {
            return Some(Outcome::Untried);
        }
        Some(match (self.said?, self.heard?) {
            (true, true) => Outcome::Carries,
            _ => Outcome::Fails,
        })
    }

    pub(super) fn hear_answer(&mut self, end: End, start: u64) -> Result<(), LinkError> {
        match std::mem::replace(&mut self.stage, Stage::Over(None)) {
            Stage::Offered(pair) => self.stage = connecting(pair, end, start, None),
            // The try was given up meanwhile.
            Stage::Over(None) => {}
            _ => {
                return Err(LinkError::Protocol(
                    "the peer offers a queue pair twice".to_owned(),
                ));
            }
        }
        Ok(())
    }

    /// Takes the peer's verdict on whether the rail works.
    pub(super) fn hear_trial_result(&mut self, works: bool) -> Result<(), LinkError> {
        if self.heard.replace(works).is_some() {
            return Err(LinkError::Protocol(
                "the peer says twice whether a rail carries".to_owned(),
            ));
        }
        Ok(())
    }

    /// Advances as far as possible without blocking.
    pub(super) fn advance(&mut self, mut environment: Environment<'_>, is_ending: bool) {
        if self.said.is_some() {
            return;
        }
        let is_unknown_to_peer = self.is_unknown_to_peer();
        if is_ending || self.heard == Some(false) {
            discard(std::mem::replace(&mut self.stage, Stage::Over(None)));
            if !is_unknown_to_peer {
                self.say(false, &mut environment);
            }
            return;
        }
        let stage = std::mem::replace(&mut self.stage, Stage::Over(None));
        match stage.run(&mut environment) {
            Ok(stage) => self.stage = stage,
            Err(problem) => {
                let rail = &environment.plan.rail;
                spark_ccl_log::debug!("{rail} does not carry again yet: {problem}");
            }
        }
        match &self.stage {
            Stage::Over(rail) if !is_unknown_to_peer => self.say(rail.is_some(), &mut environment),
            _ => {}
        }
    }

    fn say(&mut self, works: bool, environment: &mut Environment<'_>) {
        self.said = Some(works);
        let rail = environment.rail;
        environment
            .control
            .say(&ControlMessage::TrialResult { rail, works });
    }
}

impl Stage {
    /// Runs stages until one takes time, or the last one is reached.
    fn run(mut self, environment: &mut Environment<'_>) -> Result<Self, String> {
        loop {
            match self.step(environment)? {
                Continue(next) => self = next,
                Break(last) => return Ok(last),
            }
        }
    }

    /// Runs one stage. `Continue` if the next one can run now; `Break` if it takes time, or there
    /// is none.
    fn step(self, environment: &mut Environment<'_>) -> Result<ControlFlow<Self, Self>, String> {
        match self {
            Self::Making(job, peer) if job.has_ended() => {
                let pair = job.outcome()?;
                let own = pair.end();
                let Some(peer) = peer else {
                    environment.offer(own);
                    return Ok(Break(Self::Offered(pair)));
                };
                Ok(Continue(connecting(
                    pair,
                    peer,
                    environment.start,
                    Some(own),
                )))
            }
            Self::Connecting(job, own) if job.has_ended() => {
                let greeting = Greeting::new(job.outcome()?);
                if let Some(own) = own {
                    environment.offer(own);
                }
                Ok(Continue(Self::Greeting(greeting)))
            }
            Self::Greeting(mut greeting) => match greeting.advance(environment) {
                Ok(true) => Ok(Break(Self::Over(Some(greeting.rail)))),
                Ok(false) => Ok(Break(Self::Greeting(greeting))),
                Err(problem) => {
                    discard(greeting);
                    Err(problem)
                }
            },
            waiting => Ok(Break(waiting)),
        }
    }
}

fn connecting(pair: Unconnected, peer: End, start: u64, own: Option<End>) -> Stage {
    Stage::Connecting(Job::start(move || pair.connect(peer, start)), own)
}

impl Greeting {
    fn new(rail: Rail) -> Self {
        Self {
            rail,
            has_greeted: false,
            has_heard: false,
            silence: Silence::new(Instant::now()),
        }
    }

    /// Whether both ends have greeted each other. The first end greets first: when its greeting
    /// arrives, the other end knows that the first is connected.
    fn advance(&mut self, environment: &Environment<'_>) -> Result<bool, String> {
        let Self {
            rail,
            has_greeted,
            has_heard,
            silence,
        } = self;
        let listened = listen(rail, has_heard, &mut PollRoom::default());
        listened.map_err(|error| error.to_string())?;
        if !*has_greeted && (environment.plan.is_first || *has_heard) {
            send_greeting(rail, environment.slots).map_err(|error| error.to_string())?;
            *has_greeted = true;
        }
        let is_done = *has_greeted && *has_heard && rail.ended.well == rail.posted;
        let waited = silence.look(0, Instant::now(), GREETING / LOOKS);
        if !is_done && waited >= GREETING {
            return Err(format!("no greeting within {GREETING:?}"));
        }
        Ok(is_done)
    }
}

#[cfg(test)]
impl Try {
    /// Makes the last look this much longer ago. Only greetings take notice.
    pub(super) fn pass(&mut self, time: Duration) {
        if let Stage::Greeting(greeting) = &mut self.stage {
            greeting.silence.pass(time);
        }
    }
}

impl Environment<'_> {
    fn offer(&mut self, end: End) {
        let rail = self.rail;
        self.control.say(&ControlMessage::Offer { rail, end });
    }
}
