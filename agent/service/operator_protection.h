/*
 * agent/service/operator_protection.h - how many further nodes the job survives. Pure.
 *
 * A part of a generation counts if a node that answered holds it complete. A group of k + m members
 * with `missing` lost parts survives the loss of m - missing further parts, and of as many nodes as
 * hold no more than these; the job survives what its weakest group does.
 */
#ifndef CAIRN_AGENT_SERVICE_OPERATOR_PROTECTION_H
#define CAIRN_AGENT_SERVICE_OPERATOR_PROTECTION_H

#include "agent/service/operator_view.h"

/* Fills in group_count, parity, parts, missing, survives and survives_domain. */
void operator_protection_find(const struct operator_job *job, struct operator_health *out);

#endif
