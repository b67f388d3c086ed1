// What the current context says of itself.
#include "device.h"

extern "C" int cuCtxGetDevice(int *device) {
    if (current == NO_DEVICE_IS_CURRENT) return INVALID_CONTEXT;
    return *device = current, SUCCESS;
}
