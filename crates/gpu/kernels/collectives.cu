// The kernels: for each protocol, two that reduce and one that only moves data; for long operations
// of two ranks, kernels in which one rank leads; and for the most common sums of two ranks, kernels
// that can do nothing else, since a GPU begins these faster. The latter exchange the same data as
// the other kernels of their protocol.
//
// They use no headers of the CUDA toolkit: crates/cuda/kernels/build.sh compiles them.
//
// A kernel may be launched so that it starts before the kernel ahead of it in the stream has ended.
// Each thread waits for that end before it touches any memory but its own arguments. So a kernel
// ends after all kernels ahead of it, the user's included, and sees everything that they wrote, as
// does a kernel behind it that waits in the same way: a rank's operations run one after the other
// as if launched plainly. None of these kernels lets the next one start early
// (`griddepcontrol.launch_dependents`): that one starts when all CTAs of this kernel have ended. So
// the next kernel takes no room that this one needs. If it is the user's and touches memory without
// waiting, no kernel runs any more that has not itself waited for all kernels before it. To let it
// start while the last batches are on their way was no faster.

#include "led.h"
#include "pinned.h"

#define KERNEL(name, ...)                                             \
    extern "C" __global__ void __launch_bounds__(MAX_WARPS* LANES, 1) \
        name(const __grid_constant__ Arguments arguments) {           \
        wait_for_last_kernel();                                       \
        __VA_ARGS__;                                                  \
    }

KERNEL(one_shot_packets, exchange<Packets, IntoOne>(arguments))
KERNEL(one_shot_lines, exchange<Lines, IntoOne>(arguments))
KERNEL(two_shots_packets, TwoShots<Packets>(arguments).run())
KERNEL(two_shots_lines, TwoShots<Lines>(arguments).run())
KERNEL(side_by_side_packets, exchange<Packets, SideBySide>(arguments))
KERNEL(side_by_side_lines, exchange<Lines, SideBySide>(arguments))
KERNEL(one_shot_quads, exchange<Quads, IntoOne>(arguments))
KERNEL(two_shots_quads, TwoShots<Quads>(arguments).run())
KERNEL(side_by_side_quads, exchange<Quads, SideBySide>(arguments))
KERNEL(led_reduction, LedExchange<IntoOne>(arguments).run())
KERNEL(led_side_by_side, LedExchange<SideBySide>(arguments).run())

KERNEL(sum_packets_f16, Exchange<Packets, IntoSum<F16>, 2>(arguments).run())
KERNEL(sum_packets_f32, Exchange<Packets, IntoSum<F32>, 2>(arguments).run())
KERNEL(sum_packets_bf16, Exchange<Packets, IntoSum<Bf16>, 2>(arguments).run())
KERNEL(sum_lines_f16, Exchange<Lines, IntoSum<F16>, 2>(arguments).run())
KERNEL(sum_lines_f32, Exchange<Lines, IntoSum<F32>, 2>(arguments).run())
KERNEL(sum_lines_bf16, Exchange<Lines, IntoSum<Bf16>, 2>(arguments).run())
