/*
 * Values that all types have, and of which they have the sums, products and means of all ranks,
 * too: they repeat after three elements, and are small.
 */
#ifndef VALUES_H
#define VALUES_H

#include "ranks.h"

#include <math.h>

static const size_t sizes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

/* A number of a type of floats with these numbers of bits of exponent and mantissa. */
static inline uint64_t as_float(double value, int exponent_bits, int mantissa_bits)
{
    int exponent;
    double fraction = frexp(value, &exponent);
    if (value == 0) {
        return 0;
    }
    uint64_t biased = (uint64_t)(exponent - 1 + (1 << (exponent_bits - 1)) - 1);
    uint64_t mantissa = (uint64_t)((fraction * 2 - 1) * (double)(1ULL << mantissa_bits));
    return biased << mantissa_bits | mantissa;
}

static inline void encode(void *to, ncclDataType_t type, double value)
{
    uint64_t bits = (uint64_t)value;
    switch (type) {
    case ncclFloat16: bits = as_float(value, 5, 10); break;
    case ncclFloat32: bits = as_float(value, 8, 23); break;
    case ncclFloat64: bits = as_float(value, 11, 52); break;
    case ncclBfloat16: bits = as_float(value, 8, 7); break;
    case ncclFloat8e4m3: bits = as_float(value, 4, 3); break;
    case ncclFloat8e5m2: bits = as_float(value, 5, 2); break;
    default: break;
    }
    memcpy(to, &bits, sizes[type]);
}

/* Element `i` of a rank's values. */
static inline double value(int of, size_t i) { return (double)(((size_t)of + i) % 3); }

/* Element `i` of what all ranks have together; any other operation is a sum with a factor of 2. */
static inline double combined(ncclRedOp_t op, size_t i)
{
    double sum = 0, product = 1, most = 0, least = 2;
    for (int of = 0; of < size; of++) {
        double one = value(of, i);
        sum += one;
        product *= one;
        most = fmax(most, one);
        least = fmin(least, one);
    }
    switch (op) {
    case ncclSum: return sum;
    case ncclProd: return product;
    case ncclMax: return most;
    case ncclMin: return least;
    case ncclAvg: return sum / size;
    default: return 2 * sum;
    }
}

enum { RESULT = -1 };

/* Elements from `first` on of what a rank has, or all together. */
static inline void fill(void *to, ncclDataType_t type, int of, ncclRedOp_t op, size_t first,
                        size_t count)
{
    unsigned char elements[3][8];
    for (size_t i = 0; i < 3; i++) {
        encode(elements[i], type, of == RESULT ? combined(op, first + i) : value(of, first + i));
    }
    for (size_t i = 0; i < count; i++) {
        memcpy((char *)to + i * sizes[type], elements[i % 3], sizes[type]);
    }
}

static inline void expect(const void *seen, ncclDataType_t type, int of, ncclRedOp_t op,
                          size_t first, size_t count, const char *what)
{
    void *expected = malloc(count * sizes[type] + 1);
    fill(expected, type, of, op, first, count);
    if (memcmp(seen, expected, count * sizes[type]) != 0) {
        fprintf(stderr, "rank %d of %d, type %d, operation %d, %zu elements\n", rank, size, type,
                op, count);
        require(0, what);
    }
    free(expected);
}

#endif
