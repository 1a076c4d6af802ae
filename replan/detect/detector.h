/*
 * replan/detect/detector.h - the state of a detector, for the files of this room.
 *
 *   detect.c     takes records and steps, decides when a step is whole, calls the parts in order
 *   step.c       matches the ranks' parts of each operation
 *   behind.c     reads the computation where all operations run in the background
 *   normal.c     learns what is normal
 *   slow.c       judges ranks; holds the threshold of a slow rank
 *   node.c       joins the slow ranks of one node
 *   whole.c      judges nodes that are whole pipelines
 *   link.c       judges channels
 *   cause.c      finds what makes channels slow
 *   structure.c  judges the plan: stages, data, pauses
 *   hang.c       finds who has stopped
 *   detector.c   the state's memory, its verdicts
 */
#ifndef CAIRN_REPLAN_DETECT_DETECTOR_H
#define CAIRN_REPLAN_DETECT_DETECTOR_H

#include "replan/detect/detect.h"
#include "replan/detect/history.h"
#include "replan/trace/intake.h"
#include "replan/trace/period.h"
#include "replan/detect/shift.h"

/* A score by what the job has shown before is a bound, lower than that of normal noise is: it
 * counts for so much more. */
#define CAIRN_HISTORY_GAIN 1.1

enum {
    CAIRN_CALIBRATE_STEPS = 12, /* the first steps, from which each rank's and channel's normal
                                 * comes */
    CAIRN_SPANS = 32,
    CAIRN_JUMPS = 5
};

/* What is kept of each rank in the first steps: ln(compute / work), waits, ln(compute / work) as it
 * is if sends go on by themselves, the most that it may be, ln of the first gap, the computation
 * that operations hide (both per work), the time in operations, and the bytes given in
 * all-to-alls. */
enum {
    CAIRN_KEPT_COMPUTE,
    CAIRN_KEPT_WAIT,
    CAIRN_KEPT_ASIDE,
    CAIRN_KEPT_MOST,
    CAIRN_KEPT_FIRST,
    CAIRN_KEPT_HIDDEN,
    CAIRN_KEPT_OPERATIONS,
    CAIRN_KEPT_DEALT,
    CAIRN_KEPT
};

/* A step that is not analysed yet. */
struct cairn_flight {
    uint32_t step;
    struct cairn_rank_step **ranks; /* [world], NULL where not (yet) there */
};

/* What one step said of each rank; filled by step.c. */
struct cairn_observation {
    uint32_t step;
    double *compute_ns; /* [world] NaN where unknown */
    double *aside_ns;   /* [world] the same if sends go on by themselves, while that is not known */
    double *most_ns;    /* [world] the most that it may be; NaN where unknown */
    double *first_ns;   /* [world] the part that no operation hides; NaN where unknown */
    double *hidden_ns;  /* [world] computation that operations hide; NaN where unknown */
    bool *is_hidden;    /* [world] operations have hidden when the rank was through: compute_ns is a
                         * bound */
    bool all_behind;    /* a rank's operations seem to go on behind computation */
    double *work;       /* [world] 0 where unknown */
    double *operations_ns; /* [world] the sum of their durations */
    double *dealt;         /* [world] bytes given in all-to-alls */
    double *wait_ns;       /* [world] in operations, beyond what the transfer took */
};

struct cairn_rank_state {
    struct cairn_shift shift;          /* of ln(compute / normal) */
    float wait_ns[CAIRN_SHIFT_WINDOW]; /* of the same steps, in the same slots */
    float compute_ns[CAIRN_SHIFT_WINDOW];
    float operations_ns[CAIRN_SHIFT_WINDOW];
    float dealt[CAIRN_SHIFT_WINDOW];                             /* bytes given in all-to-alls */
    uint32_t usual_samples, usual_last_lane, usual_of_last_lane; /* of whole steps */
    uint32_t usual_age;                                          /* how many steps ago */
    bool lost_last;      /* the last record of the last step is lost */
    double normal;       /* ln of the rank's own normal computation; NaN until calibrated */
    double normal_aside; /* the same of the other reading of sends */
    double normal_operations_ns, normal_dealt;
    double normal_first; /* ln of the first gap, per work; NaN */
    double earlier;      /* ln of its normal per work in an earlier run; NaN */
    bool was_slow;       /* that run has left it slow */
    bool is_recalled;    /* so the normal was compared with that one, and the others' */
    double hidden_ns;    /* computation that operations hide, per work: counted with the gaps */
    double gap_jumps_ns, interval_jumps_ns; /* struct cairn_rank_step's, of the last step */
    double doubt; /* by how much the normal may be too low: what operations hide; a logarithm */
    double normal_steps;   /* how many steps that is as good as */
    bool is_borrowed;      /* the normals are the peers' */
    uint32_t hidden_steps; /* the last steps, in which operations seem to hide computation */
    bool by_first;         /* so that only the first gap tells the rank's speed in this step */
    float doubts[CAIRN_SHIFT_WINDOW]; /* the doubt of each value */
    float first[CAIRN_SHIFT_WINDOW];  /* ln of each step's first gap over normal_first; NaN */
    double base;                      /* correction of the normal by later quiet steps */
    double excess;                    /* how much the normal is above the peers' */
    double sigma;
    uint32_t verdict;    /* index of its open verdict, UINT32_MAX */
    uint32_t slow_steps; /* of the open verdict, */
    double slow_base;    /* … and what is normal by all that stands before it */
};

/* A node that holds the whole pipeline of each of its ranks. */
struct cairn_whole_node {
    struct cairn_shift shift; /* of what its pipelines have in common, over the median of all */
    double base, base_values; /* what is normal for that, and from how many values it is known */
    double sum;               /* of its pipelines in this step */
    uint32_t pipelines;       /* that lie on it; 0: it is not whole */
    uint32_t verdict;         /* UINT32_MAX */
    uint32_t slow_steps;
};

/* One transfer of a channel in the step that is analysed. */
struct cairn_slot {
    float least_ns; /* the shortest part of any rank: that of the last to arrive */
    float bytes;
    float send_ns;   /* the sender's, of a pair */
    float first_ns;  /* the first part, while … */
    uint32_t end_us; /* … ends are compared */
    uint32_t parts;
};

struct cairn_channel {
    uint64_t key;
    uint32_t comm;           /* CAIRN_COMM_NONE of pairs */
    uint32_t source, target; /* of pairs, and of communicators of two */
    uint32_t members;
    uint64_t path; /* equal for channels over the same links: those of a pair of ranks, or all rings
                    * over the same nodes */
    uint64_t nodes; /* a bit for each node that it touches, shared by many where there are more than
                     * 64 */
    uint32_t class_index; /* of channels that may be compared */
    uint32_t seq_base;
    struct cairn_slot *slots;
    uint32_t slot_count, slot_room;
    double transfer;  /* ns per byte (or ns) of this step; NaN */
    double send;      /* of a pair, the same by what its sender shows */
    int32_t apart_us; /* by which its ends were apart last, on two clocks */
    bool ends_known;
    struct cairn_shift shift;
    float first[CAIRN_CALIBRATE_STEPS];
    float first_send[CAIRN_CALIBRATE_STEPS];
    uint32_t first_step[CAIRN_CALIBRATE_STEPS];
    uint32_t first_count;
    double normal, normal_steps, base, excess; /* as of a rank */
    bool hot;
    bool warm;                      /* nearly hot in this step */
    struct cairn_shift_found found; /* where hot or warm */
    uint32_t said_step;             /* when it first was part of a verdict */
    bool vague;       /* a ring in a verdict that does not say which of its links is slow */
    uint32_t verdict; /* UINT32_MAX */
};

/* What is kept of a run of steps that were watched for uneven data and for pauses. */
struct cairn_watched {
    uint32_t steps, pauses; /* judged; those in which single ranks were late */
    uint32_t pause_first_step, first_step;
    uint32_t length_steps, uneven; /* steps in which pipelines were compared, and
                                             * differed */
    uint32_t uneven_first_step, length_first_step;
    double largest_sum; /* of the longest pipeline over the mean */
};

/* What the first steps show of a job all of whose operations go on behind the computation. */
struct cairn_behind {
    uint32_t steps, rank_steps;
    uint32_t shown[CAIRN_INTAKE_PLACES]; /* in how many a gap stands before each operation */
    bool is_found;                       /* it is such a job */
    uint32_t place; /* the operation up to whose start its steps are computed */
};

/* Channels that may be compared with each other. */
struct cairn_class {
    double sigma;    /* noise of one step; 0: to be found */
    double middle;   /* of their normals; NaN where they are too few */
    uint32_t values; /* that the noise is known from */
};

struct cairn_detector {
    const struct cairn_topology *topology;
    uint32_t steps_in_flight_max;
    struct cairn_intake *intakes; /* [world] */
    struct cairn_period *periods; /* [world], for records without steps; made at the first such */
    uint32_t *rank_step;          /* [world] the step a rank is in */
    bool *seen;                   /* [world] */
    bool *left_out;               /* [world] not waited for */
    bool by_reports;              /* somebody else sums up the ranks' steps, and knows which of them
                                   * are heard of */
    uint32_t ranks_seen;
    struct cairn_flight *flights; /* in the order of steps */
    uint32_t flight_count;
    uint32_t arrivals; /* of summaries, since the last look for whole steps */
    struct cairn_observation now;
    uint32_t steps, last_step;
    double spans_ns[CAIRN_SPANS];
    uint32_t span_count;
    bool finished;

    /* ranks */
    struct cairn_rank_state *ranks;
    float *calibrate; /* [CAIRN_KEPT][CAIRN_CALIBRATE_STEPS][world]; see cairn_detect_kept */
    uint32_t calibrate_step[CAIRN_CALIBRATE_STEPS];
    uint32_t calibrate_count;
    bool calibrated;
    struct cairn_behind behind;
    bool sends_aside;                  /* sends go on while their ranks compute */
    double sends_jumps_ns[CAIRN_GAPS]; /* struct cairn_rank_step's jumps, of the first steps */
    bool sends_unsure;               /* that may or may not be: the computation is read both ways */
    bool by_pipeline;                /* each pipeline's own common variation is taken out … */
    bool by_pairs;                   /* … and that is the smaller of two ranks' */
    double *pipeline_common;         /* [pipeline_count] … and was this in the last step */
    struct cairn_whole_node *wholes; /* [node_count] where by_pipeline, else NULL */
    double whole_sigma;
    double sigma;
    double first_sigma;       /* of the first gaps */
    float jumps[CAIRN_JUMPS]; /* of the last steps, by how much the ranks' deviations differ from
                               * the step before: the median */
    uint32_t jump_count;
    double noise_growth; /* how much noisier all ranks are, or were a while ago, than in the first
                          * steps; 1 or more */
    float *scratch;      /* [world] */
    double *value;       /* [world] */
    double *early;       /* [world] … before what is common is taken out */
    double *value_aside; /* [world] the same by the other reading of sends */

    /* channels */
    struct cairn_channel *channels;
    uint32_t channel_count, channel_room;
    uint64_t ends, ends_apart; /* transfers of pairs in the first steps, and those that do not end
                                * for both at the same time */
    bool buffered;             /* sends end by themselves: only they show how long transfers take */
    uint32_t *channel_index;   /* open hash of keys, index plus 1 */
    uint32_t channel_hash_room;
    struct cairn_class *classes; /* [CLASSES] */
    bool links_pending;
    uint32_t links_pending_step;

    /* structure */
    uint32_t *pauses; /* [world] lone late steps, of all steps that were judged */
    uint32_t pause_count, watched_steps;
    uint32_t *pauses_now;            /* [2][world] lone late steps in … */
    struct cairn_watched watched[2]; /* the present run of steps, and the one before */
    bool hang_said, stop_said;
    double hang_longest_ns;  /* that somebody has waited in the reported hang */
    double hang_outlived_ns; /* … in one that went on by itself: such waits are known */

    struct cairn_verdicts verdicts;
};

/* detector.c: takes a verdict out, which no rank and no channel may point to any more. */
void cairn_detect_drop(struct cairn_detector *detector, uint32_t index);
void cairn_flight_fini(const struct cairn_detector *detector, struct cairn_flight *flight);
/* step.c: fills detector->now and the channels' transfers. */
CAIRN_MUST_CHECK cairn_err cairn_detect_match(struct cairn_detector *detector,
                                              const struct cairn_flight *flight);
/* behind.c: true where the first steps have shown by now that all operations go on behind the
 * computation. */
bool cairn_detect_learn_behind(struct cairn_detector *detector, const struct cairn_flight *flight);
/* In such a job: how long a rank computed in a step; NaN where it is not known. !*is_shown: that is
 * the most that it may be. */
double cairn_detect_behind_ns(const struct cairn_detector *detector,
                              const struct cairn_rank_step *part, bool *is_shown);
/* normal.c: takes out of value[world] what all ranks, or those of each pipeline, have in
 * common; sigma is their noise. */
void cairn_detect_remove_common(struct cairn_detector *detector, double *value, bool by_pipeline,
                                double sigma);
/* What a block keeps of a rank in the first step `index`. */
float *cairn_detect_kept(const struct cairn_detector *detector, uint32_t block, uint32_t index,
                         uint32_t rank);
/* From ln(computation / work) by both readings of sends, in detector->value and ->value_aside, to
 * the deviations from the ranks' normals and from what is common, in detector->value; NaN where it
 * is not known. operations_known: detector->now has the time in operations of the same step. */
void cairn_detect_deviations(struct cairn_detector *detector, bool by_pipeline, double sigma,
                             bool operations_known);
/* The deviations of the kept first step `index`, in detector->value. */
void cairn_detect_first_values(struct cairn_detector *detector, uint32_t index, bool by_pipeline,
                               double sigma, bool operations_known);
/* From the first steps: normals, noise, and whether pipelines vary each by itself. */
void cairn_detect_learn_normals(struct cairn_detector *detector);
/* slow.c */
CAIRN_MUST_CHECK cairn_err cairn_detect_ranks(struct cairn_detector *detector);
CAIRN_MUST_CHECK cairn_err cairn_detect_slow_finish(struct cairn_detector *detector);
/* whole.c: where pipelines vary each by itself; first once, with the noise of the first
 * steps. */
CAIRN_MUST_CHECK cairn_err cairn_detect_wholes_learn(struct cairn_detector *detector);
CAIRN_MUST_CHECK cairn_err cairn_detect_wholes(struct cairn_detector *detector);
bool cairn_detect_any_whole_slow(const struct cairn_detector *detector);
/* node.c: joins the verdicts of a node's ranks; at the last with what is nearly sure. */
CAIRN_MUST_CHECK cairn_err cairn_detect_nodes(struct cairn_detector *detector, bool last);
/* link.c */
CAIRN_MUST_CHECK cairn_err cairn_detect_links(struct cairn_detector *detector);
/* Whether channels became slow long enough ago that others with the same cause show it too. */
bool cairn_detect_links_gathered(const struct cairn_detector *detector);
/* Whether a channel's last steps are a shift, by normal noise and by what channels like it have
 * shown before. */
bool cairn_detect_link_shifted(const struct cairn_detector *detector,
                               const struct cairn_channel *channel,
                               const struct cairn_shift_limits *limits,
                               struct cairn_shift_found *found);
/* How much longer the hot channels of a verdict take than normal, each weighted by how well that is
 * known; 1 without any. */
double cairn_detect_link_rate(const struct cairn_detector *detector, uint32_t verdict);
/* cause.c: says what makes the hot channels slow that no verdict explains yet. */
CAIRN_MUST_CHECK cairn_err cairn_detect_link_causes(struct cairn_detector *detector);
/* structure.c */
CAIRN_MUST_CHECK cairn_err cairn_detect_stages(struct cairn_detector *detector);
CAIRN_MUST_CHECK cairn_err cairn_detect_data(struct cairn_detector *detector);
/* Counts the lone late steps of each rank, one step after they were pushed. What is uneven is asked
 * of the last one or two runs of steps, so that it may begin late, and end. */
void cairn_detect_count_pauses(struct cairn_detector *detector);
/* Whether pipelines have been loaded unevenly in most of the last steps. */
bool cairn_detect_is_uneven(const struct cairn_detector *detector);
/* True where pauses as often as the other ranks' could have met on a rank and look like this
 * shift. */
bool cairn_detect_may_be_pauses(const struct cairn_detector *detector, uint32_t rank,
                                const struct cairn_shift_found *found);

#endif
