// The kernels of operations and of messages by way of the host.
//
// They use no headers of the CUDA toolkit: crates/cuda/kernels/build.sh compiles them.

#include "staged.h"

// Three CTAs fit on a multiprocessor, so that a thread has at most 40 registers, and other kernels beside it get
// enough.
#define KERNEL extern "C" __global__ void __launch_bounds__(MAX_WARPS* LANES, 3)

KERNEL staged(const __grid_constant__ Passing passing) { pass(Passage(passing)); }
KERNEL staged_messages(const __grid_constant__ Posting posting) { pass(Mail(posting)); }
