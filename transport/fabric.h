/*
 * transport/fabric.h - libfabric's entry points, opened at run time.
 *
 * Only an agent talks over libfabric, and loading it is slow: one of its libraries measures a clock
 * for 0.2 s in its constructor. A program that links it would pay for that at every start of every
 * verb. All else of libfabric's interface is inline in its headers and needs no symbol.
 */
#ifndef CAIRN_TRANSPORT_FABRIC_H
#define CAIRN_TRANSPORT_FABRIC_H

#include "cairn/err.h"

#include <stdint.h>

struct fi_info;
struct fi_fabric_attr;
struct fid_fabric;

/* The functions of the same names, with fi_ before them. */
struct cairn_fabric {
    int (*getinfo)(uint32_t version, const char *node, const char *service, uint64_t flags,
                   const struct fi_info *hints, struct fi_info **info);
    void (*freeinfo)(struct fi_info *info);
    struct fi_info *(*dupinfo)(const struct fi_info *info); /* of NULL: an empty one */
    int (*fabric)(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context);
    const char *(*strerror)(int code);
};

/*
 * Loads libfabric from `path`, NULL: the system's. It stays loaded until the process ends.
 * CAIRN_NOT_FOUND: missing or too old; the log says what to install. Thread: any, but make settings
 * that libfabric takes from the environment before.
 */
CAIRN_MUST_CHECK cairn_err cairn_fabric_open(const char *path, struct cairn_fabric *out);

#endif
