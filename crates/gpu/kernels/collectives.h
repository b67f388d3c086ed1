// The operations, as what each warp does in them.
#pragma once

#include "elements.h"
#include "session.h"

// Reduces the batches of all ranks into that of the first.
template <class Type, class Protocol>
DEVICE void reduce_as(const Arguments& arguments, Batch<Protocol> (&batches)[MAX_RANKS]) {
    PAIRED for (u32 i = 0; i < HELD * Protocol::OF_LANE; i++) {
        u32 held = i / Protocol::OF_LANE, word = i % Protocol::OF_LANE;
        Elements<Type> total(batches[0].of[held].word[word]);
        ROLLED for (u32 rank = 1; rank < arguments.member.ranks; rank++) {
            total.combine(arguments.call.combine, Elements<Type>(batches[rank].of[held].word[word]));
        }
        batches[0].of[held].word[word] = total.word(arguments.call.divisor);
    }
}

// All types are in one kernel: each has few instructions of its own, and what a branch costs is lost
// in a wait.
template <class Protocol>
DEVICE void reduce(const Arguments& arguments, Batch<Protocol> (&batches)[MAX_RANKS]) {
    switch (arguments.call.type) {
    case INT8: return reduce_as<I8>(arguments, batches);
    case UINT8: return reduce_as<U8>(arguments, batches);
    case INT32: return reduce_as<I32>(arguments, batches);
    case UINT32: return reduce_as<U32>(arguments, batches);
    case INT64: return reduce_as<I64>(arguments, batches);
    case UINT64: return reduce_as<U64>(arguments, batches);
    case HALF: return reduce_as<F16>(arguments, batches);
    case FLOAT: return reduce_as<F32>(arguments, batches);
    case DOUBLE: return reduce_as<F64>(arguments, batches);
    case BFLOAT16: return reduce_as<Bf16>(arguments, batches);
    case FLOAT8E4M3: return reduce_as<F8E4M3>(arguments, batches);
    default: return reduce_as<F8E5M2>(arguments, batches);
    }
}

// What goes to a rank.
DEVICE Span<const u8> source(const Call& call, u32 rank) {
    return {call.input + rank * call.stride, call.bytes};
}

// Writes the sum of what all ranks have for this one.
template <class Protocol>
struct IntoOne {
    DEVICE static void take(const Arguments& arguments, const Session<Protocol>& session, u64 batch,
                            Batch<Protocol> (&batches)[MAX_RANKS]) {
        reduce(arguments, batches);
        session.write({arguments.call.output, arguments.call.bytes}, batch, batches[0]);
    }
};

// Writes what each rank has for this one, side by side.
template <class Protocol>
struct SideBySide {
    DEVICE static void take(const Arguments& arguments, const Session<Protocol>& session, u64 batch,
                            Batch<Protocol> (&batches)[MAX_RANKS]) {
        const Call& call = arguments.call;
        ROLLED for (u32 rank = 0; rank < arguments.member.ranks; rank++) {
            session.write({call.output + rank * call.bytes, call.bytes}, batch, batches[rank]);
        }
    }
};

// Each rank sends something to each other, and takes what it receives: all_reduce by one shot,
// reduce_scatter, all_gather and all_to_all. A batch is written to the output only after all that
// was in the same place of the input has been read, by the same lane.
template <class Protocol, class Take>
DEVICE void exchange(const Arguments& arguments) {
    const Member& member = arguments.member;
    const Call& call = arguments.call;
    Session<Protocol> session(member);
    u64 batches = session.share(words_in(call.bytes));
    // What is sent next is on its way from memory while other things are waited for.
    Batch<Protocol> next = session.read(source(call, 0), 0);
    if (batches == 0 || session.has_failed()) {
        return;
    }
    for (u64 turn = 0; turn < batches + AHEAD; turn++) {
        if (turn < batches) {
            Batch<Protocol> batch = next;
            next = session.read(source(call, 0), turn + 1);
            ROLLED for (u32 peer = 0; peer < member.ranks; peer++) {
                if (peer != 0 && call.stride != 0) {
                    batch = session.read(source(call, peer), turn);
                }
                if (peer != member.rank) {
                    session.send(peer, turn, batch);
                }
            }
        }
        if (turn >= AHEAD) {
            Batch<Protocol> received[MAX_RANKS];
            Batch<Protocol> own = session.read(source(call, member.rank), turn - AHEAD);
            if (!session.receive(turn - AHEAD, received)) {
                return;
            }
            received[member.rank] = own;
            Take::take(arguments, session, turn - AHEAD, received);
        }
    }
    session.finish(batches);
}

// Two rounds for each batch: in the first, each rank reduces its block of the buffer; in the second,
// it sends that to all.
template <class Protocol>
struct TwoShots {
    const Arguments& arguments;
    const Member& member;
    Session<Protocol> session;
    u64 block_bytes;
    u64 batches;

    DEVICE explicit TwoShots(const Arguments& arguments)
        : arguments(arguments), member(arguments.member), session(arguments.member) {
        u64 words = words_in(arguments.call.bytes);
        u64 block = (words + member.ranks - 1) / member.ranks;
        block_bytes = block * 8;
        batches = session.share(block);
    }

    // A rank's block; the last ones may be shorter.
    template <class Byte>
    DEVICE Span<Byte> block(Byte* start, u32 rank) const {
        u64 begin = rank * block_bytes, all = arguments.call.bytes;
        u64 rest = begin < all ? all - begin : 0;
        return {start + begin, rest < block_bytes ? rest : block_bytes};
    }

    // The rounds are in the order in which `run` sends: the first two reductions' batches, and then
    // a result and a batch in turns.
    DEVICE u64 round_to_reduce(u64 batch) const { return batch == 0 ? 0 : 2 * batch - 1; }
    DEVICE u64 round_of_result(u64 batch) const {
        return batch + (batch + 2 < batches ? batch + 2 : batches);
    }

    DEVICE void send(u64 batch) const {
        ROLLED for (u32 peer = 0; peer < member.ranks; peer++) {
            if (peer != member.rank) {
                Batch<Protocol> part = session.read(block(arguments.call.input, peer), batch);
                session.send(peer, round_to_reduce(batch), part);
            }
        }
    }

    DEVICE bool reduce_and_send(u64 batch) {
        Batch<Protocol> received[MAX_RANKS];
        Batch<Protocol> own = session.read(block(arguments.call.input, member.rank), batch);
        if (!session.receive(round_to_reduce(batch), received)) {
            return false;
        }
        received[member.rank] = own;
        reduce(arguments, received);
        ROLLED for (u32 peer = 0; peer < member.ranks; peer++) {
            if (peer != member.rank) {
                session.send(peer, round_of_result(batch), received[0]);
            }
        }
        session.write(block(arguments.call.output, member.rank), batch, received[0]);
        return true;
    }

    DEVICE bool take_results(u64 batch) {
        Batch<Protocol> received[MAX_RANKS];
        if (!session.receive(round_of_result(batch), received)) {
            return false;
        }
        ROLLED for (u32 rank = 0; rank < member.ranks; rank++) {
            if (rank != member.rank) {
                session.write(block(arguments.call.output, rank), batch, received[rank]);
            }
        }
        return true;
    }

    // At most three rounds have been sent and not received: `AHEAD`.
    DEVICE void run() {
        if (batches == 0 || session.has_failed()) {
            return;
        }
        for (u64 turn = 0; turn < batches + 2; turn++) {
            if (turn < batches) {
                send(turn);
            }
            if (turn >= 1 && turn - 1 < batches && !reduce_and_send(turn - 1)) {
                return;
            }
            if (turn >= 2 && !take_results(turn - 2)) {
                return;
            }
        }
        session.finish(2 * batches);
    }
};
