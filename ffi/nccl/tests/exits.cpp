/*
 * Ends of a process beside communicators.
 *
 *   exits earlier    a static object destroys them, after this library's handlers at exit
 *   exits later      a static object destroys them, before those
 *   exits thread     an object of the main thread does
 *   exits calls      a static object calls a collective first, after those
 *   exits never      nothing destroys them
 *   exits busy       threads call collectives, make communicators, and destroy them, meanwhile
 *   exits unloaded   a library that is unloaded destroys them
 *   exits forgotten  a library that is unloaded does not
 */
#include <atomic>
#include <string>
#include <thread>

extern "C" {
#include "abi.h"
}

#include <dlfcn.h>
#include <unistd.h>

namespace {

void require(bool condition, const char *what)
{
    if (!condition) {
        fprintf(stderr, "%s: %s\n", what, ncclGetLastError(nullptr));
        _exit(1);
    }
}

/* Two ranks of this process. */
struct Pair {
    ncclComm_t comms[2] = {nullptr, nullptr};
    bool calls = false;

    void make() { require(ncclCommInitAll(comms, 2, nullptr) == ncclSuccess, "meeting"); }

    ncclResult_t sum(int32_t expected)
    {
        int32_t own[2] = {1, 2}, sums[2] = {0, 0};
        ncclGroupStart();
        for (int i = 0; i < 2; i++)
            ncclAllReduce(&own[i], &sums[i], 1, ncclInt32, ncclSum, comms[i], nullptr);
        ncclResult_t ended = ncclGroupEnd();
        require(ended != ncclSuccess || (sums[0] == expected && sums[1] == expected), "a sum");
        return ended;
    }

    void destroy()
    {
        for (ncclComm_t &comm : comms) {
            require(ncclCommDestroy(comm) == ncclSuccess, "the end of a communicator");
            comm = nullptr;
        }
    }

    ~Pair()
    {
        if (comms[0] == nullptr)
            return;
        if (calls) {
            int32_t word = 1;
            ncclResult_t ended =
                ncclAllReduce(&word, &word, 1, ncclInt32, ncclSum, comms[0], nullptr);
            require(ended == ncclInvalidArgument || ended == ncclInvalidUsage,
                    "a call after the library's handlers");
            const std::string why = ncclGetLastError(nullptr);
            puts(why.find("at the exit of its process") == why.npos ? why.c_str() : "refused");
        }
        destroy();
        puts("destroyed");
        fflush(stdout);
    }
};

Pair first;

} // namespace

#ifdef PLUGIN

extern "C" void begin(bool destroys)
{
    static Pair *forgotten = new Pair;
    Pair &pair = destroys ? first : *forgotten;
    pair.make();
    require(pair.sum(3) == ncclSuccess, "a sum");
}

#else

namespace {

void use(Pair &pair)
{
    pair.make();
    require(pair.sum(3) == ncclSuccess, "a sum");
}

/* Never ends. */
void calls_for_ever(std::atomic<int> *rounds)
{
    Pair *own = new Pair;
    use(*own);
    for (;;) {
        own->sum(3);
        Pair *other = new Pair;
        if (ncclCommInitAll(other->comms, 2, nullptr) == ncclSuccess) {
            other->sum(3);
            other->destroy();
        }
        rounds->fetch_add(1);
    }
}

void be_busy()
{
    static std::atomic<int> rounds{0};
    for (int i = 0; i < 4; i++)
        std::thread(calls_for_ever, &rounds).detach();
    while (rounds.load() < 8)
        std::this_thread::yield();
}

void unload(const char *path, bool destroys)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    require(library != nullptr, "the library that is unloaded");
    void (*begin)(bool);
    *reinterpret_cast<void **>(&begin) = dlsym(library, "begin");
    begin(destroys);
    require(dlclose(library) == 0, "dlclose");
    require(dlopen(path, RTLD_NOW | RTLD_NOLOAD) == nullptr, "an unloaded library");
    puts("unloaded");
    Pair after;
    use(after);
}

} // namespace

int main(int argc, char **argv)
{
    require(argc == 3, "usage: exits HOW LIBRARY");
    const std::string how = argv[1];
    alarm(100);
    if (how == "earlier") {
        use(first);
    } else if (how == "calls") {
        use(first);
        first.calls = true;
    } else if (how == "later") {
        use(*new Pair);
        static Pair later;
        use(later);
    } else if (how == "thread") {
        static thread_local Pair own;
        use(own);
    } else if (how == "never") {
        use(*new Pair);
    } else if (how == "busy") {
        be_busy();
    } else {
        unload(argv[2], how == "unloaded");
    }
    return 0;
}

#endif
