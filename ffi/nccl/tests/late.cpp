/*
 * Calls every function of the library from the destructor of a static object, after the library's
 * handlers at exit: with nothing, with a communicator of two ranks and memory, and with numbers,
 * too. Prints the name of each function that has returned.
 */
extern "C" {
#include "abi.h"

/* Those that the other programs do not call, with pointers to structures as pointers. */
struct Team {
    int ranks, rank, stride;
};
struct Opaque;
void ncclResetDebugInit(void);
void ncclResetDebugInitInternal(void);
ncclResult_t ncclSetEncryption(const Opaque *);
ncclResult_t ncclCommQueryProperties(ncclComm_t, Opaque *);
ncclResult_t ncclCommMemStats(ncclComm_t, int, uint64_t *);
ncclResult_t ncclCommSuspend(ncclComm_t, int);
ncclResult_t ncclCommResume(ncclComm_t);
#define CONFIGURED , ncclComm_t, cudaStream_t, const ncclCollConfig_t *);
MOVES(ncclReduceConfig), ncclRedOp_t, int CONFIGURED
MOVES(ncclBroadcastConfig), int CONFIGURED
MOVES(ncclAllGatherConfig) CONFIGURED
MOVES(ncclReduceScatterConfig), ncclRedOp_t CONFIGURED
MOVES(ncclAlltoAllConfig) CONFIGURED
MOVES(ncclGatherConfig), int CONFIGURED
MOVES(ncclScatterConfig), int CONFIGURED
ncclResult_t ncclWinGetUserPtr(ncclComm_t, ncclWindow_t, void **);
ncclResult_t ncclPutSignal(const void *, size_t, ncclDataType_t, int, ncclWindow_t, size_t, int,
                           int, unsigned int, ncclComm_t, cudaStream_t);
ncclResult_t ncclWaitSignal(int, Opaque *, ncclComm_t, cudaStream_t);
ncclResult_t ncclDevCommCreate(ncclComm_t, const Opaque *, Opaque *);
ncclResult_t ncclDevCommDestroy(ncclComm_t, const Opaque *);
ncclResult_t ncclGetLsaDevicePointer(ncclWindow_t, size_t, int, void **);
ncclResult_t ncclGetLsaMultimemDevicePointer(ncclWindow_t, size_t, void **);
ncclResult_t ncclGetMultimemDevicePointer(ncclWindow_t, size_t, void *, void **);
ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t, size_t, int, void **);
ncclResult_t ncclGetMultimemDeviceLeInfo(ncclWindow_t, size_t, uint32_t *, size_t *);
ncclResult_t ncclGetCftDeviceLeInfo(ncclWindow_t, size_t, int, Team, uint32_t *, size_t *);
ncclResult_t ncclGetPeerDeviceLeInfo(ncclWindow_t, size_t, int, uint32_t *, size_t *);
ncclResult_t ncclLsaBarrierCreateRequirement(Team, int, Opaque *, Opaque *);
ncclResult_t ncclGinBarrierCreateRequirement(ncclComm_t, Team, int, Opaque *, Opaque *);
int ncclLLA2ACalcSlots(int, int);
ncclResult_t ncclLLA2ACreateRequirement(int, int, Opaque *, Opaque *);
ncclResult_t ncclGinOutboxCreateRequirement(int, int, Opaque *, Opaque *);
ncclResult_t ncclGinInboxA2ACreateRequirement(Team, int, int, Opaque *, Opaque *);
Team ncclTeamWorld(ncclComm_t);
Team ncclTeamLsa(ncclComm_t);
Team ncclTeamRail(ncclComm_t);
Team ncclTeamCftMultimem(ncclComm_t);
Team ncclTeamCft(ncclComm_t, int);
int ncclTeamRankToWorld(ncclComm_t, Team, int);
int ncclTeamRankToLsa(ncclComm_t, Team, int);
ncclResult_t ncclParamGetI16(ncclParamHandle_t, int16_t *);
ncclResult_t ncclParamGetI64(ncclParamHandle_t, int64_t *);
ncclResult_t ncclParamGetU8(ncclParamHandle_t, uint8_t *);
ncclResult_t ncclParamGetU16(ncclParamHandle_t, uint16_t *);
ncclResult_t ncclParamGetU32(ncclParamHandle_t, uint32_t *);
ncclResult_t ncclParamGetU64(ncclParamHandle_t, uint64_t *);
}

#include <initializer_list>
#include <type_traits>
#include <unistd.h>

namespace {

enum Given { NOTHING, MEMORY, NUMBERS };

ncclComm_t comms[2];
ncclUniqueId id;
/* For everything that a function reads or writes. */
alignas(64) char memory[4096];

/* What a function is called with. */
template <class A>
A argument(Given given)
{
    using Target = std::remove_cv_t<std::remove_pointer_t<A>>;
    if constexpr (std::is_same_v<A, ncclComm_t>) {
        return given == NOTHING ? nullptr : comms[0];
    } else if constexpr (std::is_same_v<A, ncclUniqueId>) {
        return given == NOTHING ? ncclUniqueId{} : id;
    } else if constexpr (std::is_same_v<A, cudaStream_t> || std::is_same_v<A, ncclWindow_t> ||
                         std::is_same_v<A, ncclParamHandle_t>) {
        return nullptr;
    } else if constexpr (std::is_same_v<Target, ncclConfig_t> ||
                         std::is_same_v<Target, ncclCollConfig_t>) {
        return given == MEMORY ? reinterpret_cast<A>(memory) : nullptr;
    } else if constexpr (std::is_pointer_v<A>) {
        memset(memory, 0, sizeof memory);
        return given == NOTHING ? nullptr : reinterpret_cast<A>(memory);
    } else if constexpr (std::is_integral_v<A>) {
        return given == NUMBERS ? 1 : 0;
    } else {
        return A{};
    }
}

template <class R, class... A>
void call(const char *name, R (*function)(A...), [[maybe_unused]] Given given)
{
    function(argument<A>(given)...);
    puts(name);
}

#define CALL(name) call(#name, name, given)

void about(Given given)
{
    CALL(ncclGetVersion);
    CALL(ncclGetErrorString);
    CALL(ncclGetLastError);
    CALL(ncclResetDebugInit);
    CALL(ncclResetDebugInitInternal);
    CALL(ncclGetUniqueId);
    CALL(ncclCommInitRank);
    CALL(ncclCommInitRankConfig);
    CALL(ncclCommInitRankScalable);
    CALL(ncclCommInitAll);
    CALL(ncclCommSplit);
    CALL(ncclCommShrink);
    CALL(ncclCommGetUniqueId);
    CALL(ncclCommGrow);
    CALL(ncclSetEncryption);
    CALL(ncclCommCount);
    CALL(ncclCommUserRank);
    CALL(ncclCommCuDevice);
    CALL(ncclCommGetAsyncError);
    CALL(ncclCommQueryProperties);
    CALL(ncclCommMemStats);
    CALL(ncclCommSuspend);
    CALL(ncclCommResume);
}

void calls(Given given)
{
    CALL(ncclAllReduce);
    CALL(ncclReduce);
    CALL(ncclBroadcast);
    CALL(ncclAllGather);
    CALL(ncclReduceScatter);
    CALL(ncclAlltoAll);
    CALL(ncclGather);
    CALL(ncclScatter);
    CALL(ncclBcast);
    CALL(ncclSend);
    CALL(ncclRecv);
    CALL(ncclAllReduceConfig);
    CALL(ncclReduceConfig);
    CALL(ncclBroadcastConfig);
    CALL(ncclAllGatherConfig);
    CALL(ncclReduceScatterConfig);
    CALL(ncclAlltoAllConfig);
    CALL(ncclGatherConfig);
    CALL(ncclScatterConfig);
    CALL(ncclGroupStart);
    CALL(ncclAllReduce);
    CALL(ncclGroupEnd);
    CALL(ncclGroupStart);
    CALL(ncclGroupSimulateEnd);
    CALL(ncclGroupEnd);
    CALL(ncclRedOpCreatePreMulSum);
    CALL(ncclRedOpDestroy);
}

void of_memory(Given given)
{
    CALL(ncclMemAlloc);
    CALL(ncclMemFree);
    CALL(ncclCommRegister);
    CALL(ncclCommDeregister);
    CALL(ncclCommWindowRegister);
    CALL(ncclCommWindowDeregister);
    CALL(ncclWinGetUserPtr);
    CALL(ncclPutSignal);
    CALL(ncclSignal);
    CALL(ncclWaitSignal);
    CALL(ncclDevCommCreate);
    CALL(ncclDevCommDestroy);
    CALL(ncclGetLsaDevicePointer);
    CALL(ncclGetLsaMultimemDevicePointer);
    CALL(ncclGetMultimemDevicePointer);
    CALL(ncclGetPeerDevicePointer);
    CALL(ncclGetMultimemDeviceLeInfo);
    CALL(ncclGetCftDeviceLeInfo);
    CALL(ncclGetPeerDeviceLeInfo);
    CALL(ncclLsaBarrierCreateRequirement);
    CALL(ncclGinBarrierCreateRequirement);
    CALL(ncclLLA2ACalcSlots);
    CALL(ncclLLA2ACreateRequirement);
    CALL(ncclGinOutboxCreateRequirement);
    CALL(ncclGinInboxA2ACreateRequirement);
    CALL(ncclTeamWorld);
    CALL(ncclTeamLsa);
    CALL(ncclTeamRail);
    CALL(ncclTeamCftMultimem);
    CALL(ncclTeamCft);
    CALL(ncclTeamRankToWorld);
    CALL(ncclTeamRankToLsa);
}

void parameters(Given given)
{
    CALL(ncclParamBind);
    CALL(ncclParamGetI8);
    CALL(ncclParamGetI16);
    CALL(ncclParamGetI32);
    CALL(ncclParamGetI64);
    CALL(ncclParamGetU8);
    CALL(ncclParamGetU16);
    CALL(ncclParamGetU32);
    CALL(ncclParamGetU64);
    CALL(ncclParamGetStr);
    CALL(ncclParamGet);
    CALL(ncclParamGetParameter);
    CALL(ncclParamGetAllParameterKeys);
    CALL(ncclParamDumpAll);
}

/* The last three each end a communicator, if there is one. */
void ends(Given given)
{
    CALL(ncclCommRevoke);
    CALL(ncclCommFinalize);
    CALL(ncclCommDestroy);
    CALL(ncclCommAbort);
}

struct Late {
    ~Late()
    {
        for (Given given : {NOTHING, MEMORY, NUMBERS}) {
            about(given);
            calls(given);
            of_memory(given);
            parameters(given);
        }
        for (Given given : {NOTHING, MEMORY})
            ends(given);
        puts("all");
        fflush(stdout);
    }
};

Late late;

} // namespace

int main()
{
    alarm(100);
    bool are_made = ncclGetUniqueId(&id) == ncclSuccess &&
                    ncclCommInitAll(comms, 2, nullptr) == ncclSuccess;
    return are_made ? 0 : 1;
}
