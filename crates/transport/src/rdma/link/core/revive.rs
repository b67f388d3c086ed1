//! How a rail returns that has failed.
//!
//! Once both ends have dropped it, the first of them tries now and then whether it carries again: it
//! offers a new queue pair; the other end connects one of its own to that, and offers it in turn; they
//! greet each other, as when the link was made, the first end first; and each says once how that went.
//! Where both say that the rail carries, it is in use again, at each end from the moment on at which the
//! end has both said and heard it. What the peer sends before that waits in the new completion queue.
//!
//! Nothing here waits. What the kernel may take its time for is done by threads.

use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::Arc;
use std::time::{Duration, Instant};

use spark_ccl_verbs::PollRoom;

use super::Core;
use super::failover::Dead;
use super::job::{Job, discard};
use crate::LinkError;
use crate::rdma::link::control::Control;
use crate::rdma::link::lane::{Lane, Plan, hail, listen};
use crate::rdma::link::message::Message;
use crate::rdma::link::offer::End;
use crate::rdma::link::pace::Pace;
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
enum Outcome {
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
struct Site<'a> {
    plan: &'a Arc<Plan>,
    /// The rail's place among those of the link.
    rail: usize,
    /// Where the peer's slots begin.
    start: u64,
    slots: &'a Slots,
    control: &'a mut Control,
}

impl Core {
    /// Goes on with the return of rails that both ends have dropped.
    pub(super) fn revive(&mut self) {
        let is_ending = !self.farewells.is_empty();
        for index in (0..self.dead.len()).rev() {
            let dead = &mut self.dead[index];
            if self.control.is_closed || !dead.is_confirmed {
                continue;
            }
            dead.begin(is_ending);
            let Some(attempt) = &mut dead.attempt else {
                continue;
            };
            let site = Site {
                plan: &dead.plan,
                rail: dead.rail,
                start: dead.start,
                slots: &self.outgoing,
                control: &mut self.control,
            };
            attempt.advance(site, is_ending);
            // From now on, the peer may use it.
            self.order.set_silent(dead.rail, !attempt.has_agreed());
            match attempt.outcome() {
                None => {}
                Some(Outcome::Carries) => self.put_back(index),
                Some(other) => dead.give_up(other),
            }
        }
    }

    /// Takes a rail into use again.
    fn put_back(&mut self, index: usize) {
        let Dead {
            rail,
            name,
            pair,
            pace,
            attempt,
            ..
        } = self.dead.swap_remove(index);
        discard(pair);
        let Some(Stage::Over(Some(mut revived))) = attempt.map(|attempt| attempt.stage) else {
            return;
        };
        revived.pace = pace.slower(Instant::now());
        self.rails[rail] = Some(revived);
        self.returned += 1;
        tracing::info!("{name} carries again");
        // By every rail that the peer uses, it is to hear them.
        for what in self.farewells.clone() {
            self.say(rail, what);
        }
    }

    /// The peer offers a queue pair.
    pub(super) fn hear_offer(&mut self, rail: usize, end: End) -> Result<(), LinkError> {
        let dead = self.confirmed(rail)?;
        match &mut dead.attempt {
            None if !dead.plan.is_first => {
                dead.attempt = Some(Try::new(&dead.plan, Some(end)));
                Ok(())
            }
            Some(attempt) if dead.plan.is_first => attempt.hear_answer(end, dead.start),
            _ => Err(out_of_turn(rail)),
        }
    }

    /// The peer says whether the rail carries.
    pub(super) fn hear_verdict(&mut self, rail: usize, works: bool) -> Result<(), LinkError> {
        let dead = self.confirmed(rail)?;
        let attempt = dead.attempt.as_mut().ok_or_else(|| out_of_turn(rail))?;
        if attempt.heard.replace(works).is_some() {
            return Err(out_of_turn(rail));
        }
        // What the peer says next may be about the rail that has returned.
        self.revive();
        Ok(())
    }

    fn confirmed(&mut self, rail: usize) -> Result<&mut Dead, LinkError> {
        let mut dead = self.dead.iter_mut();
        dead.find(|dead| dead.rail == rail && dead.is_confirmed)
            .ok_or_else(|| out_of_turn(rail))
    }
}

fn out_of_turn(rail: usize) -> LinkError {
    LinkError::Protocol(format!(
        "the peer talks about the return of rail {rail} when it must not"
    ))
}

impl Dead {
    /// Begins a try, if this is the end that does and it is time.
    fn begin(&mut self, is_ending: bool) {
        let is_due = self.plan.is_first && self.pace.is_over(Instant::now());
        if is_due && !is_ending && self.attempt.is_none() {
            self.attempt = Some(Try::new(&self.plan, None));
        }
    }

    fn give_up(&mut self, outcome: Outcome) {
        let now = Instant::now();
        self.attempt = None;
        self.pace = match outcome {
            // To look at a port costs little.
            Outcome::Untried => Pace::new(now),
            _ => self.pace.slower(now),
        };
    }

    #[cfg(test)]
    pub(in super::super) fn is_tried(&self) -> bool {
        self.attempt.is_some()
    }

    /// Whether the peer may use it already, and has not said so.
    pub(super) fn is_undecided(&self) -> bool {
        let attempt = self.attempt.as_ref();
        attempt.is_some_and(|attempt| attempt.has_agreed() && attempt.heard.is_none())
    }
}

impl Try {
    fn new(plan: &Arc<Plan>, peer: Option<End>) -> Self {
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

    fn has_agreed(&self) -> bool {
        self.said == Some(true)
    }

    /// Whether the peer knows nothing of it.
    fn is_secret(&self) -> bool {
        matches!(self.stage, Stage::Making(_, None))
    }

    /// What came of it, once both ends know.
    fn outcome(&self) -> Option<Outcome> {
        if self.said.is_none() && matches!(self.stage, Stage::Over(_)) {
            return Some(Outcome::Untried);
        }
        let carries = self.said? && self.heard?;
        Some(if carries {
            Outcome::Carries
        } else {
            Outcome::Fails
        })
    }

    fn hear_answer(&mut self, end: End, start: u64) -> Result<(), LinkError> {
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

    /// Goes on as far as that needs no waiting.
    fn advance(&mut self, mut site: Site<'_>, is_ending: bool) {
        if self.said.is_some() {
            return;
        }
        let is_secret = self.is_secret();
        if !is_secret && (is_ending || self.heard == Some(false)) {
            discard(std::mem::replace(&mut self.stage, Stage::Over(None)));
            return self.say(false, &mut site);
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
        let is_done = *has_hailed && *has_heard && rail.ended == rail.posted;
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
