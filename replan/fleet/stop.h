/* replan/fleet/stop.h - how a caller of long work ends it early. */
#ifndef CAIRN_REPLAN_FLEET_STOP_H
#define CAIRN_REPLAN_FLEET_STOP_H

#include <stdbool.h>

/* Asked between steps of the work; true ends it. Once it has said true it goes on to do so. */
struct cairn_stop {
    bool (*over)(void *context);
    void *context;
};

#endif
