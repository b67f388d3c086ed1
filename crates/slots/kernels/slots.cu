// The kernels of slots: small ones leave room for other kernels, large ones have threads for more
// loads at once. `Kernel::most_threads` has the same numbers.
//
// They use no headers of the CUDA toolkit: crates/cuda/kernels/build.sh compiles them.

#include "exchange.h"
#include "mail.h"
#include "packets.h"

#define KERNEL(name, Call, threads, ctas, ...)                            \
    extern "C" __global__ void __launch_bounds__(threads, ctas)           \
        name(const __grid_constant__ Call call) {                         \
        wait_for_last_kernel();                                           \
        __VA_ARGS__;                                                      \
    }

KERNEL(slots_direct_small, Exchanging, 256, 3, Exchange<1>(call).direct())
KERNEL(slots_direct_large, Exchanging, 384, 2, Exchange<1>(call).direct())
KERNEL(slots_shared_large, Exchanging, 384, 2, Exchange<2>(call).shared())
KERNEL(slots_packets, Exchanging, 160, 6, PacketExchange(call).run())
KERNEL(slots_messages, Mailing, 256, 3, Mail<>(call).run())
