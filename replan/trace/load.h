/* replan/trace/load.h - how long a rank computes, by its last steps. */
#ifndef CAIRN_REPLAN_TRACE_LOAD_H
#define CAIRN_REPLAN_TRACE_LOAD_H

struct cairn_load {
    double compute_ns; /* mean of a step; NaN where nothing is known */
    double error_ns;   /* standard error of that mean; NaN where it is not known */
};

#endif
