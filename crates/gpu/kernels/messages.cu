// The kernels that pass messages: of each protocol, for few and for many of them.
//
// They use no headers of the CUDA toolkit: crates/cuda/kernels/build.sh compiles them.

#include "messages.h"
#include "pinned.h"

#define KERNEL(name, MESSAGES)                                     \
    extern "C" __global__ void __launch_bounds__(MAX_WARPS* LANES, 1) \
        name(const __grid_constant__ Launch<MESSAGES> launch)

KERNEL(few_messages_packets, FEW) { pass<Packets>(launch); }
KERNEL(many_messages_packets, MANY) { pass<Packets>(launch); }
KERNEL(few_messages_lines, FEW) { pass<Lines>(launch); }
KERNEL(many_messages_lines, MANY) { pass<Lines>(launch); }
KERNEL(few_messages_quads, FEW) { pass<Quads>(launch); }
KERNEL(many_messages_quads, MANY) { pass<Quads>(launch); }
