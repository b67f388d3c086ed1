// The kernels' arithmetic, for a test that compares it with Rust's.
#include "../kernels/elements.h"

namespace {

template <class Type>
u64 reduced(u32 combine, u32 divisor, u32 ranks, const u64* words) {
    Elements<Type> total(words[0]);
    for (u32 rank = 1; rank < ranks; rank++) {
        total.combine(combine, Elements<Type>(words[rank]));
    }
    return total.word(divisor);
}

}  // namespace

// Reduces a word of each rank.
extern "C" u64 reduce(u32 type, u32 combine, u32 divisor, u32 ranks, const u64* words) {
    switch (type) {
    case INT8: return reduced<I8>(combine, divisor, ranks, words);
    case UINT8: return reduced<U8>(combine, divisor, ranks, words);
    case INT32: return reduced<I32>(combine, divisor, ranks, words);
    case UINT32: return reduced<U32>(combine, divisor, ranks, words);
    case INT64: return reduced<I64>(combine, divisor, ranks, words);
    case UINT64: return reduced<U64>(combine, divisor, ranks, words);
    case HALF: return reduced<F16>(combine, divisor, ranks, words);
    case FLOAT: return reduced<F32>(combine, divisor, ranks, words);
    case DOUBLE: return reduced<F64>(combine, divisor, ranks, words);
    case BFLOAT16: return reduced<Bf16>(combine, divisor, ranks, words);
    case FLOAT8E4M3: return reduced<F8E4M3>(combine, divisor, ranks, words);
    default: return reduced<F8E5M2>(combine, divisor, ranks, words);
    }
}
