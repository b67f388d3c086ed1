/*
 * What the library says of itself: its version, its parameters, and what it logs. Variables are
 * read again for each communicator.
 */
#include "ranks.h"

static void meets(const char *name)
{
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.commName = name;
    SUCCEEDS(ncclGetUniqueId(&id));
    SUCCEEDS(ncclCommInitRankConfig(&comm, size, id, rank, &config));
    SUCCEEDS(ncclCommDestroy(comm));
}

static void parameters(void)
{
    ncclParamHandle_t handle = NULL;
    const char *text = NULL, **keys = NULL;
    int32_t number = 0;
    int8_t small = 0;
    char bytes[16] = "";
    int len = -1, count = 0;
    FAILS(ncclParamBind(&handle, "NCCL_NO_SUCH"), ncclInvalidArgument, "NCCL_NO_SUCH");
    require(handle == NULL, "a handle of no parameter");
    FAILS(ncclParamBind(&handle, NULL), ncclInvalidArgument, "key");
    FAILS(ncclParamGetI32(NULL, &number), ncclInvalidArgument, "handle");
    FAILS(ncclParamGetI32((ncclParamHandle_t)(uintptr_t)4711, &number), ncclInvalidArgument,
          "no parameter");
    SUCCEEDS(ncclParamBind(&handle, "NCCL_BUFFSIZE"));
    FAILS(ncclParamGetI32(handle, &number), ncclInvalidArgument, "NCCL_BUFFSIZE is \"\"");
    SUCCEEDS(ncclParamGetStr(handle, &text));
    require(strcmp(text, "") == 0, "a parameter that is not set");
    require(setenv("NCCL_BUFFSIZE", "65536", 1) == 0, "setenv");
    SUCCEEDS(ncclParamGetI32(handle, &number));
    require(number == 65536, "a number");
    FAILS(ncclParamGetI8(handle, &small), ncclInvalidArgument, "i8");
    SUCCEEDS(ncclParamGetStr(handle, &text));
    require(strcmp(text, "65536") == 0, "a text");
    FAILS(ncclParamGet(handle, bytes, 7, &len), ncclInvalidArgument, "8 bytes");
    SUCCEEDS(ncclParamGet(handle, bytes, sizeof bytes, &len));
    int64_t raw = 0;
    memcpy(&raw, bytes, sizeof raw);
    require(len == 8 && raw == 65536, "bytes");
    SUCCEEDS(ncclParamGetParameter("NCCL_BUFFSIZE", &text, &len));
    require(len == 5 && strcmp(text, "65536") == 0, "a parameter by its name");
    FAILS(ncclParamGetParameter("NCCL_NO_SUCH", &text, &len), ncclInvalidArgument, "NCCL_NO_SUCH");
    require(text == NULL && len == 0, "no parameter by its name");
    SUCCEEDS(ncclParamGetAllParameterKeys(&keys, &count));
    int found = 0;
    for (int i = 0; i < count; i++) {
        require(strncmp(keys[i], "NCCL_", 5) == 0, keys[i]);
        found += strcmp(keys[i], "NCCL_BUFFSIZE") == 0;
    }
    require(found == 1, "the parameter among all");
    ncclParamDumpAll();
}

int main(void)
{
    int version = 0;
    rank = 0, size = 1;
    /* Unbuffered, so that it is in order with the library's output. */
    setvbuf(stdout, NULL, _IONBF, 0);
    SUCCEEDS(ncclGetVersion(&version));
    printf("version %d\n", version);
    meets(NULL);
    require(setenv("NCCL_IB_TIMEOUT", "99", 1) == 0, "setenv");
    ncclUniqueId id;
    FAILS(ncclGetUniqueId(&id), ncclInvalidArgument, "NCCL_IB_TIMEOUT");
    require(unsetenv("NCCL_IB_TIMEOUT") == 0, "unsetenv");
    meets("blue");
    parameters();
    require(setenv("SPARK_CCL_NCCL_VERSION", "2.27.3", 1) == 0, "setenv");
    FAILS(ncclGetVersion(&version), ncclInvalidArgument, "write 22703");
    puts("right");
    return 0;
}
