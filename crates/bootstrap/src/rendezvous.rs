//! A world's rendezvous, in three stages. The ranks gather; the ranks report whether their links
//! are up; all ranks get the result.

use std::collections::HashSet;
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::PollFd;

use crate::hello::{Hello, Table};
use crate::incoming::Refused;
use crate::init_result::{InitFailure, InitFailureKind};
use crate::member::{Member, News};
use crate::net::deadline_in;
use crate::reminder::{Pace, left};
use crate::sealed_frame::FrameToSeal;
use crate::secret::random;
use crate::stop::Stop;
use crate::wire::FrameKind;
use crate::wiring::{Survey, Wiring};
use crate::{Error, Options, PeerInfo, hello_check};

/// How long the rendezvous waits after it has found a problem, so that its error can name all ranks
/// concerned.
const ERROR_GRACE: Duration = Duration::from_millis(300);
/// How long the result may take to reach all ranks.
const DRAIN: Duration = Duration::from_secs(5);
/// The result must reach a rank before the rank gives up. So it is sent this much earlier, or by a
/// tenth of the rank's remaining time if that is less.
const MARGIN: Duration = Duration::from_millis(500);

pub(crate) struct RendezvousService {
    /// Whether further ranks may join.
    is_open: bool,
    stop: Arc<Stop>,
    nonce: [u8; 32],
    started: Instant,
    timeout: Duration,
    /// Where the ranks meet, in words.
    place: String,
    /// [`Options::doubt`].
    doubt: String,
    /// When to name missing ranks, once a rank has come: an id may be made long before its use.
    pace: Option<Pace>,
    members: Vec<Member>,
    ranks: HashSet<u32>,
    stage: Stage,
    /// Whether the ranks know which of them reach each other.
    is_surveyed: bool,
    /// When the stage times out.
    deadline: Option<Instant>,
    /// When the stage fails because of a problem already found.
    fails_at: Option<Instant>,
    /// The error that it gave up with, if ranks were missing.
    gave_up: Option<String>,
}

enum Stage {
    Gathering,
    Sealing,
    /// All ranks, including late ones, get this.
    Ending(FrameToSeal),
}

impl RendezvousService {
    pub(crate) fn new(stop: Arc<Stop>, options: &Options) -> Result<Self, Error> {
        let timeout = options.init_timeout;
        Ok(RendezvousService {
            is_open: true,
            stop,
            nonce: random()?,
            started: Instant::now(),
            timeout,
            place: options.rendezvous_setting.clone(),
            doubt: options.doubt.clone(),
            pace: None,
            members: Vec::new(),
            ranks: HashSet::new(),
            stage: Stage::Gathering,
            is_surveyed: false,
            deadline: Some(deadline_in(timeout)),
            fails_at: None,
            gave_up: None,
        })
    }

    /// Records its listeners, for messages.
    pub(crate) fn listens_at(&mut self, addresses: &[SocketAddr]) {
        let setting = match &*self.place {
            "" => String::new(),
            setting => format!(" ({setting})"),
        };
        self.place = hello_check::list(addresses) + &setting;
    }

    /// Whether further ranks may join.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Adds the descriptors that wake [`RendezvousService::serve`]. Returns the members that they
    /// belong to.
    pub(crate) fn watch<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) -> Vec<usize> {
        let open = (0..self.members.len()).filter(|&index| self.members[index].is_open());
        let open: Vec<usize> = open.collect();
        fds.extend(open.iter().map(|&index| self.members[index].poll_fd()));
        open
    }

    /// When [`RendezvousService::serve`] is due even if no descriptor is ready.
    pub(crate) fn next_wake(&self) -> Option<Instant> {
        let reminder = self.pace.as_ref().map(Pace::next);
        [self.deadline, self.fails_at, reminder]
            .into_iter()
            .flatten()
            .min()
    }

    /// Reads from the members whose streams are ready, and decides. `refused` returns the
    /// connections that its listener has refused.
    pub(crate) fn serve<'a>(
        &mut self,
        ready: &[usize],
        now: Instant,
        refused: &dyn Fn() -> Option<&'a Refused>,
    ) {
        if self.stop.stopped() {
            self.abandon(now);
        }
        for &index in ready {
            self.listen_to(index, now);
        }
        self.decide(now, refused);
        if let Some(text) = self.reminder(now, refused) {
            spark_ccl_log::remark(&text);
        }
    }

    /// The text that names the missing ranks, if it is due.
    fn reminder<'a>(
        &mut self,
        now: Instant,
        refused: &dyn Fn() -> Option<&'a Refused>,
    ) -> Option<String> {
        if !matches!(self.stage, Stage::Gathering) {
            self.pace = None;
        }
        let is_due = self.pace.as_mut()?.is_due(now);
        let left = left(self.deadline?, now);
        is_due.then(|| {
            let missing = hello_check::awaited(&self.hellos(), &self.place, &left);
            missing + &self.explanation(refused())
        })
    }

    /// A possible reason why ranks have not joined.
    fn explanation(&self, refused: Option<&Refused>) -> String {
        let refused = refused.map(refused_text).unwrap_or_default();
        match &*self.doubt {
            "" => refused,
            doubt => format!("{refused}; {doubt}"),
        }
    }

    pub(crate) fn add_member(&mut self, mut member: Member, now: Instant) {
        spark_ccl_log::debug!(
            "{} of {} ranks has arrived",
            member.hello.peer,
            member.hello.size
        );
        let time_left = member.hello.time_left;
        match &self.stage {
            Stage::Ending(last) => {
                let too_late = self.gave_up.as_ref().map(|why| self.too_late(why, now));
                member.send(too_late.as_ref().unwrap_or(last));
                member.finish();
            }
            Stage::Gathering | Stage::Sealing => {
                let known = !self.ranks.insert(member.hello.peer.rank);
                let first = self
                    .members
                    .first()
                    .map_or(&member.hello, |first| &first.hello);
                if hello_check::contradicts(&member.hello, first, known) {
                    self.fails_at.get_or_insert(now + ERROR_GRACE);
                }
                self.tighten_deadline(now, time_left);
                self.pace.get_or_insert_with(|| Pace::new(now));
            }
        }
        self.members.push(member);
    }

    /// Moves the deadline forward so that a rank with this much time left still gets the result.
    fn tighten_deadline(&mut self, now: Instant, time_left: Duration) {
        let answer = now.checked_add(time_left.saturating_sub(MARGIN.min(time_left / 10)));
        self.deadline = [self.deadline, answer].into_iter().flatten().min();
    }

    fn listen_to(&mut self, index: usize, now: Instant) {
        let Some(news) = self.members.get_mut(index).and_then(Member::serve) else {
            return;
        };
        match (&self.stage, news) {
            (Stage::Sealing, News::InitReport { time_left, failed }) => {
                if failed {
                    self.fails_at.get_or_insert(now + ERROR_GRACE);
                }
                self.tighten_deadline(now, time_left);
            }
            (Stage::Sealing, News::Survey { time_left }) => self.tighten_deadline(now, time_left),
            (Stage::Gathering | Stage::Sealing, _) => {
                self.fails_at.get_or_insert(now + ERROR_GRACE);
            }
            (Stage::Ending(_), _) => {}
        }
    }

    fn decide<'a>(&mut self, now: Instant, refused: &dyn Fn() -> Option<&'a Refused>) {
        let must_fail = self.fails_at.is_some_and(|at| at <= now);
        let late = self.deadline.is_some_and(|at| at <= now);
        match self.stage {
            Stage::Gathering if self.fails_at.is_none() && self.is_complete() => {
                match hello_check::disagreement(&self.hellos()) {
                    Some(text) => self.fail(now, InitFailureKind::Mismatch, &text),
                    None => self.hand_out_table(),
                }
            }
            Stage::Gathering if must_fail || late => self.fail_gathering(now, refused()),
            Stage::Sealing if self.fails_at.is_none() && self.is_sealed() => {
                spark_ccl_log::info!("all links of {} ranks are up", self.members.len());
                self.end(now, FrameToSeal::new(FrameKind::Sealed, Vec::new()));
            }
            Stage::Sealing if must_fail || late => self.fail_sealing(now),
            Stage::Sealing if !self.is_surveyed => self.compare_surveys(now),
            _ => {}
        }
    }

    fn is_complete(&self) -> bool {
        self.members
            .first()
            .is_some_and(|first| self.members.len() == first.hello.size as usize)
    }

    fn is_sealed(&self) -> bool {
        self.members
            .iter()
            .all(|member| matches!(member.report, Some(Ok(()))))
    }

    fn hellos(&self) -> Vec<&Hello> {
        self.members.iter().map(|member| &member.hello).collect()
    }

    fn hand_out_table(&mut self) {
        self.members.sort_by_key(|member| member.hello.peer.rank);
        let peers = self
            .members
            .iter()
            .map(|member| member.hello.peer.clone())
            .collect();
        let first = self.members.first();
        let table = Table {
            nonce: self.nonce,
            peers,
            note: first.map_or_else(String::new, |first| first.hello.note.clone()),
        }
        .encode();
        let table = FrameToSeal::new(FrameKind::Table, table);
        for member in &mut self.members {
            member.send(&table);
        }
        spark_ccl_log::info!("all {} ranks have arrived and agree", self.members.len());
        // Frees the port for the next world.
        self.is_open = false;
        self.stage = Stage::Sealing;
        // Each rank brings its own deadline with its report.
        self.deadline = None;
    }

    fn fail_gathering(&mut self, now: Instant, refused: Option<&Refused>) {
        let hellos = self.hellos();
        let (lost, failed) = self.broken();
        let (kind, text) = match hello_check::disagreement(&hellos) {
            // Nobody has reported yet: a message was changed on the way.
            _ if !failed.is_empty() => links_init_result(&lost, &failed),
            Some(text) => (InitFailureKind::Mismatch, text),
            None if !lost.is_empty() => links_init_result(&lost, &failed),
            None => {
                let waited = self.waited(now);
                let text = hello_check::missing(&hellos, waited, &self.explanation(refused));
                self.gave_up = Some(text.clone());
                (InitFailureKind::Missing, text)
            }
        };
        self.fail(now, kind, &text);
    }

    /// The answer to a rank that joins after the rendezvous has given up.
    fn too_late(&self, why: &str, now: Instant) -> FrameToSeal {
        let age = now.saturating_duration_since(self.started).as_secs();
        let good_for = self.timeout.as_secs_f64();
        let kind = InitFailureKind::Expired;
        let text = format!(
            "it was made {age} s ago and good for {good_for} s, and this rank is late: {why}"
        );
        FrameToSeal::new(FrameKind::Failed, InitFailure { kind, text }.encode())
    }

    /// How long the rendezvous waited for the ranks: its own timeout, or less if a rank has a
    /// shorter one.
    fn waited(&self, now: Instant) -> Duration {
        let waited = now.saturating_duration_since(self.started);
        if waited + 2 * MARGIN >= self.timeout {
            self.timeout
        } else {
            Duration::from_millis(waited.as_millis() as u64 / 100 * 100)
        }
    }

    /// Tells all ranks which of them reach each other, once each has sent its survey. Fails the
    /// world if no way joins all ranks.
    fn compare_surveys(&mut self, now: Instant) {
        let surveys = self.members.iter().map(|member| member.survey.as_ref());
        let Some(surveys) = surveys.collect::<Option<Vec<&Survey>>>() else {
            return;
        };
        let peers: Vec<&PeerInfo> = self.members.iter().map(|one| &one.hello.peer).collect();
        let wiring = Wiring::of(&surveys);
        if let Some(text) = hello_check::cut(&peers, &surveys, &wiring.parts()) {
            return self.fail(now, InitFailureKind::Links, &text);
        }
        let wiring = FrameToSeal::new(FrameKind::Wiring, wiring.encode());
        for member in &mut self.members {
            member.send(&wiring);
        }
        self.is_surveyed = true;
        // Each rank brings its own deadline with its report.
        self.deadline = None;
    }

    fn fail_sealing(&mut self, now: Instant) {
        let (lost, mut failed) = self.broken();
        if failed.is_empty() && lost.is_empty() {
            let has_any = self.members.iter().any(|member| member.survey.is_some());
            let is_silent = |member: &&Member| {
                if has_any && !self.is_surveyed {
                    member.survey.is_none()
                } else {
                    member.report.is_none()
                }
            };
            let silent = self.members.iter().filter(is_silent);
            let peers = silent.map(|member| &member.hello.peer);
            failed.extend(peers.map(|peer| (peer, "its links are not up in time")));
        }
        let (kind, text) = links_init_result(&lost, &failed);
        self.fail(now, kind, &text);
    }

    /// The ranks that have ended; and the ranks that have reported a problem, or whose messages
    /// were changed on the way.
    fn broken(&self) -> (Vec<&PeerInfo>, Vec<(&PeerInfo, &str)>) {
        let mut lost = Vec::new();
        let mut failed = Vec::new();
        for member in &self.members {
            match &member.report {
                Some(Err(reason)) => failed.push((&member.hello.peer, reason.as_str())),
                _ if !member.is_open() => lost.push(&member.hello.peer),
                _ => {}
            }
        }
        (lost, failed)
    }

    fn fail(&mut self, now: Instant, kind: InitFailureKind, text: &str) {
        spark_ccl_log::warn!("{text}");
        let last = InitFailure {
            kind,
            text: text.to_owned(),
        };
        self.end(now, FrameToSeal::new(FrameKind::Failed, last.encode()));
    }

    /// Sends all ranks the result. Ranks that join later get it, too, until the deadline.
    fn end(&mut self, now: Instant, last: FrameToSeal) {
        // The rank in this process, usually the first, may exit as soon as it has the result. So
        // the others get it first.
        for member in self.members.iter_mut().rev() {
            member.send(&last);
            member.finish();
        }
        let late_comers = self.is_open && !self.stop.stopped();
        let wait = if late_comers {
            self.timeout.min(Duration::from_secs(60))
        } else {
            DRAIN
        };
        self.stage = Stage::Ending(last);
        self.fails_at = None;
        self.deadline = now.checked_add(wait);
    }

    /// Stops because the owner has dropped the rendezvous.
    fn abandon(&mut self, now: Instant) {
        self.is_open = false;
        match self.stage {
            Stage::Ending(_) => {
                let drained = now + DRAIN;
                self.deadline = Some(self.deadline.map_or(drained, |at| at.min(drained)));
            }
            Stage::Gathering | Stage::Sealing => {
                let text = "the process that owns the rendezvous closed it before all ranks were \
                            connected";
                self.fail(now, InitFailureKind::Lost, text);
            }
        }
    }

    pub(crate) fn finished(&self) -> bool {
        let over = self.deadline.is_some_and(|at| at <= Instant::now());
        let all_told = self.members.iter().all(|member| !member.is_open());
        let expected = self
            .members
            .first()
            .map_or(0, |first| first.hello.size as usize);
        let no_more_expected = !self.is_open || self.members.len() >= expected.max(1);
        matches!(self.stage, Stage::Ending(_)) && (over || all_told && no_more_expected)
    }
}

fn links_init_result(
    lost: &[&PeerInfo],
    failed: &[(&PeerInfo, &str)],
) -> (InitFailureKind, String) {
    let kind = if lost.is_empty() {
        InitFailureKind::Links
    } else {
        InitFailureKind::Lost
    };
    (kind, hello_check::links(lost, failed))
}

fn refused_text(refused: &Refused) -> String {
    let mut text = String::new();
    for (tally, why) in [
        (&refused.secret, "a different secret"),
        (&refused.version, "another version"),
        (&refused.owner, "no secret"),
        (
            &refused.changed,
            "words that something had changed on the way",
        ),
    ] {
        if tally.count > 0 {
            let (count, last) = (tally.count, &tally.last);
            let _ = write!(
                text,
                "; refused {count} connections with {why} (last: {last})"
            );
        }
    }
    text + &refused.unproved_text()
}

#[cfg(test)]
mod tests;
