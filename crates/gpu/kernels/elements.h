// The types of elements, and how words of them are reduced: in the order of the ranks, floats of
// less than 32 bits in 32, with the results of `crates/compute` for NaN and zeros.
#pragma once

#include "machine.h"

// A type that is in memory as `Bits`, and computed as `Number`.
template <class B, class N>
struct Integer {
    static const bool IN_PAIRS = false;
    static const bool IS_INTEGER = true;
    typedef B Bits;
    typedef N Number;
    DEVICE static Number unpack(Bits bits) { return (Number)bits; }
    DEVICE static Bits pack(Number number) { return (Bits)number; }
    DEVICE static Number sum(Number a, Number b) { return (Number)((Bits)a + (Bits)b); }
    DEVICE static Number prod(Number a, Number b) { return (Number)((Bits)a * (Bits)b); }
    DEVICE static Number larger(Number a, Number b) { return a > b ? a : b; }
    DEVICE static Number smaller(Number a, Number b) { return a < b ? a : b; }
};

// NaN wins, and +0 is larger than -0. For `float`, machine.h has a GPU's own instructions.
template <class Number>
DEVICE Number larger_of(Number a, Number b) {
    Number larger = a > b || (a == b && as_bits(a) < as_bits(b)) ? a : b;
    return a != a ? a : b != b ? b : larger;
}
template <class Number>
DEVICE Number smaller_of(Number a, Number b) {
    Number smaller = a < b || (a == b && as_bits(a) > as_bits(b)) ? a : b;
    return a != a ? a : b != b ? b : smaller;
}

template <class B, class N>
struct Float {
    static const bool IN_PAIRS = false;
    static const bool IS_INTEGER = false;
    typedef B Bits;
    typedef N Number;
    DEVICE static bool is_nan(Number a) { return a != a; }
    DEVICE static Number sum(Number a, Number b) { return a + b; }
    DEVICE static Number prod(Number a, Number b) { return product(a, b); }
    DEVICE static Number larger(Number a, Number b) { return larger_of(a, b); }
    DEVICE static Number smaller(Number a, Number b) { return smaller_of(a, b); }
};

struct Single : Float<u32, float> {
    DEVICE static float unpack(u32 bits) { return as_float(bits); }
    DEVICE static u32 pack(float number) {
        return is_nan(number) ? 0x7fc00000 : as_bits(number);
    }
};

struct Double : Float<u64, double> {
    DEVICE static double unpack(u64 bits) { return as_double(bits); }
    DEVICE static u64 pack(double number) {
        return is_nan(number) ? 0x7ff8000000000000 : as_bits(number);
    }
};

// Ties go to even. A carry into the exponent is right, up to infinity.
struct Brain : Float<u16, float> {
    DEVICE static float unpack(u16 bits) { return as_float((u32)bits << 16); }
    DEVICE static u16 pack(float number) {
        u32 bits = as_bits(number);
        u32 rounded = bits + 0x7fff + (bits >> 16 & 1);
        return (u16)((is_nan(number) ? 0x7fc00000 : rounded) >> 16);
    }

    // Two elements are packed at once.
    static const bool IN_PAIRS = true;
    DEVICE static u32 pack_two(float low, float high) { return to_brains<Brain>(low, high); }
};

// A format with fewer bits: those of the mantissa, the exponent's bias, the sign, the magnitude that
// is too large, the smallest that is no number, and NaN. `small_float.rs` explains it.
template <class B, u32 MANTISSA, u32 BIAS, u32 SIGN, u32 OVERFLOW, u32 SPECIAL, u32 NAN>
struct Small : Float<B, float> {
    static const u32 SHIFT = 23 - MANTISSA;

    DEVICE static float unpack(B bits) {
        u32 magnitude = bits & (SIGN - 1);
        u32 shifted = magnitude << SHIFT;
        // The factor is a power of two, so this is exact, for subnormals too.
        u32 number = as_bits(as_float(shifted) * as_float((254 - BIAS) << 23));
        u32 wide = magnitude >= SPECIAL ? shifted | 0x7f800000 : number;
        return as_float(wide | (bits & SIGN ? 0x80000000 : 0));
    }

    DEVICE static B pack(float number) {
        u32 bits = as_bits(number), magnitude = bits & 0x7fffffff;
        u32 half = (1u << (SHIFT - 1)) - 1 + (magnitude >> SHIFT & 1);
        u32 normal = ((magnitude + half) >> SHIFT) - ((127 - BIAS) << MANTISSA);
        normal = normal < OVERFLOW ? normal : OVERFLOW;
        // The sum's last place is that of the smallest subnormal.
        const u32 ANCHOR = (127 + 24 - BIAS - MANTISSA) << 23;
        u32 subnormal = as_bits(as_float(magnitude) + as_float(ANCHOR)) - ANCHOR;
        u32 finite = magnitude < (128 - BIAS) << 23 ? subnormal : normal;
        bool nan = magnitude > 0x7f800000 || finite == NAN;
        return (B)(nan ? NAN : finite | (bits >> 31 ? SIGN : 0));
    }
};

struct Half : Small<u16, 10, 15, 0x8000, 0x7c00, 0x7c00, 0x7e00> {
    typedef Small<u16, 10, 15, 0x8000, 0x7c00, 0x7c00, 0x7e00> Software;
    DEVICE static float unpack(u16 bits) { return from_half<Software>(bits); }
    static const bool IN_PAIRS = true;
    DEVICE static u32 pack_two(float low, float high) { return to_halves<Software>(low, high); }
};

typedef Integer<u8, signed char> I8;
typedef Integer<u8, u8> U8;
typedef Integer<u32, int> I32;
typedef Integer<u32, u32> U32;
typedef Integer<u64, long long> I64;
typedef Integer<u64, u64> U64;
typedef Half F16;
typedef Single F32;
typedef Double F64;
typedef Brain Bf16;
typedef Small<u8, 3, 7, 0x80, 0x7f, 0x7f, 0x7f> F8E4M3;
typedef Small<u8, 2, 15, 0x80, 0x7c, 0x7c, 0x7f> F8E5M2;

// The elements of a word.
template <class Type>
struct Elements {
    typedef typename Type::Number Number;
    static const u32 COUNT = 8 / sizeof(typename Type::Bits);
    static const u32 BITS = 64 / COUNT;
    Number of[COUNT];

    DEVICE explicit Elements(u64 word) {
        UNROLL for (u32 i = 0; i < COUNT; i++) {
            of[i] = Type::unpack((typename Type::Bits)(word >> (BITS * i % 64)));
        }
    }

    DEVICE void combine(u32 how, const Elements& other) {
        switch (how) {
        case SUM: UNROLL for (u32 i = 0; i < COUNT; i++) of[i] = Type::sum(of[i], other.of[i]); break;
        case PROD: UNROLL for (u32 i = 0; i < COUNT; i++) of[i] = Type::prod(of[i], other.of[i]); break;
        case MAX: UNROLL for (u32 i = 0; i < COUNT; i++) of[i] = Type::larger(of[i], other.of[i]); break;
        default: UNROLL for (u32 i = 0; i < COUNT; i++) of[i] = Type::smaller(of[i], other.of[i]); break;
        }
    }

    DEVICE void scale(Number factor) {
        UNROLL for (u32 i = 0; i < COUNT; i++) of[i] = Type::prod(of[i], factor);
    }

    // Integers, towards zero.
    DEVICE void divide(u32 divisor) {
        UNROLL for (u32 i = 0; i < COUNT; i++) of[i] = (Number)(of[i] / (Number)divisor);
    }

    DEVICE u64 word() const {
        if constexpr (Type::IN_PAIRS) {
            return Type::pack_two(of[0], of[1]) | (u64)Type::pack_two(of[2], of[3]) << 32;
        }
        u64 word = 0;
        UNROLL for (u32 i = 0; i < COUNT; i++) word |= (u64)Type::pack(of[i]) << (BITS * i % 64);
        return word;
    }
};

// Calls the function of the type that has this number.
template <template <class> class Of, class... Arguments>
DEVICE auto with_type(u32 type, Arguments&... arguments) {
    switch (type) {
    case INT8: return Of<I8>::call(arguments...);
    case UINT8: return Of<U8>::call(arguments...);
    case INT32: return Of<I32>::call(arguments...);
    case UINT32: return Of<U32>::call(arguments...);
    case INT64: return Of<I64>::call(arguments...);
    case UINT64: return Of<U64>::call(arguments...);
    case HALF: return Of<F16>::call(arguments...);
    case FLOAT: return Of<F32>::call(arguments...);
    case DOUBLE: return Of<F64>::call(arguments...);
    case BFLOAT16: return Of<Bf16>::call(arguments...);
    case FLOAT8E4M3: return Of<F8E4M3>::call(arguments...);
    default: return Of<F8E5M2>::call(arguments...);
    }
}

// The factor that all ranks share, which is rounded to nearest.
template <class Type>
DEVICE typename Type::Number shared_factor(const Call& call) {
    return (typename Type::Number)as_double(call.factor);
}

template <class Type>
struct Reduced {
    DEVICE static u64 call(const Call& call, u32 ranks, const u64* words) {
        Elements<Type> total = operand(call, words[0]);
        ROLLED for (u32 rank = 1; rank < ranks; rank++) {
            total.combine(call.combine, operand(call, words[rank]));
        }
        if constexpr (Type::IS_INTEGER) {
            if (call.divisor > 1) {
                total.divide(call.divisor);
            }
        }
        return total.word();
    }

    DEVICE static Elements<Type> operand(const Call& call, u64 word) {
        Elements<Type> elements(word);
        if constexpr (!Type::IS_INTEGER) {
            if (call.scaling == SHARED) {
                elements.scale(shared_factor<Type>(call));
            }
        }
        return elements;
    }
};

// The elements of a word of each rank, as one.
NOT_INLINED u64 reduced_word(const Call& call, u32 ranks, const u64* words) {
    return with_type<Reduced>(call.type, call, ranks, words);
}

template <class Type>
struct Scaled {
    DEVICE static u64 call(u64 factor, u64 word) {
        Elements<Type> elements(word);
        elements.scale(Type::unpack((typename Type::Bits)factor));
        return elements.word();
    }
};

template <class Type>
struct Loaded {
    DEVICE static u64 call(u64 address) { return *(const typename Type::Bits*)address; }
};

// The bits of an element in memory.
NOT_INLINED u64 element_at(u32 type, u64 address) { return with_type<Loaded>(type, address); }

DEVICE bool is_own(u32 scaling) { return scaling == OWN || scaling == OWN_IN_MEMORY; }
// The bits of this rank's factor.
DEVICE u64 own_factor(u32 type, u32 scaling, u64 factor) {
    return scaling == OWN_IN_MEMORY ? element_at(type, factor) : factor;
}

// The elements of a word times a factor, rounded.
NOT_INLINED u64 scaled_word(u32 type, u64 factor, u64 word) {
    return with_type<Scaled>(type, factor, word);
}
