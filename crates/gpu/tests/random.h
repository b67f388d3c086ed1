// Numbers that look random, and are the same in each run.
#pragma once

#include "../kernels/layout.h"

inline u64 scramble(u64 x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

// Numbers of a seed, one after the other.
struct Random {
    u64 state;

    explicit Random(u64 seed) : state(scramble(seed)) {}

    u64 below(u64 limit) {
        state = scramble(state);
        return state % limit;
    }
};
