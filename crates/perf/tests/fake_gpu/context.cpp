// What devices, and the current context, say of themselves.
#include "device.h"

thread_local int asked = 0;
// FAKE_GENERATION, or 8: a GPU that does not order what devices write.
static int asked_generation() {
    const char *asked = getenv("FAKE_GENERATION");
    return asked ? atoi(asked) : 8;
}

std::atomic<int> generation{asked_generation()};

extern "C" int fake_asked() { return asked; }

extern "C" int cuCtxGetDevice(int *device) {
    if (current == NO_DEVICE_IS_CURRENT) return INVALID_CONTEXT;
    return *device = current, SUCCESS;
}

extern "C" {
// For tests: the major number of the GPUs' compute capability.
int fake_generation(int major) { return generation = major, 0; }

int cuDeviceGet(int *device, int ordinal) { return *device = ordinal, SUCCESS; }
int cuDeviceGetCount(int *count) { return *count = device_count(), SUCCESS; }
int cuDeviceGetAttribute(int *value, int attribute, int) {
    enum {
        CAPABILITY_MAJOR = 75,
        CAPABILITY_MINOR,
        VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED = 102,
        HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
        GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED = 110,
        MEMORY_POOLS_SUPPORTED = 115,
        GPU_DIRECT_RDMA_SUPPORTED,
        GPU_DIRECT_RDMA_WRITES_ORDERING = 118,
        DMA_BUF_SUPPORTED = 124,
    };
    switch (attribute) {
    case CAPABILITY_MAJOR: return *value = generation, SUCCESS;
    case CAPABILITY_MINOR: return *value = generation == 8 ? 6 : 0, SUCCESS;
    case VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED:
    case HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case MEMORY_POOLS_SUPPORTED:
    case GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
    case GPU_DIRECT_RDMA_SUPPORTED:
    case DMA_BUF_SUPPORTED: return *value = 1, SUCCESS;
    case GPU_DIRECT_RDMA_WRITES_ORDERING: return *value = generation < 9 ? 0 : 100, SUCCESS;
    default: return *value = 0, SUCCESS;
    }
}
int cuDeviceCanAccessPeer(int *can, int, int) { return *can = 1, SUCCESS; }
int cuDeviceGetP2PAttribute(int *value, int, int, int) { return *value = 0, SUCCESS; }
int cuDeviceTotalMem_v2(size_t *bytes, int) { return *bytes = 1 << 30, SUCCESS; }
int cuDeviceGetDefaultMemPool(void **pool, int) { return *pool = nullptr, SUCCESS; }
int cuDeviceGetName(char *name, int length, int device) {
    return snprintf(name, length, "Fake %d", device), SUCCESS;
}
int cuDeviceGetPCIBusId(char *place, int length, int device) {
    return snprintf(place, length, "0000:%02X:00.0", 0x1a + device), SUCCESS;
}
}
