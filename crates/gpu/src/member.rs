//! A rank's part in a communicator: its scratch memory, the mappings of its peers' scratch, and its
//! kernels.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use spark_ccl_cuda::cudarc::driver::CudaStream;
use spark_ccl_cuda::{DeviceBlock, HostBlock, OwnStream, make_current, relaxed};

use crate::channels::{FEW, MANY};
use crate::kept::{Kept, Settles};
use crate::kernels::Kernels;
use crate::launch::first_turn;
use crate::layout::{Arguments, CallLayout, MAX_RANKS, MemberLayout};
use crate::mailbox::Mailbox;
use crate::message::{Launch, Launches};
use crate::plan::Protocol;
use crate::scratch::check_host;
use crate::{Call, Error, Limits, Message, Plan, Scratch, Wire, loaded};

/// Limits that must be the same on all ranks of a communicator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// The most CTAs of a kernel, from 1 to 32. All CTAs of the ranks that share a GPU must fit on
    /// it at the same time.
    pub ctas: u32,
    /// The connection between the GPUs of all ranks.
    pub wire: Wire,
}

impl Default for Settings {
    /// 32 CTAs, and anything between the GPUs.
    fn default() -> Self {
        Self {
            ctas: 32,
            wire: Wire::Any,
        }
    }
}

/// The patience until [`Member::set_patience`] is called.
const PATIENCE: Duration = Duration::from_secs(30);

/// A rank's part in a communicator of GPUs of a host.
///
/// When it is dropped, its waits are ended. Once everything that was enqueued in its GPU's context
/// has run, its memory is unmapped, and its kernels are unloaded. Peers may still write there
/// meanwhile. If the driver cannot confirm that everything has run, the memory is never freed;
/// [`end`](Member::end) reports this.
#[derive(Debug)]
pub struct Member {
    layout: MemberLayout,
    limits: Limits,
    parts: Kept<Parts>,
}

#[derive(Debug)]
struct Parts {
    kernels: Kernels,
    own: Scratch,
    /// Mapped as long as kernels write there.
    _peers: Vec<Peer>,
    mailbox: Mailbox,
    /// Made when the rank joins, since the driver may wait for kernels while it makes a stream.
    ending: OwnStream,
}

/// A peer's scratch, mapped for this rank's GPU.
#[derive(Debug)]
enum Peer {
    Device(DeviceBlock),
    Host(HostBlock),
}

impl Peer {
    fn address(&self) -> u64 {
        match self {
            Self::Device(block) => block.address(),
            Self::Host(block) => block.address(),
        }
    }
}

impl Member {
    /// Maps the peers' scratch for this rank's GPU, and loads and warms up all kernels.
    ///
    /// `peers` has, by rank, the descriptor that each peer has [exported](Scratch::export), and
    /// `None` in this rank's own place. The patience is 30 s.
    ///
    /// # Errors
    /// A peer's scratch is missing, is for fewer ranks, or is out of this GPU's reach, there are no
    /// kernels for this GPU, or the driver fails.
    pub fn join(
        rank: usize,
        own: Scratch,
        peers: Vec<Option<OwnedFd>>,
        settings: Settings,
    ) -> Result<Self, Error> {
        check_peers(rank, own.ranks(), &peers)?;
        // Descriptors are closed once they are mapped.
        let exported = peers.into_iter().flatten();
        let mapped = exported.map(|exported| own.map(&exported).map(Peer::Device));
        let mapped = mapped.collect::<Result<Vec<_>, _>>()?;
        Self::of_mapped(rank, own, mapped, settings)
    }

    /// As [`join`](Self::join), with all scratch [in the host's memory](Scratch::in_host): `peers`
    /// has the scratch of the others, which this rank has registered for its own GPU.
    ///
    /// # Errors
    /// A peer's scratch is missing, too short, or registered for another GPU, there are no kernels
    /// for this GPU, or the driver fails.
    pub fn join_in_host(
        rank: usize,
        own: Scratch,
        peers: Vec<Option<HostBlock>>,
        settings: Settings,
    ) -> Result<Self, Error> {
        check_peers(rank, own.ranks(), &peers)?;
        for peer in peers.iter().flatten() {
            check_host(own.context(), own.ranks(), peer)?;
        }
        let mapped = peers.into_iter().flatten().map(Peer::Host).collect();
        Self::of_mapped(rank, own, mapped, settings)
    }

    /// `peers` has all ranks but this one.
    fn of_mapped(
        rank: usize,
        own: Scratch,
        peers: Vec<Peer>,
        settings: Settings,
    ) -> Result<Self, Error> {
        let mailbox = Mailbox::new(own.context(), PATIENCE)?;
        let ending = OwnStream::new(own.context())?;
        let member = Self {
            layout: layout(rank, &own, &peers, &mailbox)?,
            limits: Limits {
                ctas: settings.ctas,
                wire: settings.wire,
            },
            parts: Kept::new(Parts {
                kernels: loaded::between(own.context())?,
                own,
                _peers: peers,
                mailbox,
                ending,
            }),
        };
        member.warm_up()?;
        Ok(member)
    }

    /// Launches each kernel once without work, and waits: what the driver does at a first launch
    /// may wait for running kernels, and these may wait for a peer.
    fn warm_up(&self) -> Result<(), Error> {
        let context = self.parts.own.context();
        let stream = &self.parts.ending;
        // Without this, captures of other threads would make the wait fail.
        let _relaxed = relaxed(make_current(context)?)?;
        // As the only rank, it signs nothing, and waits for nobody.
        let arguments = Arguments {
            member: MemberLayout {
                rank: 0,
                ranks: 1,
                ..self.layout
            },
            call: CallLayout::NOTHING,
        };
        let turn = first_turn(context);
        // SAFETY: without bytes and peers, a kernel only reads the rounds, which the rank's scratch
        // has until `drop` has waited for the kernels.
        unsafe { self.parts.kernels.launch_all(arguments, stream.inner())? };
        for protocol in Protocol::OF_MESSAGES {
            for messages in [FEW, MANY] {
                let launch = Launch {
                    messages,
                    ..Launch::NOTHING
                };
                let member = (self.layout, self.parts.own.channels());
                // SAFETY: without flows, a kernel only reads the channels' state, which the rank's
                // scratch has until `drop` has waited for the kernels.
                unsafe {
                    let kernels = &self.parts.kernels;
                    kernels.pass(protocol, &launch, member, stream.inner())?;
                };
            }
        }
        drop(turn);
        Ok(stream.synchronize()?)
    }

    /// Which rank it is.
    pub fn rank(&self) -> usize {
        self.layout.rank as usize
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> usize {
        self.layout.ranks as usize
    }

    /// The limits of plans.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// The plan that [`enqueue`](Self::enqueue) takes.
    ///
    /// # Errors
    /// There is no kernel for the operation.
    pub fn plan(&self, call: &Call) -> Result<Plan, Error> {
        let operation = call.operation;
        let plan = Plan::new(operation, call.bytes(), self.ranks(), self.limits());
        plan.ok_or(Error::Operation { operation })
    }

    /// Enqueues an operation in a stream of the rank's GPU, or captures it into a graph; does not
    /// wait.
    ///
    /// # Safety
    /// - [`join`](Self::join) or [`join_in_host`](Self::join_in_host) must have got the scratch of
    ///   this communicator's other ranks, by rank, zero at first. Each scratch must be used for
    ///   this communicator alone.
    /// - Both buffers must be as long as the call says. Until the operation has run, nothing else
    ///   may write the input, or use the output.
    /// - A rank's operations must run one after the other: in one stream, or in streams that wait
    ///   for each other. That includes launches of graphs. A graph must not be launched after the
    ///   member was dropped.
    /// - Ranks whose calls have the same words must make the same calls.
    /// - The kernels of ranks that share a GPU must be able to run at the same time.
    ///
    /// # Errors
    /// An earlier operation has failed, there is no kernel for the call, its root is no rank, or
    /// the driver fails.
    pub unsafe fn enqueue(&self, call: &Call, stream: &Arc<CudaStream>) -> Result<(), Error> {
        let plan = self.plan(call)?;
        // SAFETY: the caller has joined the member with the scratch of this communicator's ranks
        // alone. Buffers are as long as the call says, and the caller leaves them to it until it
        // has run. The caller lets this rank's operations run one after the other, and kernels of
        // ranks that share a GPU at the same time. Ranks whose calls have the same words make the
        // same call. `plan` follows from the call, the number of ranks and the limits, which all
        // have alike, so all of them have the same plan.
        unsafe { self.enqueue_as(plan, call, stream) }
    }

    /// Like [`enqueue`](Self::enqueue), with the caller's own plan, which must be the same on all
    /// ranks.
    ///
    /// # Safety
    /// - [`join`](Self::join) or [`join_in_host`](Self::join_in_host) must have got the scratch of
    ///   this communicator's other ranks, by rank, zero at first. Each scratch must be used for
    ///   this communicator alone.
    /// - Both buffers must be as long as the call says. Until the operation has run, nothing else
    ///   may write the input, or use the output.
    /// - A rank's operations, and launches of graphs that have captured some, must run one after
    ///   the other. A graph must not be launched after the member was dropped.
    /// - All ranks must make the same call by the same plan.
    /// - The kernels of ranks that share a GPU must be able to run at the same time.
    ///
    /// # Errors
    /// Those of `enqueue`; or the plan is for another operation, or beyond the limits.
    pub unsafe fn enqueue_as(
        &self,
        plan: Plan,
        call: &Call,
        stream: &Arc<CudaStream>,
    ) -> Result<(), Error> {
        self.check()?;
        let fitting = Plan::of(plan.kernel, call.bytes(), self.ranks(), self.limits());
        let is_allowed = plan.kernel.fits(self.limits().wire);
        let does = plan.kernel.does(call.operation) && plan.kernel.takes(self.ranks());
        if plan != fitting || !is_allowed || !does {
            return Err(Error::Plan {
                plan: format!("{plan:?}"),
                operation: call.operation,
            });
        }
        let arguments = Arguments {
            member: self.layout,
            call: call.layout(self.rank(), self.ranks())?,
        };
        let kernels = &self.parts.kernels;
        // SAFETY: memory is used as `layout.h` says. For that, the caller has joined the member
        // with the scratch of this communicator's ranks alone. Buffers are as long as the call
        // says, and the caller leaves them to it until it has run. The caller lets this rank's
        // operations run one after the other. All ranks make the call by this plan, and the caller
        // lets kernels of ranks that share a GPU run at the same time. The member owns all other
        // memory that the arguments name. Its drop frees that only after all kernels have ended,
        // and the caller launches no graph after that.
        kernels.launch_in_turn(stream, || unsafe {
            kernels.launch(plan, arguments, stream)
        })
    }

    /// Enqueues messages in a stream of the rank's GPU, or captures them into a graph; does not
    /// wait. They are passed together: none waits for another, except that messages in one
    /// direction between two ranks keep their order.
    ///
    /// Between two ranks, the k-th message that one sends is the k-th that the other one receives.
    /// Short messages are done when they are sent; longer ones wait for their receiver. Other ranks
    /// take no part.
    ///
    /// A kernel has room for 120 messages. More are passed by several kernels, one after the other,
    /// each with the next 60 / r messages of each pair and direction, for r ranks. So the messages
    /// complete if each peer also passes its messages together, or waits for nothing else.
    ///
    /// # Safety
    /// - [`join`](Self::join) or [`join_in_host`](Self::join_in_host) must have got the scratch of
    ///   this communicator's other ranks, by rank, zero at first. Each scratch must be used for
    ///   this communicator alone.
    /// - A rank's operations, and launches of graphs that have captured some, must run one after
    ///   the other. A graph must not be launched after the member was dropped.
    /// - The kernels of ranks that share a GPU must be able to run at the same time.
    /// - All buffers must be as long as the messages say. Until all have been passed, nothing else
    ///   may write what is sent, or use what is received.
    ///
    /// # Errors
    /// An earlier operation has failed, a peer is not a rank, or the driver fails.
    pub unsafe fn pass(&self, messages: &[Message], stream: &Arc<CudaStream>) -> Result<(), Error> {
        self.check()?;
        let member = (self.layout, self.parts.own.channels());
        let launches = Launches::new(messages, self.rank(), self.ranks(), self.limits())?;
        let kernels = &self.parts.kernels;
        for (number, launch) in launches.enumerate() {
            let protocol = self.limits().wire.of_messages();
            // SAFETY: memory is used as `channels.h` says. For that, the caller has joined the
            // member with the scratch of this communicator's ranks alone. Buffers are as long as
            // the messages say, and the caller leaves them to these until all have passed. The
            // caller lets this rank's operations run one after the other, and kernels of ranks on
            // one GPU at the same time. The member owns all other memory that the arguments name.
            // Its drop frees that only after all kernels have ended, and the caller launches no
            // graph after that.
            let pass = || unsafe { kernels.pass(protocol, &launch, member, stream) };
            let passed = kernels.launch_in_turn(stream, pass);
            passed.map_err(|error| error.after(number))?;
        }
        Ok(())
    }

    /// Checks whether an operation of this rank has failed. Only reads host memory: it calls no
    /// driver, and waits for nothing.
    ///
    /// # Errors
    /// An operation has failed: the reason, and the peer.
    pub fn check(&self) -> Result<(), Error> {
        self.parts
            .mailbox
            .failure_of(self.rank())
            .map_or(Ok(()), Err)
    }

    /// Ends this rank's waits, for good. Kernels that begin after this, in graphs, too, do nothing.
    /// The peers wait until their own patience is over, or until they are aborted, too.
    ///
    /// If the driver takes longer than 0.2 s to tell the GPU, a kernel may still begin after this
    /// has returned. If the driver fails, no kernel runs any more.
    pub fn abort(&self) {
        if self.parts.mailbox.abort() {
            let _ = self.parts.own.end_kernels(&self.parts.ending);
        }
    }

    /// Sets how long a kernel waits for the next data of its peers, effective at once, also in
    /// current waits and in graphs. An operation that makes progress may take longer in all.
    pub fn set_patience(&self, patience: Duration) {
        self.parts.mailbox.set_patience(patience);
    }
}

impl Member {
    /// Ends the member, as dropping it does. If the driver refuses to wait for running work, for
    /// instance while a stream of the context captures, it returns the member, to be ended later.
    ///
    /// # Errors
    /// The driver fails.
    pub fn end(self) -> Result<(), Box<(Self, Error)>> {
        self.parts
            .end()
            .map_err(|(parts, error)| Box::new((Self { parts, ..self }, error)))
    }
}

impl Settles for Parts {
    fn settle(&self) -> Result<(), Error> {
        self.mailbox.abort();
        self.own.settle()
    }
}
/// Checks that `peers` has an entry for each rank but this one.
fn check_peers<T>(rank: usize, ranks: usize, peers: &[Option<T>]) -> Result<(), Error> {
    let is_needed = |(peer, of_peer): (usize, &Option<T>)| of_peer.is_some() == (peer != rank);
    if rank < ranks && peers.len() == ranks && peers.iter().enumerate().all(is_needed) {
        return Ok(());
    }
    let given = peers.iter().flatten().count();
    Err(Error::Peers { rank, ranks, given })
}

/// The addresses of everything, for the kernels of this rank's GPU.
fn layout(
    rank: usize,
    own: &Scratch,
    peers: &[Peer],
    mailbox: &Mailbox,
) -> Result<MemberLayout, Error> {
    let mut scratch = [0; MAX_RANKS];
    scratch[rank] = own.address();
    let others = (0..own.ranks()).filter(|peer| *peer != rank);
    for (peer, block) in others.zip(peers) {
        scratch[peer] = block.address();
    }
    let [rounds, state] = own.private();
    let [control, failure] = mailbox.addresses_for(own.context())?;
    Ok(MemberLayout {
        scratch,
        rounds,
        state,
        control,
        failure,
        rank: rank as u32,
        ranks: own.ranks() as u32,
    })
}
