/*
 * replan/fleet/field.h - keys and numbers of problem files: every key known and there once, every
 * number in its range.
 */
#ifndef CAIRN_REPLAN_FLEET_FIELD_H
#define CAIRN_REPLAN_FLEET_FIELD_H

#include "base/json.h"

/* The index of a key among names[count], at most 32; its bit in *seen is set. The reader fails, and
 * count comes back, where it is unknown; it fails where the key was seen. */
uint32_t cairn_field_key(struct cairn_json_reader *reader, const char *name,
                         const char *const *names, uint32_t count, uint32_t *seen);

/* A number; the reader fails with `why` where it is not from low to high. */
double cairn_field_number(struct cairn_json_reader *reader, double low, double high,
                          const char *why);

#endif
