// What the current context says of itself.
#include "device.h"

thread_local int asked = 0;

extern "C" int fake_asked() { return asked; }

extern "C" int cuCtxGetDevice(int *device) {
    if (current == NO_DEVICE_IS_CURRENT) return INVALID_CONTEXT;
    return *device = current, SUCCESS;
}
