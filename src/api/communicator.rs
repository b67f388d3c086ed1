//! The communicator: the type that users hold. It joins the parts that run calls (engine, plan,
//! mesh) with the one that reports faults (control plane), and has the methods for state, faults
//! and the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use spark_ccl_config::{Backend, Layout, Path};
use spark_ccl_control::{Fault, Watch};
#[cfg(feature = "cuda")]
use spark_ccl_cuda::keep_context;
use spark_ccl_fork::Owned;
use spark_ccl_log::FlushOnDrop;
use spark_ccl_sched::Algorithm;
use spark_ccl_transport::Rails;
use spark_ccl_transport::rdma::Registry;
use spark_ccl_types::{DType, Operation, Side, Signature};

#[cfg(feature = "cuda")]
use crate::engine::Engine;
use crate::error::Error;
use crate::host::{Core, or_abort};
use crate::members::lineage::Lineage;
use crate::members::membership::Membership;
use crate::mesh::peer_link::PeerLink;
use crate::observe::Observation;
use crate::plan::{Explanation, Planner};
use crate::task::{DIVIDED_BYTES, NO_TIME, Spec, Task, bytes, is_long};
use crate::world::World;

/// A group of ranks that communicate with each other.
///
/// All ranks must call the same collectives with matching arguments in the same order. A
/// communicator can be shared by threads (it is `Sync`), which then must agree on that order.
///
/// Dropping it leaves the communicator: the other ranks hear at once that this one begins nothing
/// more. Operations in flight go on, and the drop of their last handle waits for them. It gives up
/// when the operation timeout has passed, or the other ranks have failed, left, or made a call that
/// needs more of this rank. A thread that panics does not wait, but [aborts](Self::abort) the
/// communicator.
///
/// It belongs to the process that made it. A child that is forked later has a copy that does
/// nothing: every call returns [`Error::Forked`], and the others do not notice when the child drops
/// it or ends. The child may make a communicator of its own.
#[derive(Debug)]
pub struct Communicator {
    pub(crate) inner: Arc<Inner>,
    #[cfg(feature = "cuda")]
    pub(crate) device: Option<Owned<Arc<dyn Engine>>>,
    /// Dropped last, so that log lines from the drops of the other fields are written, too.
    pub(crate) _log: FlushOnDrop,
}

/// The part of a communicator that its progress thread shares.
pub(crate) struct Inner {
    /// This rank's place in it, and so its engine of host memory.
    pub(crate) membership: Arc<Membership>,
    pub(crate) watch: Arc<Watch>,
    pub(crate) lineage: Arc<Lineage>,
    pub(crate) world: Owned<Arc<World>>,
    pub(crate) context: u64,
    /// By rank of this communicator: the rank of the world.
    pub(crate) members: Vec<u32>,
    /// Memory that the devices of RDMA links reach; `None` without RDMA links, or where the
    /// settings forbid it.
    pub(crate) registry: Option<Arc<Registry>>,
    /// Numbers of the next split and allocation. Relaxed: counters on their own, which publish
    /// nothing.
    pub(crate) splits: AtomicU32,
    pub(crate) allocations: AtomicU32,
    /// Ends the progress thread. It orders no other memory, so all accesses are relaxed.
    pub(crate) closed: Arc<AtomicBool>,
    /// Reports on it to others, if the settings ask for that.
    pub(crate) observation: Option<Owned<Observation>>,
}

/// One rank, for messages to people.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerInfo {
    /// Its rank in this communicator.
    pub rank: usize,
    /// The name of its host.
    pub host: String,
    /// Its process.
    pub pid: u32,
}

impl Communicator {
    /// This process's or thread's rank, `0..size`.
    pub fn rank(&self) -> usize {
        self.planner().rank as usize
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.planner().size as usize
    }

    /// Host and process of a rank.
    ///
    /// # Errors
    /// [`Error::Invalid`] when there is no such rank.
    pub fn peer(&self, rank: usize) -> Result<PeerInfo, Error> {
        let Some(&member) = self.inner.members.get(rank) else {
            return Err(Error::Invalid {
                operation: "peer",
                problem: format!("rank {rank} of {}", self.size()),
            });
        };
        let peer = self.inner.world.session.peer(member);
        Ok(PeerInfo {
            rank,
            host: peer.host.clone(),
            pid: peer.pid,
        })
    }

    /// The kind of link to each rank. Links are made at their first use. Waits while another thread
    /// works on a call.
    pub fn links(&self) -> Vec<PeerLink> {
        let links = self.inner.membership.with(|core| core.links());
        // A forked child has none.
        links.unwrap_or_default()
    }

    /// The state of the RDMA rails to each rank: how many are in use, how often one was dropped,
    /// and how often one came back. Waits while another thread works on a call.
    pub fn rails(&self) -> Vec<Rails> {
        let rails = self.inner.membership.with(|core| core.rails());
        // A forked child has none.
        rails.unwrap_or_default()
    }

    /// The backend for collectives of device memory.
    pub fn backend(&self) -> Backend {
        self.inner.world.settings.backend
    }

    /// The placement of the ranks, by which `spark-perf tune` stores its results.
    pub fn layout(&self) -> Layout {
        self.planner().layout()
    }

    /// Sets the timeout of calls that begin from now on. Calls that have begun keep theirs, even if
    /// they are waited for later; [`Call::timeout`](crate::Call::timeout) is for one call.
    /// Communicators made from this one start with the timeout that it has then.
    ///
    /// ```
    /// # let comm = spark_ccl::Communicator::local(1)?.remove(0);
    /// use std::time::Duration;
    ///
    /// comm.set_timeout(Duration::from_secs(30))?;
    /// # Ok::<(), spark_ccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for a timeout of 0.
    pub fn set_timeout(&self, timeout: Duration) -> Result<(), Error> {
        if timeout.is_zero() {
            return Err(Error::Invalid {
                operation: "set_timeout",
                problem: NO_TIME.to_owned(),
            });
        }
        self.membership().check_process()?;
        self.apply_timeout(timeout);
        Ok(())
    }

    /// The timeout of calls that begin now.
    ///
    /// # Errors
    /// [`Error::Forked`] in a forked child.
    pub fn timeout(&self) -> Result<Duration, Error> {
        Ok(self.inner.membership.engine().timeout()?)
    }

    /// The number that identifies this communicator on all of its ranks.
    pub fn context_id(&self) -> u64 {
        self.inner.context
    }

    /// Sets the engines' timeout.
    pub(crate) fn apply_timeout(&self, timeout: Duration) {
        self.membership().set_timeout(timeout);
        #[cfg(feature = "cuda")]
        if let Some(device) = &self.device {
            let _context = keep_context();
            device.set_timeout(timeout);
        }
    }

    /// The algorithm that a collective of `count` elements would take, and why.
    ///
    /// ```
    /// # let comm = spark_ccl::Communicator::local(1)?.remove(0);
    /// use spark_ccl::{Algorithm, DType, Operation};
    ///
    /// let choice = comm.explain(Operation::AllReduce, DType::F32, 1 << 20, false)?;
    /// assert_eq!(choice.algorithm, Algorithm::Ring);
    /// println!("{choice}");
    /// # Ok::<(), spark_ccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for operations that have no algorithms to choose from.
    pub fn explain(
        &self,
        operation: Operation,
        dtype: DType,
        count: usize,
        registered: bool,
    ) -> Result<Explanation, Error> {
        if !operation.has_schedule() {
            return Err(Error::Invalid {
                operation: "explain",
                problem: format!("{operation} has no algorithms to choose from"),
            });
        }
        let signature = Signature::plain(operation, dtype, count as u64);
        let planner = self.planner();
        let is_shared = operation.shared(false).is_some();
        let is_allowed = is_shared && planner.path != Path::Safe;
        let one_sided = registered && is_allowed && planner.all_share_memory && self.size() > 1;
        let may_lend = registered && self.inner.registry.is_some();
        let [input, output] = [Side::Input, Side::Output].map(|side| {
            let extent = operation.extent(side);
            extent.elements(count as u64, self.size() as u32)
        });
        let explanation = planner.explain(signature, false, one_sided);
        let longest = input.max(output);
        let reads_alone = !operation.reduces()
            && explanation.algorithm != Algorithm::OneSided
            && bytes(dtype, longest) < DIVIDED_BYTES;
        let helpers = is_long(dtype, longest).then(|| {
            let text = self.inner.world.pool.describe();
            let unless = ", unless ranks read each other's memory by the kernel";
            text + if reads_alone { unless } else { "" }
        });
        Ok(Explanation {
            lends: may_lend && planner.may_lend(signature, false),
            helpers,
            ..explanation
        })
    }

    /// How many parts of calls helpers were offered since the last time this was called.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn take_offered_parts(&self) -> usize {
        self.inner.world.pool.helpers.take_offered()
    }

    /// Fails this communicator on all ranks: operations in flight and later ones return
    /// [`Error::Failed`]. Any thread may call it.
    pub fn abort(&self, reason: &str) {
        let watch = &self.inner.watch;
        watch.raise(Fault::Aborted {
            by: watch.member(self.planner().rank),
            reason: reason.to_owned(),
        });
    }

    /// A function that [aborts](Self::abort) it later, if it still exists.
    pub(crate) fn aborter(&self, reason: &'static str) -> impl Fn() + Send + Sync + use<> {
        let (rank, watch) = (self.planner().rank, Arc::downgrade(&self.inner.watch));
        move || {
            if let Some(watch) = watch.upgrade() {
                watch.raise(Fault::Aborted {
                    by: watch.member(rank),
                    reason: reason.to_owned(),
                });
            }
        }
    }

    /// Leaves the communicator at once, for this rank only: its calls under way, and later ones,
    /// return [`Error::Failed`]. Any thread may call it; it takes half a second at most, or as long
    /// as calls of device memory take to be aborted.
    ///
    /// Calls in which this rank has done its part end well on the other ranks. Others that need it
    /// fail there, and name it. To end the calls of all ranks, [`abort`](Self::abort).
    ///
    /// ```
    /// # use spark_ccl::{Communicator, RedOp};
    /// let comms = Communicator::local(2)?;
    /// comms[0].broadcast_in_place(&mut [7_u8], 0).run()?;
    /// comms[0].leave()?;
    /// assert!(comms[0].broadcast_in_place(&mut [8_u8], 0).run().is_err());
    /// let mut word = [0_u8];
    /// comms[1].broadcast_in_place(&mut word, 0).run()?;
    /// assert_eq!(word, [7]);
    /// assert!(comms[1].broadcast_in_place(&mut word, 0).run().is_err());
    /// # Ok::<(), spark_ccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Forked`] in a forked child.
    pub fn leave(&self) -> Result<(), Error> {
        self.inner.membership.check_process()?;
        #[cfg(feature = "cuda")]
        let _context = self.device.as_ref().map(|_| keep_context());
        #[cfg(feature = "cuda")]
        if let Some(device) = &self.device {
            device.tell_what_has_run();
        }
        self.inner.membership.leave_now()?;
        #[cfg(feature = "cuda")]
        if let Some(device) = &self.device {
            device.leave();
        }
        Ok(())
    }

    /// Waits for this rank's own calls, of host and of device memory, for as long as each of them
    /// may take. Captured calls do not count.
    ///
    /// # Errors
    /// [`Error::Failed`] if they have not ended well; [`Error::Invalid`] after
    /// [`finalize`](Self::finalize).
    pub fn drain(&self) -> Result<(), Error> {
        #[cfg(feature = "cuda")]
        self.settle()?;
        self.inner.membership.check_process()?;
        self.inner.membership.engine().drain()
    }

    /// Whether the communicator still works; its error, if not. Unread data of an earlier operation
    /// show that ranks have called different ones. This then waits up to 1.5 s until the other rank
    /// has said what it called.
    ///
    /// # Errors
    /// [`Error::Failed`], the error that every call returns from now on.
    pub fn check(&self) -> Result<(), Error> {
        self.inner.membership.check_process()?;
        #[cfg(feature = "cuda")]
        if let Some(device) = &self.device {
            let _context = keep_context();
            device.reported()?;
        }
        self.inner.membership.engine().check()
    }

    /// As [`check`](Self::check), and whether all ranks live: the end of a process fails the
    /// communicator only in a call that needs it.
    ///
    /// # Errors
    /// [`Error::Failed`], which names the rank that has ended.
    pub fn check_all_ranks(&self) -> Result<(), Error> {
        self.check()?;
        let ended = self.inner.watch.latent();
        ended.map_or(Ok(()), |fault| Err(Error::Failed(fault)))
    }

    /// As [`check_all_ranks`](Self::check_all_ranks), and whether none has left the communicator.
    /// Call it while another library waits for all ranks, for instance to connect them: this one
    /// does not see that wait. Errors name it by `words`.
    ///
    /// # Errors
    /// [`Error::Failed`], which names the rank that has ended or left.
    pub fn check_all_present(&self, words: &str) -> Result<(), Error> {
        self.check_all_ranks()?;
        let left = self.inner.watch.left_before(words);
        left.map_or(Ok(()), |fault| Err(Error::Failed(Arc::new(fault))))
    }

    /// Whether the process of a rank is known to have died, or to be lost: also after
    /// [`finalize`](Self::finalize), and if the rank had left the communicator before.
    pub fn has_lost_a_process(&self) -> bool {
        self.inner.watch.has_lost_a_process()
    }

    /// The orderly end: waits until all ranks have called it, and operations whose handles were
    /// dropped are done. Calls afterwards are invalid, on all ranks.
    ///
    /// Dropping a communicator without it waits only for operations that this rank has begun. Ranks
    /// that need it for anything else get an error.
    ///
    /// A backend for device memory frees its memory here, or when the communicator is dropped. CUDA
    /// then waits for everything that runs on the device, also for other communicators, and
    /// meanwhile no thread of the process can destroy a stream. So finish the calls of other
    /// communicators first.
    ///
    /// # Errors
    /// [`Error::Failed`] when another rank failed before, or one of those operations did.
    pub fn finalize(&self) -> Result<(), Error> {
        self.inner.membership.check_process()?;
        #[cfg(feature = "cuda")]
        let _context = self.device.as_ref().map(|_| keep_context());
        #[cfg(feature = "cuda")]
        if let Some(device) = &self.device {
            device.drain()?;
        }
        self.last_barrier().run()?;
        #[cfg(feature = "cuda")]
        if let Some(device) = &self.device {
            device.finalize()?;
        }
        // Operations whose handles were dropped go on to their end.
        self.inner.membership.engine().drain()?;
        self.inner.membership.leave();
        self.inner.membership.with(Core::close)?;
        spark_ccl_log::flush();
        Ok(())
    }

    /// This rank's place in it, and so its engine of host memory.
    pub(crate) fn membership(&self) -> &Arc<Membership> {
        &self.inner.membership
    }

    /// Checks the task of a call, and runs it to its end by the engine of its memory.
    pub(crate) fn run(&self, spec: &Spec, task: &mut Task) -> Result<(), Error> {
        let host = self.inner.membership.engine();
        spec.check(task, host.planner().ranks())?;
        #[cfg(feature = "cuda")]
        if task.is_on_device() {
            let _context = keep_context();
            let engine = self.device_engine(spec.operation.name())?;
            return or_abort(|| engine.run(task));
        }
        or_abort(|| host.run(task))
    }

    /// The engine for device memory, in the process that it belongs to.
    #[cfg(feature = "cuda")]
    pub(crate) fn device_engine(&self, operation: &'static str) -> Result<&Arc<dyn Engine>, Error> {
        let device = self.device.as_ref().ok_or_else(|| Error::Unsupported {
            what: operation.to_owned(),
            reason: "this communicator knows no device memory; make it with Backend::Engine or \
                     Backend::Nccl, or SPARK_CCL_BACKEND=engine or SPARK_CCL_BACKEND=nccl"
                .to_owned(),
        })?;
        // CUDA does nothing in a forked child, and what it has enqueued is the parent's.
        device.process().check()?;
        Ok(device)
    }

    pub(crate) fn planner(&self) -> &Planner {
        self.inner.membership.planner()
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if self.inner.membership.check_process().is_err() {
            return;
        }
        #[cfg(feature = "cuda")]
        if let Some(device) = self.device.take() {
            let _context = keep_context();
            device.leave();
            drop(device);
        }
        // Relaxed: it publishes nothing else. Pairs with the load in `start_progress`.
        self.inner.closed.store(true, Ordering::Relaxed);
        // It begins nothing more. Operations in flight go on until their last handle is dropped.
        self.inner.membership.leave();
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Communicator")
            .field("rank", &self.membership.planner().rank)
            .field("size", &self.membership.planner().size)
            .field("context", &self.context)
            .finish_non_exhaustive()
    }
}
