/*
 * tests/placements/limits.h - smaller placements than the product's.
 *
 * A simulated job has four ranks, and the product has room for a thousand: most of the simulator's
 * time would go to copies of zeros. The Makefile includes this file before every source of the
 * simulator.
 */
#ifndef CAIRN_PLACEMENTS_LIMITS_H
#define CAIRN_PLACEMENTS_LIMITS_H

#include "cairn/client.h"

#define CAIRN_REPLICAS_MAX 16
#define CAIRN_STAGES_MAX 16

#endif
