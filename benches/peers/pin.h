/* Binds a thread to a core. */

#ifndef PIN_H
#define PIN_H

#include <sched.h>

#include "common.h"

/* To the core of that number, among those that this program may use. */
static inline void pin(int number)
{
    cpu_set_t allowed, one;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        fail("cannot tell which cores may be used");
    for (int core = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, &allowed) && number-- == 0) {
            CPU_ZERO(&one);
            CPU_SET(core, &one);
            if (sched_setaffinity(0, sizeof one, &one) == 0)
                return;
        }
    fail("two cores are needed");
}

#endif
