// The kernels' arithmetic, for a test that compares it with Rust's.
#include "../kernels/elements.h"

namespace {

template <class Type>
struct Reduced {
    static u64 call(u32 combine, u32 divisor, u32 ranks, const u64* words) {
        Elements<Type> total(words[0]);
        for (u32 rank = 1; rank < ranks; rank++) {
            total.combine(combine, Elements<Type>(words[rank]));
        }
        return total.word(divisor);
    }
};

}  // namespace

// Reduces a word of each rank.
extern "C" u64 reduce(u32 type, u32 combine, u32 divisor, u32 ranks, const u64* words) {
    return with_type<Reduced>(type, combine, divisor, ranks, words);
}

extern "C" u64 scale(u32 type, u64 factor, u64 word) { return scaled_word(type, factor, word); }
