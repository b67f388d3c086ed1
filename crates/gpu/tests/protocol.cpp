// Runs the kernels' protocols with threads: each plays a warp of a rank.
//
//   protocol SEED RANKS OPERATIONS FIRST_ROUND random operations of all kinds protocol late |
//   shorter | abort waits that end protocol ended a rank whose waits have ended before protocol
//   slow waits that are short, in an operation that is not protocol mismatch ranks that do not
//   agree protocol pinned ... the same through pinned memory
#include <pthread.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <thread>

#include "../kernels/pinned.h"
#include "world.h"

namespace {

// Whether what would go in lines goes in quads.
bool pinned = false;

const u32 CTAS = 2, WARPS_OF_CTA = 2;

void perform_led(Kind kind, const Arguments& arguments) {
    if (reduces(kind)) {
        LedExchange<IntoOne>(arguments).run();
    } else {
        LedExchange<SideBySide>(arguments).run();
    }
}

template <class Protocol>
void perform(Kind kind, const Arguments& arguments) {
    if (kind == TWO_SHOTS) {
        TwoShots<Protocol>(arguments).run();
    } else if (reduces(kind)) {
        exchange<Protocol, IntoOne>(arguments);
    } else {
        exchange<Protocol, SideBySide>(arguments);
    }
}

typedef void Way(Kind, const Arguments&);
Way* way_of(const Operation& operation) {
    if (pinned && operation.lines) {
        return perform<Quads>;
    }
    return operation.is_led ? perform_led : operation.lines ? perform<Lines> : perform<Packets>;
}

// Where all warps of a rank wait for each other, as kernels do that run one after the other.
struct Boundary {
    pthread_barrier_t barrier;

    explicit Boundary(u32 warps) { pthread_barrier_init(&barrier, nullptr, warps); }
    ~Boundary() { pthread_barrier_destroy(&barrier); }
    void wait() { pthread_barrier_wait(&barrier); }
};

// What a rank calls of the operations of all.
typedef std::function<Operation(u32 rank, u32 number)> Calls;

// Runs some operations on all ranks but one, which may be none of them.
void run(World& world, u32 count, const Calls& calls, u64 seed, u32 absent) {
    std::vector<std::thread> threads;
    std::deque<Boundary> boundaries;
    for (u32 rank = 0; rank < world.ranks; rank++) {
        boundaries.emplace_back(CTAS * WARPS_OF_CTA);
    }
    u32 slow = (u32)(scramble(seed) % world.ranks);
    for (u32 rank = 0; rank < world.ranks; rank++) {
        for (u32 warp = 0; warp < CTAS * WARPS_OF_CTA && rank != absent; warp++) {
            threads.emplace_back([&, rank, warp] {
                here = {warp % CTAS, warp / CTAS, WARPS_OF_CTA, CTAS, scramble(seed ^ rank << 8 ^ warp),
                        rank == slow ? world.pauses : 200000u, world.pause};
                for (u32 number = 0; number < count; number++) {
                    Operation operation = calls(rank, number);
                    Call call = call_of(operation, number, world.ranks, rank, world.all[rank]);
                    Arguments arguments = {world.member(rank), call};
                    // The claims of one operation are over before the next one's. Other operations
                    // need no such end.
                    if (operation.is_led || (number > 0 && calls(rank, number - 1).is_led)) {
                        boundaries[rank].wait();
                    }
                    way_of(operation)(operation.kind, arguments);
                }
            });
        }
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
}

void run_all(World& world, const std::vector<Operation>& operations, u64 seed) {
    run(world, (u32)operations.size(), [&](u32, u32 number) { return operations[number]; }, seed,
        world.ranks);
}

int check(World& world, const std::vector<Operation>& operations) {
    for (u32 rank = 0; rank < world.ranks; rank++) {
        Rank& own = world.all[rank];
        for (u32 number = 0; number < operations.size(); number++) {
            const Operation& operation = operations[number];
            std::vector<u8> wanted = expected(operation, number, world.ranks, rank);
            const u8* output = call_of(operation, number, world.ranks, rank, own).output;
            for (u64 at = 0; at < wanted.size(); at++) {
                if (output[at] != wanted[at]) {
                    printf("rank %u, operation %u (kind %d, lines %d, in place %d, type %u, combine %u, "
                           "%llu bytes): byte %llu is %u instead of %u\n",
                           rank, number, operation.kind, operation.lines, operation.in_place,
                           operation.type, operation.combine, operation.bytes, at, output[at],
                           wanted[at]);
                    return 1;
                }
            }
            const std::vector<u8>& buffer = own.outputs[number];
            if (!operation.in_place && (output == nullptr ? buffer[0] : output[wanted.size()]) != 0xee) {
                printf("operation %u: written behind the end\n", number);
                return 1;
            }
        }
        if (own.failure.what != 0) {
            printf("rank %u reports %llx\n", rank, own.failure.what);
            return 1;
        }
    }
    return 0;
}

// A rank that sends something every 100 ms or so, for longer than the peers' patience.
int take_long() {
    World world(2, 0, 2000);
    world.pause = 100'000;
    world.pauses = 50;
    std::vector<Operation> operations = {
        {ONE_SHOT, false, false, UINT32, SUM, 1, 40'000, 0, 0, false}};
    prepare(world, operations);
    run_all(world, operations, 1);
    return check(world, operations);
}

bool has_failed(const Rank& rank, Reason reason, u32 peer) {
    u64 what = rank.failure.what;
    bool is_right = (what & 0xff) == reason && (what >> 8 & 0xff) == peer && rank.state.failed == 1;
    if (!is_right) {
        printf("reported %llx instead of reason %u, peer %u\n", what, reason, peer);
    }
    return is_right;
}

// A rank that does not come. After two seconds, a program ends one rank's wait, or shortens all.
int wait_in_vain(bool shorten, bool abort) {
    const u32 ABSENT = 2, ABORTS = 1;
    for (bool lines : {false, true}) {
        World world(4, 0, shorten ? 600'000 : abort ? 4000 : 2000);
        Operation operation = {ONE_SHOT, lines, false, UINT32, SUM, 1, 4000, 0, 0, false};
        std::vector<Operation> operations(3, operation);
        prepare(world, operations);
        std::thread ends([&] {
            sleep(2);
            __atomic_store_n(&world.all[ABORTS].control.abort, abort, __ATOMIC_RELAXED);
            __atomic_store_n(&world.all[ABORTS].state.ended, abort, __ATOMIC_RELAXED);
            for (Rank& rank : world.all) {
                if (shorten) {
                    __atomic_store_n(&rank.control.patience, 2'000'000'000, __ATOMIC_RELAXED);
                }
            }
        });
        run(world, 3, [&](u32, u32) { return operation; }, 1, ABSENT);
        ends.join();
        for (u32 rank = 0; rank < world.ranks; rank++) {
            const Rank& own = world.all[rank];
            Reason reason = abort && rank == ABORTS ? ABORTED : LATE;
            if (rank != ABSENT && (!has_failed(own, reason, ABSENT) || own.failure.what >> 32 != 1)) {
                return 1;
            }
            if (rank != ABSENT && own.failure.patience != own.control.patience) {
                printf("rank %u has waited for %llu ns\n", rank, own.failure.patience);
                return 1;
            }
            if (own.outputs[0][20] != 0xee) {
                printf("rank %u has a result\n", rank);
                return 1;
            }
        }
    }
    return 0;
}

// A rank that was told to stop before it begins writes nothing, and sends nothing.
int begin_after_the_end() {
    const u32 STOPPED = 1;
    for (u32 kind = 0; kind < KINDS; kind++) {
        for (bool lines : {false, true}) {
            for (bool is_led : {false, true}) {
                if (is_led && (!lines || kind == TWO_SHOTS)) {
                    continue;
                }
                World world(2, 0, 200);
                Operation operation = {(Kind)kind, lines, false, UINT32, SUM, 1, 4000, 0, 0, false, is_led};
                operation.root = kind == BROADCAST || kind == SCATTER ? 0 : STOPPED;
                prepare(world, {operation, operation});
                world.all[STOPPED].state.ended = 1;
                run_all(world, {operation, operation}, 1);
                const Rank& own = world.all[STOPPED];
                auto is_untouched = [](u8 byte) { return byte == 0xee; };
                bool is_right = has_failed(world.all[0], LATE, STOPPED) && own.failure.what == 0;
                for (auto& output : own.outputs) {
                    is_right &= std::all_of(output.begin(), output.end(), is_untouched);
                }
                if (!is_right) {
                    printf("kind %u, lines %d, led %d\n", kind, lines, is_led);
                    return 1;
                }
            }
        }
    }
    return 0;
}

// A rank that calls something else after a few operations: all know, and from whom.
int disagree() {
    const u32 COMMON = 5, ODD = 1;
    Operation usual = {ONE_SHOT, false, false, UINT32, SUM, 1, 4000, 0, 0, false};
    std::vector<Operation> others(6, usual);
    others[0].bytes = 0;
    others[1].bytes = 12'000;
    others[2].lines = true;
    others[2].kind = ALL_GATHER;
    others[3].kind = TWO_SHOTS;
    others[4].kind = BROADCAST;
    others[5].kind = REDUCE_SCATTER;
    for (bool swapped : {false, true}) {
        for (const Operation& other : others) {
            World world(3, 0, 120'000);
            std::vector<Operation> operations(COMMON + 2, other.bytes > usual.bytes ? other : usual);
            prepare(world, operations);
            auto is_odd = [&](u32 rank) { return (rank == ODD) != swapped; };
            auto calls = [&](u32 rank, u32 number) {
                return number < COMMON || is_odd(rank) ? usual : other;
            };
            run(world, COMMON + 2, calls, 1, world.ranks);
            for (u32 rank = 0; rank < world.ranks; rank++) {
                const Failure& failure = world.all[rank].failure;
                u32 peer = failure.what >> 8 & 0xff;
                auto signed_by = [&](u32 of) {
                    Operation called = calls(of, COMMON);
                    return call_of(called, COMMON, world.ranks, of, world.all[of]).words[1];
                };
                bool is_right = peer < world.ranks && (rank == ODD) != (peer == ODD) &&
                                has_failed(world.all[rank], MISMATCH, peer) &&
                                failure.operation == COMMON + 1 &&
                                failure.own[1] == signed_by(rank) &&
                                failure.theirs[1] == signed_by(peer) && failure.own[0] == COMMON &&
                                failure.theirs[0] == COMMON;
                if (!is_right) {
                    printf("rank %u, instead of kind %d: %llx, operation %llu\n", rank, other.kind,
                           failure.what, failure.operation);
                    return 1;
                }
            }
        }
    }
    return 0;
}

int scenario(const char* name) {
    auto is = [=](const char* other) { return strcmp(name, other) == 0; };
    return is("slow")       ? take_long()
           : is("mismatch") ? disagree()
           : is("ended")    ? begin_after_the_end()
                            : wait_in_vain(is("shorter"), is("abort"));
}

}  // namespace

int main(int count, char** arguments) {
    if (strcmp(arguments[1], "pinned") == 0) {
        pinned = true;
        count -= 1, arguments += 1;
    }
    if (count == 2) {
        return scenario(arguments[1]);
    }
    u64 seed = strtoull(arguments[1], nullptr, 0), first_round = strtoull(arguments[4], nullptr, 0);
    u32 ranks = (u32)atoi(arguments[2]);
    World world(ranks, first_round, 120'000);
    std::vector<Operation> operations;
    for (int i = 0; i < atoi(arguments[3]); i++) {
        operations.push_back(random_operation(scramble(seed) + i, ranks, first_round));
    }
    prepare(world, operations);
    run_all(world, operations, seed);
    return check(world, operations);
}
