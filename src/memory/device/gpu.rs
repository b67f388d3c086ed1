//! A rank's GPU: context, streams and events. It lives as long as memory of the GPU does. Knows no
//! backend.

use std::sync::Arc;

use spark_ccl_cuda::cudarc::driver::{CudaContext, CudaStream};
use spark_ccl_cuda::{CaptureStreams, EventPool, Observer, OwnStream, counted_stream};

use crate::error::Error;

/// A rank's GPU.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub(crate) context: Arc<CudaContext>,
    /// The rank, for errors.
    pub(crate) rank: usize,
    /// The ends of calls.
    pub(crate) events: Arc<EventPool>,
    /// The stream for copies of values. Nothing in it waits for another stream, so a copy waits
    /// only for collectives on its own memory.
    pub(crate) copies: OwnStream,
    /// The stream for blocking calls. It is made by cudarc, which counts its streams. Without one,
    /// cudarc neither records the events of its buffers nor waits for them, not even before it
    /// frees a buffer that a call uses.
    pub(crate) sync_stream: Arc<CudaStream>,
    /// The streams for calls that threads capture in their default streams.
    pub(crate) capture_streams: CaptureStreams,
    _observer: Observer,
}

impl Gpu {
    pub(crate) fn new(context: &Arc<CudaContext>, rank: usize) -> Result<Arc<Self>, Error> {
        let made = || -> Result<_, spark_ccl_cuda::Error> {
            Ok(Self {
                context: Arc::clone(context),
                rank,
                events: EventPool::new(Arc::clone(context)),
                copies: OwnStream::new(context)?,
                sync_stream: counted_stream(context)?,
                capture_streams: CaptureStreams::default(),
                _observer: Observer::new(context.ordinal())?,
            })
        };
        Ok(Arc::new(made().map_err(|error| error.of_rank(rank))?))
    }
}
