// Memory that is created, mapped and exported: files of memory, by their numbers.
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "device.h"

namespace {

constexpr size_t PAGE = 4096;

struct Created {
    int device;
    int file;
    size_t bytes;
    // Made for RDMA devices.
    bool direct;
};

// The part of `CUmemAllocationProp` that is looked at.
struct Properties {
    char before[25];
    unsigned char direct;
};

// By handle.
std::map<uint64_t, Created> &created = *new std::map<uint64_t, Created>;

// The handles of what is mapped, by address.
std::map<uint64_t, uint64_t> &mapped = *new std::map<uint64_t, uint64_t>;

// How many of the next devices get no access to memory that was imported.
int alone = 0;

uint64_t add(Created memory) {
    static uint64_t last = 0;
    created[++last] = memory;
    counts[BLOCKS]++;
    return last;
}

bool fits(size_t bytes) {
    size_t used = 0;
    for (auto &[_, memory] : created) used += memory.device == current ? memory.bytes : 0;
    return bytes <= device_bytes() && used + bytes <= device_bytes();
}

}  // namespace

extern "C" {

int cuMemGetAllocationGranularity(size_t *step, const void *, int) { return *step = PAGE, SUCCESS; }

int cuMemCreate(uint64_t *handle, size_t bytes, const Properties *properties, unsigned long long) {
    Guard guard(everything);
    if (int said = unsafe_in_captures()) return said;
    if (bytes % PAGE) return INVALID_VALUE;
    if (!fits(bytes)) return OUT_OF_MEMORY;
    int file = memfd_create("device memory", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, static_cast<off_t>(bytes))) return OUT_OF_MEMORY;
    *handle = add({current, file, bytes, properties->direct != 0});
    return SUCCESS;
}
int cuMemRelease(uint64_t handle) {
    Guard guard(everything);
    auto found = created.find(handle);
    if (found == created.end()) return INVALID_VALUE;
    close(found->second.file);
    created.erase(found);
    counts[BLOCKS]--;
    return SUCCESS;
}

int cuMemAddressReserve(uint64_t *start, size_t bytes, size_t, uint64_t, unsigned long long) {
    void *range = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *start = reinterpret_cast<uint64_t>(range);
    return range == MAP_FAILED ? OUT_OF_MEMORY : SUCCESS;
}
int cuMemAddressFree(uint64_t start, size_t bytes) {
    return munmap(reinterpret_cast<void *>(start), bytes) ? INVALID_VALUE : SUCCESS;
}

int cuMemMap(uint64_t start, size_t bytes, size_t, uint64_t handle, unsigned long long) {
    Guard guard(everything);
    auto found = created.find(handle);
    if (found == created.end() || bytes > found->second.bytes) return INVALID_VALUE;
    void *range = reinterpret_cast<void *>(start);
    int how = MAP_SHARED | MAP_FIXED;
    // Nobody has access yet.
    if (mmap(range, bytes, PROT_NONE, how, found->second.file, 0) != range) return INVALID_VALUE;
    mapped[start] = handle;
    // Also where it is another device's: this one has it mapped.
    set_memory(start, bytes, found->second.device < 0 ? current : found->second.device);
    return SUCCESS;
}
// As a driver answers where the devices cannot reach each other's memory.
int cuMemSetAccess(uint64_t start, size_t bytes, const void *, size_t count) {
    {
        Guard guard(everything);
        auto found = mapped.find(start);
        bool is_imported = found != mapped.end() && created.at(found->second).device < 0;
        if (is_imported && alone > 0) return alone--, NOT_SUPPORTED;
    }
    void *range = reinterpret_cast<void *>(start);
    return !count || mprotect(range, bytes, PROT_READ | PROT_WRITE) ? INVALID_VALUE : SUCCESS;
}
int cuMemUnmap(uint64_t start, size_t bytes) {
    Guard guard(everything);
    mapped.erase(start);
    set_memory(start, 0, 0);
    void *range = reinterpret_cast<void *>(start);
    int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    return mmap(range, bytes, PROT_NONE, how, -1, 0) == range ? SUCCESS : INVALID_VALUE;
}

// For tests: dma-bufs of this device are other memory than the device's (-1: of none).
static std::atomic<int> astray{-1};
int fake_export_astray(int device) { return astray = device, 0; }

// A file of memory in place of a dma-buf: its first bytes are those of a mapping, so only a range
// from there on can be exported.
int cuMemGetHandleForAddressRange(void *file, uint64_t start, size_t bytes, int kind,
                                  unsigned long long flags) {
    Guard guard(everything);
    auto found = mapped.find(start);
    bool is_whole = start % PAGE == 0 && bytes % PAGE == 0 && bytes > 0;
    if (kind != 1 || flags || !is_whole || found == mapped.end()) return INVALID_VALUE;
    const Created &memory = created.at(found->second);
    if (bytes > memory.bytes) return INVALID_VALUE;
    if (!memory.direct) return NOT_SUPPORTED;
    bool is_astray = memory.device == astray;
    int copy = is_astray ? memfd_create("astray", 0) : dup(memory.file);
    if (is_astray && ftruncate(copy, static_cast<off_t>(memory.bytes))) return INVALID_VALUE;
    *static_cast<int *>(file) = copy;
    return copy < 0 ? INVALID_VALUE : SUCCESS;
}

int cuMemExportToShareableHandle(int *file, uint64_t handle, int, unsigned long long) {
    Guard guard(everything);
    auto found = created.find(handle);
    if (found == created.end()) return INVALID_VALUE;
    *file = dup(found->second.file);
    return *file < 0 ? INVALID_VALUE : SUCCESS;
}
int cuMemImportFromShareableHandle(uint64_t *handle, void *descriptor, int) {
    Guard guard(everything);
    int file = static_cast<int>(reinterpret_cast<intptr_t>(descriptor));
    struct stat about;
    if (fstat(file, &about) || !S_ISREG(about.st_mode)) return INVALID_VALUE;
    // Not of the device's memory, which the exporter has.
    *handle = add({-1, dup(file), static_cast<size_t>(about.st_size), false});
    return SUCCESS;
}

int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream);
int cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, void *stream) {
    return cuMemcpyDtoDAsync_v2(to, from, bytes, stream);
}

// For tests.
int fake_leave_alone(int count) {
    Guard guard(everything);
    return alone = count, 0;
}

}  // extern "C"
