//! A try to have a rail back that has failed.

use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::Arc;
use std::time::{Duration, Instant};

use spark_ccl_verbs::PollRoom;

use super::job::{Job, discard};
use crate::LinkError;
use crate::rdma::link::control::Control;
use crate::rdma::link::lane::{Lane, hail, listen};
use crate::rdma::link::message::Message;
use crate::rdma::link::offer::End;
use crate::rdma::link::plan::Plan;
use crate::rdma::link::rail::Rail;
use crate::rdma::link::slots::Slots;

/// The ends of a rail that carries hear each other within this time.
const GREETING: Duration = Duration::from_secs(5);

/// A try to have a rail back.
#[derive(Debug)]
pub(super) struct Try {
    stage: Stage,
    /// Whether the rail carries: what this end has said about it, and the peer.
    said: Option<bool>,
    heard: Option<bool>,
}

#[derive(Debug)]
enum Stage {
    /// A queue pair is being made; the peer's, if that was offered already.
    Making(Job<Lane>, Option<End>),
    /// It is offered to the peer.
    Offered(Lane),
    /// It is being connected; the peer gets the offer then, unless it has it.
    Connecting(Job<Rail>, Option<End>),
    Greeting(Greeting),
    /// This end has said what came of it.
    Over(Option<Rail>),
}

/// What came of a try.
#[derive(Clone, Copy)]
pub(super) enum Outcome {
    Carries,
    Fails,
    /// The port here does not work; the peer was not asked.
    Untried,
}

#[derive(Debug)]
struct Greeting {
    rail: Rail,
    has_hailed: bool,
    has_heard: bool,
    until: Instant,
}

/// What a try works with.
pub(super) struct Site<'a> {
    pub(super) plan: &'a Arc<Plan>,
    /// The rail's place among those of the link.
    pub(super) rail: usize,
    /// Where the peer's slots begin.
    pub(super) start: u64,
    pub(super) slots: &'a Slots,
    pub(super) control: &'a mut Control,
}

impl Try {
    /// At the end that begins, or where the peer has offered a queue pair.
    pub(super) fn new(plan: &Arc<Plan>, peer: Option<End>) -> Self {
        let plan = Arc::clone(plan);
        let job = Job::start(move || {
            if plan.local.renewed()?.is_active() {
                Ok(Lane::new(&plan)?)
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

    /// Whether the peer may use the rail: it has heard that it carries, and not said that it does not.
    pub(super) fn may_be_in_use(&self) -> bool {
        self.said == Some(true) && self.heard != Some(false)
    }

    /// Whether only the peer knows what comes of it.
    pub(super) fn is_undecided(&self) -> bool {
        self.said == Some(true) && self.heard.is_none()
    }

    pub(super) fn into_rail(self) -> Option<Rail> {
        match self.stage {
            Stage::Over(rail) => rail,
            _ => None,
        }
    }

    /// Whether the peer knows nothing of it.
    fn is_secret(&self) -> bool {
        matches!(self.stage, Stage::Making(_, None))
    }

    /// What came of it, once both ends know.
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
            Stage::Offered(lane) => self.stage = connecting(lane, end, start, None),
            // It was given up meanwhile.
            Stage::Over(None) => {}
            _ => {
                return Err(LinkError::Protocol(
                    "the peer offers a queue pair twice".to_owned(),
                ));
            }
        }
        Ok(())
    }

    /// The peer says whether the rail carries.
    pub(super) fn hear_verdict(&mut self, works: bool) -> Result<(), LinkError> {
        if self.heard.replace(works).is_some() {
            return Err(LinkError::Protocol(
                "the peer says twice whether a rail carries".to_owned(),
            ));
        }
        Ok(())
    }

    /// Goes on as far as that needs no waiting.
    pub(super) fn advance(&mut self, mut site: Site<'_>, is_ending: bool) {
        if self.said.is_some() {
            return;
        }
        let is_secret = self.is_secret();
        if is_ending || self.heard == Some(false) {
            discard(std::mem::replace(&mut self.stage, Stage::Over(None)));
            if !is_secret {
                self.say(false, &mut site);
            }
            return;
        }
        let stage = std::mem::replace(&mut self.stage, Stage::Over(None));
        match stage.run(&mut site) {
            Ok(stage) => self.stage = stage,
            Err(problem) => {
                let rail = &site.plan.rail;
                tracing::debug!("{rail} does not carry again yet: {problem}");
            }
        }
        match &self.stage {
            Stage::Over(rail) if !is_secret => self.say(rail.is_some(), &mut site),
            _ => {}
        }
    }

    fn say(&mut self, works: bool, site: &mut Site<'_>) {
        self.said = Some(works);
        let rail = site.rail;
        site.control.say(&Message::Verdict { rail, works });
    }
}

impl Stage {
    /// The stage that takes time, or the last one.
    fn run(mut self, site: &mut Site<'_>) -> Result<Self, String> {
        loop {
            match self.step(site)? {
                Continue(next) => self = next,
                Break(last) => return Ok(last),
            }
        }
    }

    /// The next stage, after which there may be another one, or it takes time.
    fn step(self, site: &mut Site<'_>) -> Result<ControlFlow<Self, Self>, String> {
        match self {
            Self::Making(job, peer) if job.has_ended() => {
                let lane = job.outcome()?;
                let own = lane.end();
                let Some(peer) = peer else {
                    site.offer(own);
                    return Ok(Break(Self::Offered(lane)));
                };
                Ok(Continue(connecting(lane, peer, site.start, Some(own))))
            }
            Self::Connecting(job, own) if job.has_ended() => {
                let greeting = Greeting::new(job.outcome()?);
                if let Some(own) = own {
                    site.offer(own);
                }
                Ok(Continue(Self::Greeting(greeting)))
            }
            Self::Greeting(mut greeting) => match greeting.advance(site) {
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

fn connecting(lane: Lane, peer: End, start: u64, own: Option<End>) -> Stage {
    Stage::Connecting(Job::start(move || lane.connect(peer, start)), own)
}

impl Greeting {
    fn new(rail: Rail) -> Self {
        Self {
            rail,
            has_hailed: false,
            has_heard: false,
            until: Instant::now() + GREETING,
        }
    }

    /// Whether both ends have greeted each other. The first end begins: it is connected once the other
    /// one hears that.
    fn advance(&mut self, site: &Site<'_>) -> Result<bool, String> {
        let Self {
            rail,
            has_hailed,
            has_heard,
            until,
        } = self;
        let listened = listen(rail, has_heard, &mut PollRoom::default());
        listened.map_err(|error| error.to_string())?;
        if !*has_hailed && (site.plan.is_first || *has_heard) {
            hail(rail, site.slots).map_err(|error| error.to_string())?;
            *has_hailed = true;
        }
        let is_done = *has_hailed && *has_heard && rail.ended.well == rail.posted;
        if !is_done && Instant::now() > *until {
            return Err(format!("no greeting within {GREETING:?}"));
        }
        Ok(is_done)
    }
}

impl Site<'_> {
    fn offer(&mut self, end: End) {
        let rail = self.rail;
        self.control.say(&Message::Offer { rail, end });
    }
}
