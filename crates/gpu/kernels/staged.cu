// The kernel of operations by way of the host.
//
// It uses no headers of the CUDA toolkit: crates/cuda/kernels/build.sh compiles it.

#include "staged.h"

// Three CTAs fit on a multiprocessor, so that a thread has at most 40 registers: it takes few from what runs beside it.
extern "C" __global__ void __launch_bounds__(MAX_WARPS* LANES, 3) staged(const __grid_constant__ Passing passing) {
    pass(passing);
}
