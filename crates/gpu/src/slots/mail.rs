//! Messages through slots.

use std::sync::Arc;

use spark_ccl_cuda::cudarc::driver::CudaStream;
use spark_ccl_slots::{self as slots, FLOWS, Flow, MESSAGES, Mailing, Plan};

use super::{Calls, Slots};
use crate::flows::{self, Launch, launches};
use crate::launch::launch_in;
use crate::{Error, Message, MessageDirection};

// Of up to 8 ranks, each has two flows for each of the others.
const _: () = assert!(flows::MESSAGES == MESSAGES && 2 * crate::MAX_RANKS == FLOWS);

/// The most threads of a CTA, as in `slots.cu`, those of a warp, and the bytes of a load.
const THREADS: u64 = 256;
const WARP: u64 = 32;
const LOAD: u64 = 16;

impl Slots {
    /// Enqueues messages to and from other ranks in a stream of the rank's GPU, or captures them
    /// into a graph; does not wait. Messages from one rank to another are passed in order, and all
    /// others at the same time, as far as 80 messages fit into a launch. So they complete if each
    /// peer also passes its messages together, or waits for nothing else. A short message completes
    /// without its receiver.
    ///
    /// # Safety
    /// - All buffers must be as long as the messages say. Until all have been passed, nothing else
    ///   may write what is sent, or use what is received.
    /// - A rank's operations must run one after the other: in one stream, or in streams that wait
    ///   for each other. That includes launches of graphs. A graph must not be launched after the
    ///   slots were dropped.
    /// - The kernels of ranks that share a GPU must be able to run at the same time.
    ///
    /// # Errors
    /// An earlier operation has failed, a peer is no other rank, or the driver fails;
    /// [`Error::InPart`] where a part was enqueued.
    pub unsafe fn pass(&self, messages: &[Message], stream: &Arc<CudaStream>) -> Result<(), Error> {
        self.check()?;
        let (rank, ranks) = (self.rank(), self.ranks());
        if messages.iter().any(|message| message.peer == rank) {
            return Err(Error::Peer {
                rank,
                peer: rank,
                ranks,
            });
        }
        for (number, launch) in launches(messages, rank, ranks)?.iter().enumerate() {
            let mut mailing = self.mailing(launch);
            let piece = |message: &Message| self.piece_of(message).min(message.bytes);
            let threads = launch.most(piece).div_ceil(LOAD).next_multiple_of(WARP);
            let grid = [launch.ctas(), threads.clamp(WARP, THREADS) as u32];
            // SAFETY: `mailing` has the layout of the kernel's one parameter. Buffers are as long
            // as the messages say, and the caller leaves them to these until all have passed. The
            // caller lets this rank's operations run one after the other, and at the same time as
            // those of ranks on the same GPU. The slots own all other memory that the arguments
            // name. Their drop frees that only after all kernels have ended, and the caller
            // launches no graph after that.
            let launched = self.parts.streams.launch(stream, || unsafe {
                launch_in(stream, &self.parts.kernels.messages, grid, &mut mailing)
            });
            launched.map_err(|error| error.after(number))?;
        }
        Ok(())
    }

    /// The kernel's argument.
    pub(super) fn mailing(&self, launch: &Launch) -> Mailing {
        let mut mailing = Mailing {
            member: self.member,
            flow: [Flow::default(); FLOWS],
            message: [slots::Message::default(); MESSAGES],
        };
        for (to, message) in mailing.message.iter_mut().zip(&launch.messages) {
            *to = slots::Message {
                start: message.address,
                bytes: message.bytes,
                piece: self.piece_of(message),
                words: message.words,
            };
        }
        for (to, flow) in mailing.flow.iter_mut().zip(&launch.flows) {
            *to = Flow {
                peer: flow.peer as u32,
                is_sent: u32::from(flow.way == MessageDirection::Send),
                begin: flow.places.start as u32,
                end: flow.places.end as u32,
            };
        }
        mailing
    }

    fn piece_of(&self, message: &Message) -> u64 {
        Plan::piece_of_message(message.bytes, self.shape, self.least)
    }

    /// The most bytes of a slot in a message of this length.
    pub fn piece_of_message(&self, bytes: u64) -> u64 {
        Plan::piece_of_message(bytes, self.shape, self.least).min(bytes)
    }

    /// Which messages kernels have passed, for each other rank, both ways. A launch's
    /// messages begin together, and [`Calls`] has the number and the words of the first of them.
    pub fn messages(&self) -> impl Iterator<Item = ((usize, MessageDirection), Calls)> {
        let others = (0..self.ranks()).filter(|&peer| peer != self.rank());
        let ways = [MessageDirection::Receive, MessageDirection::Send];
        let flows = others.flat_map(move |peer| ways.map(|way| (peer, way)));
        // As `Mail::journal`.
        flows.map(|flow| (flow, self.reported(1 + 2 * flow.0 + flow.1 as usize)))
    }
}
