/*
 * agent/service/operator_view.h - the data shown to operators: one node's view of itself, and the
 * views together.
 *
 * Operators see cairn_epoch_number(epoch).
 */
#ifndef CAIRN_AGENT_SERVICE_OPERATOR_VIEW_H
#define CAIRN_AGENT_SERVICE_OPERATOR_VIEW_H

#include "agent/core/core.h"
#include "erasure/roster.h"
#include "agent/process/config.h"
#include "agent/service/cause.h"
#include "agent/service/proposal.h"
#include "cairn/types.h"
#include "replan/live/ledger.h"

#include <stdbool.h>
#include <stdint.h>

enum { OPERATOR_EPOCH_SHIFT = 16 };

#define OPERATOR_UNKNOWN UINT64_MAX /* of an age or a duration */

/* One part as an agent reports it; in JSON an array of these numbers in this order. */
struct operator_part {
    struct cairn_generation_id generation;
    uint64_t member;
    uint64_t state; /* enum cairn_part_state */
    uint64_t committed;
    uint64_t data_bytes;
    uint64_t bad_blocks;
    uint64_t age_ns; /* since the commit; OPERATOR_UNKNOWN: this agent did not see it */
};

/* One agent's view of itself: numbers by name, so that agents of two versions understand what both
 * know. */
#define OPERATOR_NODE_LIST(X)                                                                      \
    X(member) /* UINT32_MAX: a spare */                                                            \
    X(uptime_ns)                                                                                   \
    X(promised)                                                                                    \
    X(active)                                                                                      \
    X(blank)  /* has forgotten its part */                                                         \
    X(fenced) /* promised an epoch that is not active yet */                                       \
    X(busy)                                                                                        \
    X(run)               /* that it takes part in; 0: none is assembled */                         \
    X(next_step)         /* due; 0: none */                                                        \
    X(dropped_messages)  /* malformed, changed, or of another session, epoch or run */             \
    X(blocked_step)      /* the leader waits to commit it; 0: nothing is blocked */                \
    X(blocked_agent)     /* who is not done */                                                     \
    X(blocked_for_agent) /* whom it waits for; UINT32_MAX: nobody */                               \
    X(blocked_cause)     /* enum cairn_wait */                                                     \
    X(blocked_ms)                                                                                  \
    X(unkept)              /* no keeper holds its memory */                                        \
    X(denied_peers)        /* with another key or job, or at a wrong address */                    \
    X(refused_connections) /* that proved no key and no certificate, since the agent's start */    \
    X(ignored_connections) /* of addresses that cost too much; each try counts */                  \
    X(ignored_addresses)   /* now */                                                               \
    X(certificate_state)   /* enum cairn_certificate_state */                                      \
    X(certificate_left_s)  /* until it ends; 0: it has, or there is none */                        \
    X(refused_peers)       /* whose options differ */                                              \
    X(peers)               /* that it has a session with */                                        \
    X(sent_bytes)          /* to other agents since its start, as the next three */                \
    X(received_bytes)                                                                              \
    X(sent_messages)                                                                               \
    X(sent_block_bytes)  /* of state and parity, counted in sent_bytes too */                      \
    X(disk_free_bytes)   /* for its own directory; OPERATOR_UNKNOWN */                             \
    X(version_peers)     /* that speak no version of the protocol that it speaks */                \
    X(trainers)          /* attached and registered */                                             \
    X(attached_total)    /* trainers since the agent's start */                                    \
    X(launcher)          /* the session of a launcher lives; see operator_launcher.h */            \
    X(relaunch_asked_ms) /* since an operator asked for a relaunch, and 1; 0: never */             \
    X(local_ranks)       /* that the job runs on this node, 0 unknown */                           \
    X(world)             /* ranks of the job, 0 unknown */                                         \
    X(holder_rank)       /* the lowest of this node's trainers, as the next two */                 \
    X(holder_pid)        /* 0: unknown, or there are no trainers */                                \
    X(holder_ms)         /* attached for so long */                                                \
    X(local_epoch)       /* of the newest part in local_dir; step 0: none */                       \
    X(local_step)                                                                                  \
    X(local_err)    /* cairn_err: why the newest write there failed; 0: it did not */              \
    X(scrub_bytes)  /* compared with their checksums since the start, as the next three */         \
    X(scrub_passes) /* over all that it holds */                                                   \
    X(scrub_found)  /* damaged blocks and records */                                               \
    X(scrub_repaired)                                                                              \
    X(scrub_unrepairable) /* now: damage that repairs have left */                                 \
    X(scrub_pass_age_ns)  /* since the last full pass; OPERATOR_UNKNOWN: there was none */         \
    X(last_step)                                                                                   \
    X(committed_epoch)                                                                             \
    X(committed_step)                                                                              \
    X(committed_run)                                                                               \
    X(poison_epoch) /* of the newest poisoned generation; step 0: none */                          \
    X(poison_step)                                                                                 \
    X(poison_run)                                                                                  \
    X(poison_kept)       /* it is kept all the same */                                             \
    X(poison_first_step) /* since the last good one, as the next */                                \
    X(poison_rank)       /* that found it */                                                       \
    X(poison_tensors)    /* of that rank; 0: it was rejected */                                    \
    X(unwatched_rank)    /* the first with such tensors, as the next */                            \
    X(unwatched_tensors) /* of model and optimizer that never were finite; 0: none */              \
    X(ready_epoch)                                                                                 \
    X(ready_step)                                                                                  \
    X(ready_run)                                                                                   \
    X(ready_from_files)                                                                            \
    X(spill_stuck_ms)  /* the disk of spill_dir has not answered for so long; 0: it does */        \
    X(spills_given_up) /* because of that */                                                       \
    X(spill_failed_ms) /* spills that it led fail for so long; 0: the last one did not */          \
    X(protect_ns)      /* of the newest commit: from the first grant on; 0 unknown */              \
    X(reserved_bytes)  /* memory of this agent */                                                  \
    X(mended_records)  /* of generations, that the last verify found damaged */                    \
    X(state_bytes)     /* of this node's part of a generation, 0 before trainers register */       \
    X(captured)        /* snapshots, over this node's trainers, as the next four */                \
    X(skipped)                                                                                     \
    X(failed)                                                                                      \
    X(fence_count)                                                                                 \
    X(fence_ns_total)                                                                              \
    X(fence_ns_p50) /* of the slowest trainer, as the next two */                                  \
    X(fence_ns_p99)                                                                                \
    X(fence_ns_max)                                                                                \
    X(timing_rings)   /* of timing records that are read here */                                   \
    X(timing_records) /* read since the agent's start, as the next two */                          \
    X(timing_lost)    /* dropped by full rings, or beyond the separate limits */                   \
    X(timing_refused) /* that cannot be */                                                         \
    X(timing_dropped) /* parcels of reports that the analyst had no room for */                    \
    X(analyses)       /* this agent analyses the timing of the job; else the next are 0 */         \
    X(analysis_world)                                                                              \
    X(analysis_ranks) /* that report */                                                            \
    X(analysis_steps) /* analysed since it began */                                                \
    X(analysis_last_step)                                                                          \
    X(analysis_step_ns)    /* median time of the last steps, 0 unknown */                          \
    X(analysis_calibrated) /* each rank's normal is known */                                       \
    X(plans_made)          /* for changes of rates; by the analyst, as the next */                 \
    X(advice_action)       /* enum cairn_replan_action and 1; 0: none is given */                  \
    X(advice_current_ns)   /* a step of the plan that runs; OPERATOR_UNKNOWN: it cannot go on */   \
    X(advice_step_ns)      /* a step after it */                                                   \
    X(advice_cost_ns)      /* training stands still for that long */                               \
    X(advice_payback_steps)                                                                        \
    X(advice_given_wall_ns)                                                                        \
    X(refused_gate)    /* enum proposal_gate: why the wanted placement is not offered; 0: it is */ \
    X(refused_wall_ns) /* since when */                                                            \
    X(offer_number)    /* of shares; 0: none, and the next are 0 too */                            \
    X(offer_askers)    /* trainers of this node that ask for their share */                        \
    X(offer_takers)    /* … and compute by that offer */                                         \
    X(offer_changes)   /* that were offered within 24 hours, going back left out */

enum {
    OPERATOR_MISMATCH_BYTES = 192,
    OPERATOR_FAILURE_BYTES = 448,
    OPERATOR_NOTE_BYTES = 512,
    OPERATOR_KINDS = CAIRN_OPAQUE + 1, /* by enum cairn_kind */
    OPERATOR_UNCOVERED_MAX = 32,
    OPERATOR_RANKS_LISTED_MAX = 1024,
    OPERATOR_CAUSE_VERDICTS_MAX = 32 /* of the ledger */
};

/* What one rank covers; in JSON between agents an array of these numbers in this order. */
struct operator_rank {
    uint64_t rank;
    uint64_t reports;                 /* 1: it tells what it does not cover */
    uint64_t refuses;                 /* 1: it takes no snapshots */
    uint64_t uncovered;               /* things that it does not cover */
    uint64_t tensors[OPERATOR_KINDS]; /* registered; [0] is not used, here and below */
    uint64_t bytes[OPERATOR_KINDS];   /* that it captures of them */
};

/* Something that ranks do not cover. Texts are plain (base/text.h). */
struct operator_uncovered {
    uint64_t kind;  /* enum cairn_kind; 0: everything, they take no snapshots */
    uint64_t rank;  /* the first that reports it */
    uint64_t ranks; /* how many do */
    char name[CAIRN_NAME_BYTES_MAX];
    char reason[CAIRN_REASON_BYTES_MAX];
};

/* Sorted by kind: the most important are kept if there are more. */
struct operator_uncovered_list {
    uint32_t count;
    uint64_t left_out; /* further things, each once per rank */
    struct operator_uncovered items[OPERATOR_UNCOVERED_MAX];
};

struct operator_coverage {
    uint32_t rank_count;
    struct operator_rank ranks[CAIRN_RANKS_PER_NODE_MAX];
    struct operator_uncovered_list uncovered;
};

struct operator_node {
    bool known; /* it answered */
    bool alive; /* the agent that was asked hears it */
#define OPERATOR_NODE_FIELD(name) uint64_t name;
    OPERATOR_NODE_LIST(OPERATOR_NODE_FIELD)
#undef OPERATOR_NODE_FIELD
    char refusal[CAIRN_REFUSAL_BYTES];          /* why no run is assembled; "" */
    char poison_name[CAIRN_NAME_BYTES_MAX];     /* of a tensor that is not finite; "" */
    char poison_reason[CAIRN_REASON_BYTES_MAX]; /* why the step was rejected; "" */
    char unwatched_name[CAIRN_NAME_BYTES_MAX];  /* of the first of those tensors; "" */
    char mismatch[OPERATOR_MISMATCH_BYTES];     /* which option a peer sets differently; "" */
    char spill_failure[OPERATOR_FAILURE_BYTES]; /* why the last spill failed; "" */
    char launcher_note[OPERATOR_NOTE_BYTES];    /* of its launcher, or the one before; "" */
    uint32_t part_count;
    struct operator_part parts[CAIRN_PARTS_MAX];
    struct operator_coverage *coverage; /* owned; NULL: of no rank anything is known */
    struct operator_stacks *stacks;     /* owned; NULL: none were asked for, or none came */
    uint32_t cause_count, cause_verdict_count;
    struct cause causes[CAUSES_MAX];                      /* of open verdicts … */
    uint64_t cause_verdicts[OPERATOR_CAUSE_VERDICTS_MAX]; /* … with these numbers */
};

/* Python stacks of a node's ranks while the job hangs; equal stacks are one. */
struct operator_stacks {
    uint32_t count;
    struct operator_stack {
        uint32_t rank_count;
        uint32_t ranks[READING_RANKS_MAX];
        char text[READING_STACK_BYTES]; /* a frame a line */
    } items[];                          /* [READING_RANKS_MAX] */
};

enum { OPERATOR_SPILLED_MAX = 64, OPERATOR_REPORT_BYTES = 512 };

/* A generation in the spill directory. */
struct operator_spilled {
    struct cairn_generation_id generation;
    bool committed;
    uint64_t bytes;
    uint64_t age_ns;
};

/* What reading the files found. */
struct operator_files {
    bool configured; /* there is a spill directory */
    cairn_err err;   /* it could not be listed */
    uint32_t count;
    struct operator_spilled spilled[OPERATOR_SPILLED_MAX]; /* newest first */
    bool verified;
    struct cairn_generation_id verified_generation;
    cairn_err verify_err;
    uint64_t verified_bytes;
    char report[OPERATOR_REPORT_BYTES]; /* why verify_err, or where err */
};

/* All that an answer is made from. Borrowed. */
struct operator_job {
    const struct cairn_config *config;
    const struct operator_node *nodes; /* [config->node_count] */
    const struct cairn_roster *roster; /* of `newest`, or the active one; NULL unknown */
    struct cairn_generation_id newest; /* the newest committed or restored one, step 0: none */
    bool newest_from_files;
    const struct operator_files *files;
    const struct cairn_ledger *ledger; /* the verdicts; NULL: none are known */
    const struct proposal_book *book;  /* offers and proposals; NULL: none can be made */
    const struct proposal *home;       /* the home placement; NULL: unknown, or not asked for */
    uint64_t wall_ns;                  /* now; 0: not asked for */
};

enum operator_level { OPERATOR_OK = 0, OPERATOR_WARN = 1, OPERATOR_CRITICAL = 2 };

struct operator_check {
    enum operator_level level;
    const char *code; /* static */
    char what[512];
    char fix[256];
};

enum { OPERATOR_CHECKS_MAX = 24 };

struct operator_health {
    enum operator_level level; /* the worst */
    uint32_t check_count;
    struct operator_check checks[OPERATOR_CHECKS_MAX];

    uint32_t answering;
    uint64_t trainers;
    uint64_t last_step;
    uint64_t lost_steps; /* since the newest generation */
    uint64_t age_ns;     /* of the newest generation */
    uint64_t bytes;      /* of its parts that were reported */
    uint64_t protect_ns;
    uint64_t reserved_bytes; /* sum over nodes, as the next */
    uint64_t state_bytes;
    uint64_t captured, skipped, failed, fence_count;
    uint64_t fence_ns_p50, fence_ns_p99, fence_ns_max; /* of the slowest trainer */
    uint64_t bad_blocks;
    uint64_t dropped_messages, spills_given_up; /* sums over nodes */
    uint64_t blocked_ms; /* the leader waits for a member's DONE for so long; 0: it does not */
    uint32_t group_count;
    uint32_t parity;  /* the least of all groups */
    uint32_t parts;   /* that the newest generation has */
    uint32_t missing; /* parts that nobody who answered holds */
    uint32_t unkept;  /* nodes whose memory no keeper holds */
    int32_t survives; /* further nodes of every group that may be lost now; < 0: too much is lost
                         already */
    bool survives_domain; /* the loss of any one failure domain */
    uint64_t restore_estimate_ns;
    const struct operator_spilled *spilled; /* the newest committed one; NULL none */
    uint32_t ranks, ranks_reporting, ranks_refusing;
    uint64_t tensors[OPERATOR_KINDS]; /* sums over the ranks, as the next */
    uint64_t tensor_bytes[OPERATOR_KINDS];
    struct operator_uncovered_list uncovered;
};

/* A committed generation later than the restored one. */
struct operator_given_up {
    struct cairn_generation_id generation;
    bool in_memory; /* else in the spill directory, until newer generations replace it */
};

/* What a restore or a dry run did. */
struct operator_restored {
    struct cairn_outcome outcome;
    bool dry_run;
    bool from_files;
    bool ready; /* trainers can read it now: nothing is missing, and no restore is needed for it */
    /* They can read this one, which the last restore chose although `outcome.generation` was there;
     * step 0: none */
    struct cairn_generation_id decided;
    uint64_t lost_steps; /* OPERATOR_UNKNOWN: no node that answered has trained */
    uint64_t took_ns;
    char directory[CAIRN_CONFIG_PATH_BYTES_MAX]; /* that it was exported to; empty: it was not */
    uint64_t exported_bytes;
    uint32_t given_up_count;
    struct operator_given_up given_up[OPERATOR_SPILLED_MAX];
    char error[512]; /* empty: none */
};

/* What a verify found. */
struct operator_verified {
    struct cairn_outcome outcome;
    bool dry_run; /* nothing was checked: checked_bytes is the amount to check */
    int exit_code;
    uint64_t checked_bytes;    /* data of complete parts, on all nodes */
    uint64_t still_bad_blocks; /* of that generation, that the agents know damaged afterwards */
    uint64_t other_bad_blocks; /* of other generations, which a verify does not repair */
    uint64_t mended_records;   /* what agents keep beside their memory for later agents */
    uint32_t missing_parts;    /* of the newest generation, afterwards without a holder that
                                * answered */
    int32_t survives;          /* as in operator_health; only if parts are missing */
    uint32_t answering, configured;
    cairn_err catalog_err;
    uint64_t catalog_records;
    const struct operator_files *files;
    uint64_t took_ns;
};

#endif
