//! What a rank's settings choose: its device, and the backend where none is named.

use super::{builder, gpus, text};
use spark_ccl::Backend;

#[test]
fn a_rank_takes_the_device_that_it_names() {
    let Some(_gpus) = gpus(2) else { return };
    let own = builder().set("SPARK_CCL_DEVICE", "1");
    let comm = own.local(1).unwrap().remove(0);
    assert_eq!(comm.device(), Some(1));
    let said = text(builder().set("SPARK_CCL_DEVICE", "1000").local(1));
    assert!(
        said.contains("SPARK_CCL_DEVICE of rank 0 is 1000"),
        "{said}"
    );
}

#[test]
fn nccl_is_taken_where_all_ranks_have_it_and_a_gpu_of_their_own() {
    let Some(gpus) = gpus(2) else { return };
    gpus.each(&builder().backend(Backend::Auto), |comm| {
        assert_eq!(comm.device(), Some(comm.rank()));
    });
    // Our own kernels would be next, for which the two need a setting more.
    let shared = builder()
        .backend(Backend::Auto)
        .set("SPARK_CCL_DEVICE", "0");
    let said = text(shared.local(2));
    assert!(said.contains("SPARK_CCL_SHARE_GPU=1"), "{said}");
}
