// The kernels for a host, where a thread plays a CTA: for tests in Rust, which have the carriers.
#include "../kernels/exchange.h"

// A CTA's part in a call. It pauses now and then, at one access of some number.
extern "C" void play(const Exchanging* call, u32 cta, u32 ctas, bool is_shared, u64 seed,
                     u32 pauses) {
    here = {cta, 0, 1, ctas, seed, pauses, 100};
    if (is_shared) {
        Exchange(*call).shared();
    } else {
        Exchange(*call).direct();
    }
}
