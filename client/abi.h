/*
 * client/abi.h - structs of include/cairn that cross the library's boundary, in the caller's size
 * and in ours.
 *
 * A caller compiled against another version has shorter or longer structs; include/cairn/client.h
 * states the rules. Only this file knows them: the rest of the library works on copies of its own
 * size. A failed check is logged through the client and returns CAIRN_INVAL.
 */
#ifndef CAIRN_CLIENT_ABI_H
#define CAIRN_CLIENT_ABI_H

#include "cairn/client.h"

/* Copies what the caller gave into *out. On failure *out is undefined. */
CAIRN_MUST_CHECK cairn_err client_abi_take_options(const struct cairn_client *client,
                                                   const struct cairn_client_options *given,
                                                   struct cairn_client_options *out);

/*
 * Copies given[count] of the caller's stride to (*out)[count], which the caller of this function
 * then owns and frees. CAIRN_NOMEM. On failure *out is untouched.
 */
CAIRN_MUST_CHECK cairn_err client_abi_take_slices(const struct cairn_client *client,
                                                  const struct cairn_slice *given, uint32_t count,
                                                  struct cairn_slice **out);
CAIRN_MUST_CHECK cairn_err client_abi_take_uncovered(const struct cairn_client *client,
                                                     const struct cairn_uncovered *given,
                                                     uint32_t count, struct cairn_uncovered **out);

/* Checks a struct that the library will fill. Call it first. */
CAIRN_MUST_CHECK cairn_err client_abi_check_restored(const struct cairn_client *client,
                                                     const struct cairn_restored *out);
CAIRN_MUST_CHECK cairn_err client_abi_check_stats(const struct cairn_client *client,
                                                  const struct cairn_client_stats *out);

/* Fills a checked struct: the fields that both sides know; 0 in those that only the caller
 * knows. */
void client_abi_put_restored(struct cairn_restored *out, const struct cairn_restored *value);
void client_abi_put_stats(struct cairn_client_stats *out, const struct cairn_client_stats *value);

#endif
