// The kernels: of each protocol, the two ways to reduce, and the one that only moves data; and, for long
// operations of two ranks, those in which one leads.
//
// They use no headers of the CUDA toolkit: crates/cuda/kernels/build.sh compiles them.

#include "led.h"

#define KERNEL(name)                                               \
    extern "C" __global__ void __launch_bounds__(MAX_WARPS* LANES, 1) \
        name(const __grid_constant__ Arguments arguments)

KERNEL(one_shot_packets) { exchange<Packets, IntoOne>(arguments); }
KERNEL(one_shot_lines) { exchange<Lines, IntoOne>(arguments); }
KERNEL(two_shots_packets) { TwoShots<Packets>(arguments).run(); }
KERNEL(two_shots_lines) { TwoShots<Lines>(arguments).run(); }
KERNEL(side_by_side_packets) { exchange<Packets, SideBySide>(arguments); }
KERNEL(side_by_side_lines) { exchange<Lines, SideBySide>(arguments); }
KERNEL(led_reduction) { LedExchange<IntoOne>(arguments).run(); }
KERNEL(led_side_by_side) { LedExchange<SideBySide>(arguments).run(); }
