//! Keeps uses of a call's memory in order: makes the stream wait for earlier uses before a call,
//! and notes the call's own uses after it. Knows no engine.

use std::sync::Arc;

use spark_ccl_cuda::cudarc::driver::CudaStream;
use spark_ccl_cuda::{Error, RecordedEvent};

use crate::memory::buffer::Region;
use crate::memory::device::site::Order;

/// Whether the user keeps all uses of a call's memory in order. At least one region, even an empty
/// one, has to be the user's memory: only for that has the user promised what graphs need.
pub(super) fn are_ordered_by_user(regions: [&Region; 2]) -> bool {
    let is_own = |region: &Region| {
        let site = region.site.as_ref();
        site.is_some_and(|site| matches!(site.order, Order::User | Order::Kept(_)))
    };
    let mut used = regions.iter().filter(|region| region.len > 0);
    regions.iter().any(|region| is_own(region)) && used.all(|region| is_own(region))
}

/// The stream that a call's memory comes with. The stream of a cudarc buffer comes first: the
/// buffer may have been used there without an event. The library's own memory comes with a stream
/// that only calls without a given stream use.
pub(super) fn stream_of(regions: [&Region; 2]) -> Option<Arc<CudaStream>> {
    let sites = regions.iter().filter_map(|region| region.site.as_ref());
    let own = sites.filter(|site| site.stream.is_some());
    let first = own.min_by_key(|site| !matches!(site.order, Order::Cudarc(_)));
    first.and_then(|site| site.stream.clone())
}

/// The other streams that a call's memory comes with, if nothing else makes a stream wait for uses
/// there.
pub(super) fn unordered<'a>(
    regions: [&'a Region; 2],
    stream: &'a Arc<CudaStream>,
) -> impl Iterator<Item = &'a Arc<CudaStream>> {
    let sites = regions
        .into_iter()
        .filter_map(|region| region.site.as_ref());
    let unknown = sites.filter(
        |site| matches!(&site.order, Order::Cudarc(Ok(buffer)) if !buffer.is_kept_in_order()),
    );
    let streams = unknown.filter_map(|site| site.stream.as_ref());
    streams.filter(move |other| *other != stream)
}

/// Makes a stream wait until a call's memory may be used there.
pub(super) fn hold_back(regions: [&Region; 2], stream: &Arc<CudaStream>) -> Result<(), Error> {
    let mut uses = uses(regions);
    uses.try_for_each(|(order, writes)| order.hold_back(stream, writes))
}

/// Notes that a call's memory was used in a stream up to an event.
pub(super) fn were_used(
    regions: [&Region; 2],
    stream: &CudaStream,
    end: &Arc<RecordedEvent>,
) -> Result<(), Error> {
    let mut uses = uses(regions);
    uses.try_for_each(|(order, writes)| order.was_used(stream, end, writes))
}

/// Notes that a call's memory may be in use, nobody knows how long.
pub(super) fn were_lost(regions: [&Region; 2], error: &Error) {
    for (order, _) in uses(regions) {
        if let Order::Block(block) | Order::Kept(block) = order {
            block.was_lost(error.clone());
        }
    }
}

/// The regions that are read or written, each with whether it is written; in place, they are one.
fn uses([input, output]: [&Region; 2]) -> impl Iterator<Item = (&Order, bool)> {
    let in_place = input.ptr == output.ptr;
    let uses = [(input, false), (output, true)];
    uses.into_iter()
        .filter(move |&(_, writes)| writes || !in_place)
        .filter_map(|(region, writes)| Some((&region.site.as_ref()?.order, writes)))
}
