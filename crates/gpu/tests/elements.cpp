// The kernels' arithmetic, for a test that compares it with Rust's.
#include "../kernels/reduction.h"

namespace {

template <u32 RANKS>
void reduce_batches(const Call& call, u32 ranks, u64* words) {
    Batch<Packets> batches[RANKS] = {};
    for (u32 i = 0; i < ranks * HELD; i++) {
        batches[i / HELD].of[i % HELD].word[0] = words[i];
    }
    reduce(call, ranks, batches);
    for (u32 i = 0; i < HELD; i++) {
        words[i] = batches[0].of[i].word[0];
    }
}

}  // namespace

// Reduces a batch of packets' words of each rank into that of the first; with a factor that all
// share, if it is not 0.
extern "C" void reduce(u32 type, u32 combine, u32 divisor, double factor, u32 ranks, u64* words) {
    Call call = {};
    call.type = type;
    call.combine = combine;
    call.divisor = divisor;
    call.scaling = factor != 0 ? SHARED : PLAIN;
    call.factor = as_bits(factor);
    if (ranks == 2) {
        reduce_batches<2>(call, ranks, words);
    } else {
        reduce_batches<MAX_RANKS>(call, ranks, words);
    }
}

extern "C" u64 scale(u32 type, u64 factor, u64 word) { return scaled_word(type, factor, word); }
