// A libnccl 2.28.9 for the fake GPUs. FAKE_NCCL=wrong corrupts an element, FAKE_NCCL=stuck never
// completes, and FAKE_NCCL=unregistered ignores registrations.
#include "device.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <tuple>
#include <utility>

enum { UNHANDLED_CUDA_ERROR = 1, INVALID_ARGUMENT = 4, INVALID_USAGE = 5 };
enum { PROD = 1, MAX, MIN, AVG, FIRST_MADE };
// The 8-bit floats are the last types.
enum { FLOAT8 = 10 };

struct Id {
    char internal[128];
};

// A rank.
struct Comm {
    std::string id;
    int rank, size, device;
    uint64_t calls;
    bool aborted;
    // The factors of the reductions that it created.
    std::map<unsigned, std::vector<char>> factors;
};

enum class Kind { AllReduce, Reduce, Broadcast, ReduceScatter, AllGather, AllToAll, Gather, Scatter };

struct Call {
    Kind kind;
    const char *from;
    char *to;
    size_t count;
    int type;
    unsigned op;
    int root;
};

// The same call of all ranks.
struct Collective {
    std::vector<Call> calls;
    std::vector<std::vector<char>> factors;
    int arrived;
    bool done;
    // A rank has aborted, and may have freed its buffers: the call is never performed.
    bool lost;
};

using Collectives = std::map<std::pair<std::string, uint64_t>, std::shared_ptr<Collective>>;
static Collectives &collectives = *new Collectives;

static size_t size_of(int type) {
    static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return sizes[type];
}

static bool fails(const char *how) {
    const char *fake = getenv("FAKE_NCCL");
    return fake && !strcmp(fake, how);
}

// A float with EXPONENT bits of exponent and FRACTION bits of fraction, for numbers that are not
// too large for it.
template <typename Bits, int EXPONENT, int FRACTION>
struct Small {
    static constexpr int BIAS = (1 << (EXPONENT - 1)) - 1;
    Bits bits;

    explicit Small(float number = 0) {
        int exponent;
        frexp(number, &exponent);
        exponent = number == 0 ? 1 - BIAS : std::max(exponent - 1, 1 - BIAS);
        // In units of the last place; a carry goes into the exponent, and numbers below the normal
        // ones have none.
        long units = lrint(ldexp(fabs(number), FRACTION - exponent));
        units += static_cast<long>(exponent + BIAS - 1) << FRACTION;
        bits = static_cast<Bits>(units | static_cast<long>(std::signbit(number)) << (EXPONENT + FRACTION));
    }
    operator float() const {
        int exponent = bits >> FRACTION & ((1 << EXPONENT) - 1), fraction = bits & ((1 << FRACTION) - 1);
        if (exponent) fraction |= 1 << FRACTION;
        double number = ldexp(fraction, std::max(exponent, 1) - BIAS - FRACTION);
        return static_cast<float>(bits >> (EXPONENT + FRACTION) ? -number : number);
    }
};

// `Wide` computes.
template <typename T, typename Wide = T>
static void reduce(const Collective &all, char *to, size_t first, size_t count) {
    const Call &own = all.calls[0];
    std::vector<T> result(count);
    for (size_t i = 0; i < count; i++) {
        Wide sum{};
        for (size_t rank = 0; rank < all.calls.size(); rank++) {
            Wide value = reinterpret_cast<const T *>(all.calls[rank].from)[first + i];
            if (own.op >= FIRST_MADE) value *= *reinterpret_cast<const T *>(all.factors[rank].data());
            if (rank == 0)
                sum = value;
            else if (own.op == PROD)
                sum *= value;
            else if (own.op == MAX)
                sum = std::max(sum, value);
            else if (own.op == MIN)
                sum = std::min(sum, value);
            else
                sum += value;
        }
        result[i] = static_cast<T>(own.op == AVG ? sum / static_cast<Wide>(all.calls.size()) : sum);
    }
    memcpy(to, result.data(), count * sizeof(T));
}

static void reduce(const Collective &all, char *to, size_t first, size_t count) {
    switch (all.calls[0].type) {
    case 0: return reduce<int8_t>(all, to, first, count);
    case 1: return reduce<uint8_t>(all, to, first, count);
    case 2: return reduce<int32_t>(all, to, first, count);
    case 3: return reduce<uint32_t>(all, to, first, count);
    case 4: return reduce<int64_t>(all, to, first, count);
    case 5: return reduce<uint64_t>(all, to, first, count);
    case 6: return reduce<Small<uint16_t, 5, 10>, float>(all, to, first, count);
    case 7: return reduce<float>(all, to, first, count);
    case 8: return reduce<double>(all, to, first, count);
    case 9: return reduce<Small<uint16_t, 8, 7>, float>(all, to, first, count);
    case 10: return reduce<Small<uint8_t, 4, 3>, float>(all, to, first, count);
    case 11: return reduce<Small<uint8_t, 5, 2>, float>(all, to, first, count);
    default: abort();
    }
}

// Computes what a rank receives.
static void deliver(const Collective &all, size_t rank) {
    const Call &call = all.calls[rank];
    size_t count = call.count, bytes = count * size_of(call.type);
    bool is_root = rank == static_cast<size_t>(call.root);
    const char *root = all.calls[call.root].from;
    switch (call.kind) {
    case Kind::AllReduce: return reduce(all, call.to, 0, count);
    case Kind::ReduceScatter: return reduce(all, call.to, rank * count, count);
    case Kind::Reduce:
        if (is_root) reduce(all, call.to, 0, count);
        return;
    case Kind::Broadcast: memcpy(call.to, root, bytes); return;
    case Kind::Scatter: memcpy(call.to, root + rank * bytes, bytes); return;
    case Kind::Gather:
        if (!is_root) return;
        [[fallthrough]];
    case Kind::AllGather:
        for (size_t from = 0; from < all.calls.size(); from++)
            memcpy(call.to + from * bytes, all.calls[from].from, bytes);
        return;
    case Kind::AllToAll:
        for (size_t from = 0; from < all.calls.size(); from++)
            memcpy(call.to + from * bytes, all.calls[from].from + rank * bytes, bytes);
        return;
    }
}

static void perform(Collective &all) {
    size_t ranks = all.calls.size();
    std::vector<std::vector<char>> inputs(ranks);
    size_t longest = 0;
    for (size_t rank = 0; rank < ranks; rank++) {
        Call &call = all.calls[rank];
        bool reads = (call.kind != Kind::Broadcast && call.kind != Kind::Scatter) ||
                     rank == static_cast<size_t>(call.root);
        bool whole = call.kind == Kind::ReduceScatter || call.kind == Kind::AllToAll ||
                     call.kind == Kind::Scatter;
        size_t bytes = call.count * size_of(call.type) * (whole ? ranks : 1);
        // In place, results would overwrite inputs that other ranks have not read yet.
        if (reads) inputs[rank].assign(call.from, call.from + bytes);
        longest = std::max(longest, inputs[rank].size());
    }
    for (size_t rank = 0; rank < ranks; rank++) {
        // Where ranks call for different counts, as NCCL reads something, too.
        inputs[rank].resize(longest);
        all.calls[rank].from = inputs[rank].data();
    }
    for (size_t rank = 0; rank < ranks; rank++) deliver(all, rank);
    const Call &last = all.calls[ranks - 1];
    if (fails("wrong") && last.kind == Kind::AllReduce)
        last.to[last.count * size_of(last.type) - 1] ^= 0x40;
}

// The calls of a group, by rank and stream.
struct Batch {
    Comm *comm;
    Stream *stream;
    std::vector<Work> works;
};
static thread_local int depth;
static thread_local std::vector<Batch> group;
// Whether a call of the group was refused: then none of it runs.
static thread_local bool cancelled;

// Combines work into one step, which makes progress on all of it.
static Work together(std::vector<Work> works) {
    return [=] {
        auto steps = std::make_shared<std::vector<Step>>();
        for (const Work &work : works) steps->push_back(work());
        return [=] {
            steps->erase(std::remove_if(steps->begin(), steps->end(), [](Step &step) { return step(); }),
                         steps->end());
            return steps->empty();
        };
    };
}

static void end_group() {
    for (Batch &batch : group) enqueue(batch.stream, together(batch.works));
    group.clear();
}

static int put(Comm *comm, void *handle, Work work) {
    Stream *stream = stream_of(handle, comm->device);
    if (stream->device != comm->device) return INVALID_USAGE;
    auto known = std::find_if(group.begin(), group.end(), [=](Batch &batch) {
        return batch.comm == comm && batch.stream == stream;
    });
    if (known == group.end()) known = group.insert(known, Batch{comm, stream, {}});
    known->works.push_back(work);
    if (!depth) end_group();
    return SUCCESS;
}

static int put(Comm *comm, void *stream, Call call) {
    // As NCCL's kernel for one rank.
    if (comm->size == 1 && call.op >= AVG && call.type >= FLOAT8) return INVALID_ARGUMENT;
    auto made = comm->factors.find(call.op);
    std::vector<char> factor = made == comm->factors.end() ? std::vector<char>() : made->second;
    return put(comm, stream, [=] {
        auto mine = std::make_shared<std::shared_ptr<Collective>>();
        // Calls are matched in the order in which they are enqueued, in any streams.
        uint64_t place = comm->calls++;
        return [=] {
            if (comm->aborted) return true;
            if (fails("stuck")) return false;
            std::shared_ptr<Collective> &all = *mine;
            if (!all) {
                auto &known = collectives[{comm->id, place}];
                size_t size = comm->size;
                if (!known)
                    known.reset(new Collective{std::vector<Call>(size), {}, 0, false, false});
                all = known;
                all->factors.resize(size);
                all->calls[comm->rank] = call;
                all->factors[comm->rank] = factor;
                if (++all->arrived == comm->size && !all->lost) {
                    perform(*all);
                    all->done = true;
                }
            }
            return all->done;
        };
    });
}

struct Message {
    const void *from;
    size_t bytes;
    bool taken;
};
using Messages = std::map<std::tuple<std::string, int, int>, std::deque<std::shared_ptr<Message>>>;
static Messages &messages = *new Messages;

extern "C" {

int ncclGetVersion(int *version) { return *version = 22809, SUCCESS; }
const char *ncclGetErrorString(int) { return "a fake error"; }
const char *ncclGetLastError(Comm *) { return ""; }

int ncclGetUniqueId(Id *id) {
    static int made;
    Guard guard(everything);
    snprintf(id->internal, sizeof id->internal, "%d", made++);
    return SUCCESS;
}
int ncclCommInitRankConfig(Comm **comm, int size, Id id, int rank, void *) {
    return *comm = new Comm{id.internal, rank, size, current, 0, false, {}}, SUCCESS;
}
int ncclCommInitAll(Comm **, int, const int *) { return INVALID_USAGE; }
int ncclCommSplit(Comm *, int, int, Comm **, void *) { return INVALID_USAGE; }
int ncclCommFinalize(Comm *) { return SUCCESS; }
int ncclCommDestroy(Comm *) { return SUCCESS; }
int ncclCommAbort(Comm *comm) {
    Guard guard(everything);
    for (auto &[key, all] : collectives)
        if (key.first == comm->id && !all->done) all->lost = true;
    // What it has sent and nobody has taken.
    for (auto &[key, waiting] : messages)
        if (std::get<0>(key) == comm->id && std::get<1>(key) == comm->rank) waiting.clear();
    return comm->aborted = true, SUCCESS;
}
int ncclCommGetAsyncError(Comm *, int *error) { return *error = SUCCESS; }
int ncclCommCount(Comm *comm, int *count) { return *count = comm->size, SUCCESS; }
int ncclCommUserRank(Comm *comm, int *rank) { return *rank = comm->rank, SUCCESS; }
int ncclCommCuDevice(Comm *comm, int *device) { return *device = comm->device, SUCCESS; }

int ncclGroupStart() { return depth++, SUCCESS; }
int ncclGroupEnd() {
    if (--depth > 0) return SUCCESS;
    if (std::exchange(cancelled, false)) return group.clear(), INVALID_ARGUMENT;
    end_group();
    return SUCCESS;
}

int ncclRedOpCreatePreMulSum(unsigned *op, const char *factor, int type, int, Comm *comm) {
    *op = FIRST_MADE + comm->factors.size();
    comm->factors[*op].assign(factor, factor + size_of(type));
    return SUCCESS;
}
int ncclRedOpDestroy(unsigned, Comm *) { return SUCCESS; }

int ncclAllReduce(char *from, char *to, size_t count, int type, unsigned op, Comm *comm, void *stream) {
    if (!comm) return cancelled = depth > 0, INVALID_ARGUMENT;
    return put(comm, stream, Call{Kind::AllReduce, from, to, count, type, op, 0});
}
int ncclReduce(char *from, char *to, size_t count, int type, unsigned op, int root, Comm *comm, void *stream) {
    return put(comm, stream, Call{Kind::Reduce, from, to, count, type, op, root});
}
int ncclBroadcast(char *from, char *to, size_t count, int type, int root, Comm *comm, void *stream) {
    return put(comm, stream, Call{Kind::Broadcast, from, to, count, type, 0, root});
}
int ncclReduceScatter(char *from, char *to, size_t count, int type, unsigned op, Comm *comm, void *stream) {
    return put(comm, stream, Call{Kind::ReduceScatter, from, to, count, type, op, 0});
}
int ncclAllGather(char *from, char *to, size_t count, int type, Comm *comm, void *stream) {
    return put(comm, stream, Call{Kind::AllGather, from, to, count, type, 0, 0});
}
int ncclAlltoAll(char *from, char *to, size_t count, int type, Comm *comm, void *stream) {
    if (from == to) return INVALID_USAGE;
    return put(comm, stream, Call{Kind::AllToAll, from, to, count, type, 0, 0});
}
int ncclGather(char *from, char *to, size_t count, int type, int root, Comm *comm, void *stream) {
    return put(comm, stream, Call{Kind::Gather, from, to, count, type, 0, root});
}
int ncclScatter(char *from, char *to, size_t count, int type, int root, Comm *comm, void *stream) {
    return put(comm, stream, Call{Kind::Scatter, from, to, count, type, 0, root});
}

// For tests: ncclSend does not return, as when it connects to a missing peer.
static std::atomic<bool> blocked;
int fake_block(int now) { return blocked = now, 0; }

// For tests: ncclSend refuses its arguments.
static std::atomic<bool> refused;
int fake_refuse(int now) { return refused = now, 0; }

int ncclSend(const void *from, size_t count, int type, int peer, Comm *comm, void *stream) {
    while (blocked) between_looks();
    if (refused) return INVALID_ARGUMENT;
    return put(comm, stream, [=] {
        auto mine = std::make_shared<std::shared_ptr<Message>>();
        return [=] {
            if (comm->aborted) return true;
            std::shared_ptr<Message> &message = *mine;
            if (!message) {
                message.reset(new Message{from, count * size_of(type), false});
                messages[{comm->id, comm->rank, peer}].push_back(message);
            }
            return message->taken;
        };
    });
}
int ncclRecv(void *to, size_t count, int type, int peer, Comm *comm, void *stream) {
    return put(comm, stream, [=] {
        return [=] {
            if (comm->aborted) return true;
            auto &waiting = messages[{comm->id, peer, comm->rank}];
            if (waiting.empty()) return false;
            std::shared_ptr<Message> message = waiting.front();
            if (message->bytes != count * size_of(type)) abort();
            memmove(to, message->from, message->bytes);
            message->taken = true;
            waiting.pop_front();
            return true;
        };
    });
}

// Records a registration for the tests.
static int note(const char *how, size_t bytes, void *memory, void **handle) {
    Guard guard(everything);
    fprintf(stderr, "registered %s: %zu\n", how, bytes);
    *handle = fails("unregistered") ? nullptr : memory;
    if (*handle) counts[REGISTRATIONS]++;
    return SUCCESS;
}
static int forget() {
    Guard guard(everything);
    return counts[REGISTRATIONS]--, SUCCESS;
}
int ncclCommRegister(Comm *, void *memory, size_t bytes, void **handle) {
    return note("here", bytes, memory, handle);
}
int ncclCommWindowRegister(Comm *, void *memory, size_t bytes, void **handle, int) {
    return note("as window", bytes, memory, handle);
}
int ncclCommDeregister(Comm *, void *) { return forget(); }
// For tests: how many of the next deregistrations of windows fail.
static std::atomic<int> refusals;
int fake_refuse_windows(int count) { return refusals = count, 0; }
int ncclCommWindowDeregister(Comm *, void *) {
    Guard guard(everything);
    return refusals > 0 ? refusals--, INVALID_ARGUMENT : forget();
}

}  // extern "C"
