//! The socket at which clients of NCCL's RAS protocol ask, and the clients. Strangers may connect:
//! their number, their lines and their time are limited.

use std::io::{self, ErrorKind, Read};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::SendFlags;
use socket2::{Domain, Socket, Type};
use spark_ccl_config::HostPort;
use spark_ccl_fork::{Unshared, lookup};
use spark_ccl_status::ras::{Format, Request, Session, text};

use super::board::Board;
use super::snapshot::Inquiry;

/// The most clients served at once. One more replaces the one that first lost its protection, or
/// waits until one loses it.
const MOST_CLIENTS: usize = 16;
/// The time for which a client cannot be replaced once it has come, and once it has asked. By
/// default, NCCL's client gives the ranks as long to answer. A time of its own choice does not
/// count, or strangers could stay for good.
const SAFE: Duration = Duration::from_millis(250);
const SAFE_ASKED: Duration = Duration::from_secs(5);
/// How long a client may be silent, or leave its answer unread.
const PATIENCE: Duration = Duration::from_secs(30);
/// When to try again to listen at an address that is in use.
const RETRY_AFTER: Duration = Duration::from_secs(2);
/// The time that the lookup of the address's name may take: its thread has other work.
const LOOKUP: Duration = Duration::from_secs(1);
/// The least time between two inquiries to the ranks, however many clients ask. It grows with the
/// number of ranks, since all of them answer this one.
const ASK_EVERY: Duration = Duration::from_millis(100);
const MORE_BY_RANK: Duration = Duration::from_millis(1);
/// How long to accept no client after the system has refused one.
const REST: Duration = Duration::from_secs(1);
/// How often to check for the ranks' answers.
const LOOK_EVERY: Duration = Duration::from_millis(10);

pub(super) struct Server {
    address: HostPort,
    listener: Option<Unshared<Socket>>,
    try_at: Instant,
    has_complained: bool,
    /// No client is accepted until then, since the system has refused the last one.
    rests_until: Option<Instant>,
    /// Nor until then, unless one leaves: all are safe.
    full_until: Option<Instant>,
    clients: Vec<Client>,
    latest: Option<Inquiry>,
}

struct Client {
    stream: Unshared<Socket>,
    session: Session,
    /// Its question, and the inquiry to the ranks that answers it.
    asked: Option<(Request, Inquiry)>,
    output: Vec<u8>,
    /// It has its complete answer.
    is_ending: bool,
    until: Instant,
    /// It is not replaced before.
    safe_until: Instant,
}

impl Server {
    pub(super) fn new(address: HostPort) -> Self {
        Self {
            address,
            listener: None,
            try_at: Instant::now(),
            has_complained: false,
            rests_until: None,
            full_until: None,
            clients: Vec::new(),
            latest: None,
        }
    }

    /// Does what can be done now. Returns when to come back, if nothing happens before.
    pub(super) fn serve(&mut self, board: &Board, now: Instant) -> Option<Instant> {
        if self.listener.is_none() && now >= self.try_at {
            self.listen(now);
        }
        self.accept(now);
        let latest = &mut self.latest;
        self.clients.retain_mut(|client| {
            let outcome = client.serve(board, latest, now);
            // A client that is gone or talks nonsense is not worth a report.
            outcome.is_ok_and(|is_done| !is_done) && now < client.until
        });
        if self.clients.len() < MOST_CLIENTS {
            self.full_until = None;
        }
        let retry = self.listener.is_none().then_some(self.try_at);
        let clients = self.clients.iter().map(|client| match client.asked {
            Some(_) => now + LOOK_EVERY,
            None => client.until,
        });
        let rests = [self.rests_until, self.full_until].into_iter().flatten();
        clients.chain(retry).chain(rests).min()
    }

    /// The events to wait for.
    pub(super) fn waits(&self) -> impl Iterator<Item = PollFd<'_>> {
        let listener = self.listener.as_ref();
        let accepts = self.rests_until.is_none() && self.full_until.is_none();
        let listener = listener.filter(|_| accepts);
        let listener = listener.map(|listener| PollFd::new(&**listener, PollFlags::IN));
        let clients = self.clients.iter().filter(|client| client.asked.is_none());
        listener.into_iter().chain(clients.map(|client| {
            let awaited = if client.output.is_empty() {
                PollFlags::IN
            } else {
                PollFlags::OUT
            };
            PollFd::new(&*client.stream, awaited)
        }))
    }

    fn listen(&mut self, now: Instant) {
        self.try_at = now + RETRY_AFTER;
        match listen(&self.address) {
            Ok(listener) => {
                spark_ccl_log::info!("clients may ask what runs at {}", self.address);
                self.listener = Some(listener);
            }
            Err(error) if !self.has_complained => {
                self.has_complained = true;
                spark_ccl_log::warn!(
                    "clients cannot ask what runs at {} (SPARK_CCL_RAS): {error}; trying again \
                     every {} s",
                    self.address,
                    RETRY_AFTER.as_secs()
                );
            }
            Err(_) => {}
        }
    }

    fn accept(&mut self, now: Instant) {
        let waits = [self.rests_until, self.full_until].into_iter().flatten();
        if waits.max().is_some_and(|until| now < until) {
            return;
        }
        (self.rests_until, self.full_until) = (None, None);
        let Some(listener) = &self.listener else {
            return;
        };
        loop {
            let replaced = match replaced(&self.clients, now) {
                Ok(replaced) => replaced,
                Err(until) => {
                    self.full_until = Some(until);
                    return;
                }
            };
            let stream = match listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => {
                    // Most likely there is no descriptor left. The socket stays readable meanwhile.
                    self.rests_until = Some(now + REST);
                    return;
                }
            };
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            if let Some(replaced) = replaced {
                self.clients.swap_remove(replaced);
            }
            self.clients.push(Client {
                stream: Unshared::new(stream),
                session: Session::default(),
                asked: None,
                output: Vec::new(),
                is_ending: false,
                until: now + PATIENCE,
                safe_until: now + SAFE,
            });
        }
    }
}

/// The client that the next one replaces, if there is no room; or when one can be replaced.
fn replaced(clients: &[Client], now: Instant) -> Result<Option<usize>, Instant> {
    if clients.len() < MOST_CLIENTS {
        return Ok(None);
    }
    let all = clients.iter().map(|client| client.safe_until).enumerate();
    match all.min_by_key(|(_, until)| *until) {
        Some((_, until)) if until > now => Err(until),
        first => Ok(first.map(|(index, _)| index)),
    }
}

/// Listens at the address. As in NCCL, several processes of a user may listen there. The kernel
/// gives a client to one of them, and when that is gone, the others are still there.
fn listen(address: &HostPort) -> io::Result<Unshared<Socket>> {
    let deadline = Instant::now() + LOOKUP;
    let mut addresses = lookup(&address.host, address.port, deadline)?;
    // Clients try IPv4 as well; some try nothing else.
    addresses.sort_by_key(SocketAddr::is_ipv6);
    let first = addresses.first().ok_or(ErrorKind::AddrNotAvailable)?;
    let socket = Socket::new(Domain::for_address(*first), Type::STREAM, None)?;
    let socket = Unshared::new(socket);
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&(*first).into())?;
    socket.listen(MOST_CLIENTS as i32)?;
    if !first.ip().is_loopback() {
        spark_ccl_log::warn!(
            "everyone who reaches {address} may ask what runs: there is no secret"
        );
    }
    Ok(socket)
}

impl Client {
    /// Does what can be done now. Returns whether the conversation is over.
    fn serve(
        &mut self,
        board: &Board,
        latest: &mut Option<Inquiry>,
        now: Instant,
    ) -> io::Result<bool> {
        // Stops reading from a client that does not read its answers: they would pile up.
        let is_heard = self.asked.is_none() && !self.is_ending && self.output.is_empty();
        if is_heard && !self.hear(board, latest, now)? {
            return Ok(true);
        }
        self.answer(board, now)?;
        self.send()?;
        Ok(self.is_ending && self.output.is_empty())
    }

    /// Takes the client's bytes. Returns whether it is still there.
    fn hear(
        &mut self,
        board: &Board,
        latest: &mut Option<Inquiry>,
        now: Instant,
    ) -> io::Result<bool> {
        let mut bytes = [0; 1024];
        let count = match (&*self.stream).read(&mut bytes) {
            Ok(0) => return Ok(false),
            Ok(count) => count,
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                return Ok(true);
            }
            Err(error) => return Err(error),
        };
        self.until = now + PATIENCE;
        let step = self
            .session
            .feed(&bytes[..count])
            .map_err(io::Error::other)?;
        self.output.extend(step.reply.as_bytes());
        if let Some(request) = step.request {
            let recent = latest.filter(|inquiry| inquiry.asked().elapsed() < ask_every(board));
            let inquiry = recent.unwrap_or_else(|| Inquiry::start(board));
            *latest = Some(inquiry);
            self.asked = Some((request, inquiry));
            self.until = now + request.timeout + PATIENCE;
            self.safe_until = now + request.timeout.min(SAFE_ASKED);
        }
        Ok(true)
    }

    /// Answers the client's question, once the ranks have answered or have had their time.
    fn answer(&mut self, board: &Board, now: Instant) -> io::Result<()> {
        let Some((request, inquiry)) = self.asked else {
            return Ok(());
        };
        let is_late = now.saturating_duration_since(inquiry.asked()) >= request.timeout;
        if !is_late && !inquiry.is_answered(board) {
            return Ok(());
        }
        let report = inquiry.report(board);
        let answer = match request.format {
            Format::Text => text(&report, request.verbose),
            Format::Json => report.json()?,
        };
        self.output.extend(answer.into_bytes());
        self.asked = None;
        self.is_ending = true;
        Ok(())
    }

    fn send(&mut self) -> io::Result<()> {
        while !self.output.is_empty() {
            // A client that has gone must not end the program by a signal.
            match rustix::net::send(&*self.stream, &self.output, SendFlags::NOSIGNAL) {
                Ok(count) => drop(self.output.drain(..count)),
                Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

fn ask_every(board: &Board) -> Duration {
    let ranks: usize = board.observed().iter().map(|it| it.members.len()).sum();
    ASK_EVERY + MORE_BY_RANK * u32::try_from(ranks).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(until: Instant, safe_until: Instant) -> Client {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        Client {
            stream: Unshared::new(socket),
            session: Session::default(),
            asked: None,
            output: Vec::new(),
            is_ending: false,
            until,
            safe_until,
        }
    }

    #[test]
    fn the_one_that_is_no_longer_safe_gives_way_however_long_it_wants_to_wait() {
        let now = Instant::now();
        let [soon, later] = [1, 5].map(|seconds| now + Duration::from_secs(seconds));
        let mut clients: Vec<_> = (1..MOST_CLIENTS).map(|_| client(later, later)).collect();
        assert_eq!(replaced(&clients, now), Ok(None));
        // A stranger, who has asked the ranks to answer within an hour.
        clients.push(client(now + Duration::from_secs(3600), soon));
        assert_eq!(replaced(&clients, now), Err(soon));
        assert_eq!(replaced(&clients, soon), Ok(Some(MOST_CLIENTS - 1)));
    }
}
