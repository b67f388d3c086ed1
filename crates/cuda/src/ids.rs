//! The driver's own numbers of contexts and streams, which it never reuses. It does reuse handles.

use std::ffi::c_void;

use cudarc::driver::{CudaContext, CudaStream, sys};
use once_cell::race::OnceBox;

use crate::asked::answer;
use crate::current::make_current;
use crate::driver::function;
use crate::stream::{is_capturing, relaxed};
use crate::{Error, checked};

/// `cuStreamGetId` and `cuCtxGetId`, which cudarc lacks.
type GetId = unsafe extern "C" fn(*mut c_void, *mut u64) -> sys::CUresult;

/// The driver's number of a stream: the same for all objects that have its handle. `None` while the
/// stream captures a graph: the driver would not tell, and the question would end the capture.
///
/// # Errors
/// The driver is for CUDA before 12.0, or fails.
pub fn stream_id(stream: &CudaStream) -> Result<Option<u64>, Error> {
    static FOUND: OnceBox<Result<GetId, Error>> = OnceBox::new();
    if is_capturing(stream)? {
        return Ok(None);
    }
    let ask = || {
        let device = make_current(stream.context())?;
        let _relaxed = relaxed(device)?;
        // SAFETY: the function has this type in every version of CUDA that has it.
        let found = FOUND.get_or_init(|| Box::new(unsafe { function("cuStreamGetId") }));
        let ask = found.as_ref().map_err(Clone::clone)?;
        let mut id = 0;
        // SAFETY: the stream is borrowed, so it has not been destroyed. The driver writes one
        // number, to `id`.
        let asked = unsafe { ask(stream.cu_stream().cast(), &raw mut id) };
        checked("cuStreamGetId", device, asked.result())?;
        Ok(id)
    };
    answer(stream, |answers| &mut answers.id, ask).map(Some)
}

/// The driver's number of a context.
pub(crate) fn context_id(context: &CudaContext) -> Result<u64, Error> {
    // SAFETY: the function has this type in every version of CUDA that has it.
    let ask: GetId = unsafe { function("cuCtxGetId")? };
    let mut id = 0;
    // SAFETY: the context is borrowed, so it has not been destroyed. The driver writes one number,
    // to `id`.
    let asked = unsafe { ask(context.cu_ctx().cast(), &raw mut id) };
    checked("cuCtxGetId", context.ordinal(), asked.result())?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    use spark_ccl_testing::{Need, has};

    use super::*;
    use crate::{EventPool, borrow_stream};

    #[test]
    fn a_stream_is_known_by_each_object_that_has_it() {
        if !has(Need::Gpus(1)) {
            return;
        }
        let context = crate::context(0).unwrap();
        let [one, other] = [(); 2].map(|()| context.new_stream().unwrap());
        // SAFETY: the stream outlives `borrowed`, which is never used for buffers.
        let borrowed = unsafe { borrow_stream(&context, one.cu_stream()) }.unwrap();
        let id = |stream: &CudaStream| stream_id(stream).unwrap().unwrap();
        assert_eq!(id(&one), id(&borrowed));
        assert_ne!(id(&one), id(&other));
        let end = EventPool::new(context.clone()).record(&one).unwrap();
        assert!(end.is_in(&one) && end.is_in(&borrowed) && !end.is_in(&other));
        // A new stream may get the handle of a stream that has ended, but not its number.
        let before = id(&other);
        drop(other);
        let anew = context.new_stream().unwrap();
        assert_ne!(id(&anew), before);
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        anew.begin_capture(mode).unwrap();
        assert_eq!(stream_id(&anew).unwrap(), None);
        // The capture goes on.
        anew.end_capture(sys::CUgraphInstantiate_flags(0)).unwrap();
        assert_eq!(context_id(&context).unwrap(), context_id(&context).unwrap());
    }
}
