/* Binds a thread to a core. */

#ifndef PIN_H
#define PIN_H

#include <sched.h>

#include "common.h"

static inline void pin_to(int core)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    if (sched_setaffinity(0, sizeof one, &one) != 0)
        fail("cannot use a core");
}

static inline cpu_set_t allowed_set(void)
{
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        fail("cannot tell which cores may be used");
    return allowed;
}

static inline int allowed_cores(void)
{
    cpu_set_t allowed = allowed_set();
    return CPU_COUNT(&allowed);
}

/* The core of that number, among those that this thread may use. */
static inline int allowed_core(int number)
{
    cpu_set_t allowed = allowed_set();
    for (int core = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, &allowed) && number-- == 0)
            return core;
    fail("too few cores may be used");
    return -1;
}

static inline void pin(int number)
{
    pin_to(allowed_core(number));
}

#endif
