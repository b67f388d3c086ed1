// The kernels of slots: small ones leave room for what runs beside them, large ones have registers
// for more loads at once.
//
// They use no headers of the CUDA toolkit: crates/cuda/kernels/build.sh compiles them.

#include "exchange.h"

#define KERNEL(name, ctas, ...)                                           \
    extern "C" __global__ void __launch_bounds__(MAX_WARPS* LANES, ctas)  \
        name(const __grid_constant__ Exchanging call) {                  \
        wait_for_last_kernel();                                           \
        __VA_ARGS__;                                                      \
    }

KERNEL(slots_direct_small, 3, Exchange(call).direct())
KERNEL(slots_direct_large, 2, Exchange(call).direct())
KERNEL(slots_shared_large, 2, Exchange(call).shared())
