/*
 * replan/detect/link.c - which channels carry their data more slowly than is normal for them.
 *
 * A channel is a pair of ranks in one direction, or a communicator with an operation. Its transfer
 * is what the last rank to arrive needed, per byte. It is compared with the channel's own first
 * steps, or with the channels of its class where it was slow from the beginning. A channel whose
 * transfers stay longer is hot; cause.c finds out why.
 */
#include "replan/detect/detector.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- thresholds of a slow channel ---- */

/* A shift makes a channel hot when it passes all three limits (slow.c explains score and steps). */
static const double size_min = 0.2624; /* lower median of the deviations, ln(1.3): 30 % longer */
static const double score_min = 7;     /* standard errors */
enum {
    STEPS_MIN = 6,
    TAIL_STEPS_MIN = 8,  /* ... where there is congestion, which lasts for some steps, too */
    TAIL_VALUES_MIN = 70 /* ... or where so few values show none */
};
/* Most of them are longer, not half: what is below a quarter of them is above this share of
 * size_min. */
static const double low_share = 0.25, low_size_share = 0.5;
/* Rings over the same nodes count together: each must reach the first score, the root of the sum of
 * their squares the second. */
static const double warm_score_min = 4.5, together_score_min = 8;
/* A channel that is slow from the first step on: over the middle of its class, ln(1.42). */
static const double excess_min = 0.35;

/* A hot channel ends when both hold. */
enum {
    QUIET_STEPS = 8 /* so many steps lie behind the likeliest end */
};
static const double end_sure_min = 12; /* an end is e^12 times likelier than that it goes on */

/* ---- noise and other constants ---- */

static const double sigma_floor = 0.02;
/* Sends are buffered if this share of the transfers ends for one long before the other. In a long
 * pipeline most receivers wait for the data, and then both ends are together; lost records, which
 * pair the wrong ends, stay below it. */
static const double apart_share = 0.08;
/* The median distance of two values of normal noise, in standard deviations of one. */
static const double jump_of_noise = 0.954;
enum {
    ENDS_MIN = 20,    /* transfers that tell whether sends are buffered */
    FEW_VALUES = 100, /* fewer first steps of a class may show too little noise by chance */
    JUMPS_MIN = 12,
    ONSET_STEPS = 8,  /* by which noise may move the onset of a shift */
    GATHER_STEPS = 3, /* from the first hot channel until causes are looked for */
    CLASS_MIN = 4,
    NORMAL_STEPS_MAX = 256,
    CLASSES = 2 + 16 * 2 * 64
};

static int
compare_floats(const void *left, const void *right)
{
    float a = *(const float *)left, b = *(const float *)right;

    return (a > b) - (a < b);
}

/* The quantile of a value over the channels of a class. Of their normals, or of the
 * noise of their first steps. NaN with fewer than `least`. */
static double
class_quantile(const struct cairn_detector *detector, uint32_t class_index, bool noise,
               double share, uint32_t least)
{
    float *values = malloc((detector->channel_count * CAIRN_CALIBRATE_STEPS + 1) * sizeof *values);
    uint32_t count = 0;
    double result = (double)NAN;

    for (uint32_t i = 0; values && i < detector->channel_count; i++) {
        const struct cairn_channel *channel = &detector->channels[i];

        if (channel->class_index != class_index || isnan(channel->normal))
            continue;
        if (!noise)
            values[count++] = (float)channel->normal;
        else
            for (uint32_t k = 0; k < channel->first_count; k++)
                values[count++] = fabsf(channel->first[k] - (float)channel->normal);
    }
    if (count >= least && count > 0) {
        qsort(values, count, sizeof *values, compare_floats);
        result = (double)values[(uint32_t)(share * (count - 1))];
    }
    free(values);
    return result;
}

static cairn_err
make_classes(struct cairn_detector *detector)
{
    if (detector->classes)
        return CAIRN_OK;
    detector->classes = calloc(CLASSES, sizeof *detector->classes);
    return detector->classes ? CAIRN_OK : CAIRN_NOMEM;
}

static bool
by_sender(const struct cairn_detector *detector, const struct cairn_channel *channel)
{
    return detector->buffered && channel->comm == CAIRN_COMM_NONE;
}

/* A channel's first steps are over: its normal, and its class's noise again. */
static void
calibrate(struct cairn_detector *detector, struct cairn_channel *channel)
{
    float values[CAIRN_CALIBRATE_STEPS];

    if (channel->comm == CAIRN_COMM_NONE && detector->ends >= ENDS_MIN &&
        (double)detector->ends_apart > apart_share * (double)detector->ends)
        detector->buffered = true;
    if (by_sender(detector, channel))
        memcpy(channel->first, channel->first_send, sizeof channel->first);
    for (uint32_t k = 0; k < channel->first_count; k++)
        values[k] = channel->first[k];
    channel->normal = (double)cairn_quantile(values, channel->first_count, 0.5);
    detector->classes[channel->class_index].sigma = 0; /* to be found again */
}

/* Few values tell little of the noise: the fewer, the more noise is assumed. */
static void
find_class(struct cairn_detector *detector, uint32_t class_index)
{
    double spread = class_quantile(detector, class_index, true, 0.5, 4);
    uint32_t count = 0;

    for (uint32_t i = 0; i < detector->channel_count; i++)
        if (detector->channels[i].class_index == class_index &&
            !isnan(detector->channels[i].normal))
            count += detector->channels[i].first_count;
    detector->classes[class_index].values = count;
    detector->classes[class_index].sigma =
        isnan(spread) ? 1 : fmax(1.6 * (1 + 2 / sqrt(count)) * spread, sigma_floor);
    detector->classes[class_index].middle =
        class_quantile(detector, class_index, false, 0.35, CLASS_MIN);
}

/* A channel that was slow from the beginning, among the others of its class. */
static void
find_excess(struct cairn_detector *detector, struct cairn_channel *channel)
{
    double middle = detector->classes[channel->class_index].middle;
    double least = fmax(excess_min, 5 * 1.25 * detector->classes[channel->class_index].sigma /
                                        sqrt(CAIRN_CALIBRATE_STEPS));

    channel->normal_steps = CAIRN_CALIBRATE_STEPS / 1.57; /* a median's efficiency */
    if (!isnan(middle) && channel->normal - middle > least)
        channel->excess = channel->normal - middle;
    for (uint32_t k = 0; k < channel->first_count; k++)
        cairn_shift_push(&channel->shift, channel->first_step[k],
                         (double)channel->first[k] - channel->normal + channel->excess);
}

/* What has left the window without being part of a shift makes the normal better known. */
static void
refine(const struct cairn_detector *detector, struct cairn_channel *channel)
{
    double clip = 3 * detector->classes[channel->class_index].sigma, oldest;

    if (channel->shift.used < CAIRN_SHIFT_WINDOW || channel->hot)
        return;
    oldest = cairn_shift_value(&channel->shift, CAIRN_SHIFT_WINDOW - 1) - channel->base;
    channel->normal_steps = fmin(channel->normal_steps + 1, NORMAL_STEPS_MAX);
    channel->base += fmax(fmin(oldest, clip), -clip) / channel->normal_steps;
}

/*
 * The noise of one step of a channel. Of a class of one or two channels the first steps may show
 * too little noise by chance, and a job without anything wrong would be told of slow links again
 * and again: there the channel's own later steps have a say. From one step to the next a slow
 * channel stays what it is, so that a shift adds nothing.
 */
static double
noise_of(const struct cairn_detector *detector, const struct cairn_channel *channel)
{
    const struct cairn_class *channel_class = &detector->classes[channel->class_index];
    uint32_t jumps = channel->shift.used > 0 ? channel->shift.used - 1 : 0;
    float values[CAIRN_SHIFT_WINDOW];

    if (channel_class->values >= FEW_VALUES || jumps < JUMPS_MIN)
        return channel_class->sigma;
    for (uint32_t i = 0; i < jumps; i++)
        values[i] = (float)fabs(cairn_shift_value(&channel->shift, i) -
                                cairn_shift_value(&channel->shift, i + 1));
    return fmax(channel_class->sigma, (double)cairn_quantile(values, jumps, 0.5) / jump_of_noise);
}

static bool
crosses(const struct cairn_detector *detector, const struct cairn_channel *channel)
{
    return channel->comm == CAIRN_COMM_NONE
               ? cairn_topology_apart(detector->topology, channel->source, channel->target)
               : detector->topology->comms[channel->comm].crosses;
}

/* Adds what the channels like one have shown before a step: those of its class, or where these are
 * few, all that leave a node or all that do not. Where little is known before it (early), others
 * tell by what came later too, but for those that share a node: what makes this one slow may be
 * that node's NIC. */
static void
add_history(const struct cairn_detector *detector, const struct cairn_channel *channel,
            uint32_t before_step, bool early, struct cairn_history *history)
{
    bool few = detector->classes[channel->class_index].values < FEW_VALUES,
         far = crosses(detector, channel);
    uint32_t stride = 1 + detector->channel_count / CAIRN_HISTORY_SERIES_MAX;

    for (uint32_t i = (uint32_t)(channel - detector->channels) % stride;
         i < detector->channel_count; i += stride) {
        const struct cairn_channel *other = &detector->channels[i];
        uint32_t before = early && !(other->nodes & channel->nodes) ? UINT32_MAX : before_step;
        bool slow = other->hot && other->found.since_step < before;

        if (!isnan(other->normal) &&
            (few ? crosses(detector, other) == far : other->class_index == channel->class_index))
            cairn_history_add(history, &other->shift, other->base,
                              slow ? other->found.since_step : before);
    }
}

bool
cairn_detect_link_shifted(const struct cairn_detector *detector,
                          const struct cairn_channel *channel,
                          const struct cairn_shift_limits *limits, struct cairn_shift_found *found)
{
    double reach = cairn_shift_reach(limits), mean;
    struct cairn_history history;
    bool early;

    if (!cairn_shift_find(&channel->shift, limits, found) ||
        cairn_shift_quantile(&channel->shift, found->steps, low_share) - limits->base <
            low_size_share * limits->size_min)
        return false;
    cairn_history_start(&history, reach, CAIRN_HISTORY_CHANNELS);
    early = channel->shift.used - found->steps < CAIRN_CALIBRATE_STEPS;
    add_history(detector, channel, found->since_step, early, &history);
    if (found->steps < TAIL_STEPS_MIN &&
        (history.values < TAIL_VALUES_MIN || cairn_history_has_tail(&history)))
        return false;
    mean = cairn_shift_mean(&channel->shift, found->base, reach, found->steps);
    found->score = fmin(found->score,
                        fmax(CAIRN_HISTORY_GAIN * cairn_history_score(&history, mean, found->steps),
                             cairn_history_wander_score(&history, found->size, found->steps)));
    return found->score >= limits->score_min;
}

/* How much slower a hot channel is, as well as can be told: by all of its steps since the onset but
 * the last `tail`, over all earlier steps. It stays as it was if none is left. */
static void
measure(const struct cairn_detector *detector, struct cairn_channel *channel, uint32_t tail)
{
    double sigma = noise_of(detector, channel), size;

    if (tail >= channel->found.steps || tail >= channel->shift.used)
        return;
    size = cairn_shift_height(&channel->shift, tail, channel->found.steps - tail, sigma) -
           channel->found.base;
    if (size > 0)
        channel->found.size = size;
}

double
cairn_detect_link_rate(const struct cairn_detector *detector, uint32_t verdict)
{
    double sum = 0, weights = 0;

    for (uint32_t i = 0; i < detector->channel_count; i++) {
        const struct cairn_channel *channel = &detector->channels[i];
        double sigma = detector->classes[channel->class_index].sigma, weight;
        uint32_t steps =
            channel->found.steps < CAIRN_SHIFT_WINDOW ? channel->found.steps : CAIRN_SHIFT_WINDOW;

        if (!channel->hot || channel->verdict != verdict)
            continue;
        weight = 1 / (sigma * sigma * (1.0 / steps + 1 / channel->found.base_values));
        sum += weight * channel->found.size;
        weights += weight;
    }
    return weights > 0 ? exp(sum / weights) : 1;
}

/* Whether a hot channel is over. One that has faded is judged as the least that counts, else
 * nothing would ever tell it from noise. */
static void
follow(struct cairn_detector *detector, struct cairn_channel *channel)
{
    bool others = false;
    double sure;
    uint32_t tail;

    channel->found.steps++;
    tail =
        cairn_shift_tail(&channel->shift, channel->found.base, fmax(channel->found.size, size_min),
                         noise_of(detector, channel), channel->found.steps, &sure);
    if (tail < QUIET_STEPS || sure < end_sure_min) {
        measure(detector, channel, tail);
        return;
    }
    channel->hot = false;
    for (uint32_t i = 0; i < detector->channel_count; i++)
        others |= detector->channels[i].hot && detector->channels[i].verdict == channel->verdict;
    if (channel->verdict != UINT32_MAX && !others && channel->shift.used > tail)
        detector->verdicts.items[channel->verdict].until_step =
            cairn_shift_step(&channel->shift, tail);
    channel->verdict = UINT32_MAX;
    channel->excess = 0;
    cairn_shift_clear(&channel->shift);
}

/* The rates of verdicts that last, from what their channels have shown since. */
static void
follow_rates(struct cairn_detector *detector)
{
    for (uint32_t v = 0; v < detector->verdicts.count; v++) {
        struct cairn_verdict *verdict = &detector->verdicts.items[v];
        double rate;

        if (verdict->kind != CAIRN_SLOW_LINK || verdict->until_step != CAIRN_STEP_NONE)
            continue;
        rate = cairn_detect_link_rate(detector, v);
        if (rate > 1)
            verdict->rate = rate;
    }
}

static void
heat(struct cairn_detector *detector, struct cairn_channel *channel)
{
    channel->hot = true;
    measure(detector, channel, 0);
    channel->said_step = CAIRN_STEP_NONE;
    channel->vague = false;
    if (!detector->links_pending) {
        detector->links_pending = true;
        detector->links_pending_step = detector->now.step;
    }
}

static void
judge(struct cairn_detector *detector, struct cairn_channel *channel)
{
    struct cairn_shift_limits limits = {.sigma = noise_of(detector, channel),
                                        .base = channel->base,
                                        .base_values = channel->normal_steps,
                                        .first_values = CAIRN_CALIBRATE_STEPS,
                                        .score_min = warm_score_min,
                                        .size_min = size_min,
                                        .steps_min = STEPS_MIN};

    if (channel->hot) {
        follow(detector, channel);
        return;
    }
    channel->warm = cairn_detect_link_shifted(detector, channel, &limits, &channel->found);
    if (channel->warm && channel->found.score >= score_min)
        heat(detector, channel);
}

/* True for a ring that is nearly hot too, over the same nodes and since about the same time. */
static bool
goes_with(const struct cairn_channel *first, const struct cairn_channel *channel)
{
    return channel->warm && !channel->hot && channel->comm != CAIRN_COMM_NONE &&
           channel->found.since_step <= first->found.since_step + ONSET_STEPS &&
           first->found.since_step <= channel->found.since_step + ONSET_STEPS &&
           channel->path == first->path;
}

/*
 * Rings between nodes that are not evidence each are some together, where they have been slow since
 * the same time: they go over the same links. Their scores add up as those of independent noise do.
 */
static void
heat_together(struct cairn_detector *detector)
{
    for (uint32_t i = 0; i < detector->channel_count; i++) {
        const struct cairn_channel *first = &detector->channels[i];
        double squares = 0;

        if (!first->warm || first->hot || first->comm == CAIRN_COMM_NONE ||
            !detector->topology->comms[first->comm].crosses)
            continue;
        for (uint32_t k = 0; k < detector->channel_count; k++)
            if (goes_with(first, &detector->channels[k]))
                squares += detector->channels[k].found.score * detector->channels[k].found.score;
        if (squares < together_score_min * together_score_min)
            continue;
        for (uint32_t k = 0; k < detector->channel_count; k++)
            if (k != i && goes_with(first, &detector->channels[k]))
                heat(detector, &detector->channels[k]);
        heat(detector, &detector->channels[i]);
    }
}

cairn_err
cairn_detect_links(struct cairn_detector *detector)
{
    cairn_err err = make_classes(detector);

    if (err)
        return err;
    for (uint32_t i = 0; i < detector->channel_count; i++) {
        struct cairn_channel *channel = &detector->channels[i];

        if (isnan(channel->transfer) || !isnan(channel->normal))
            continue;
        channel->first_step[channel->first_count] = detector->now.step;
        channel->first_send[channel->first_count] = (float)log(channel->send);
        channel->first[channel->first_count++] = (float)log(channel->transfer);
        if (channel->first_count == CAIRN_CALIBRATE_STEPS)
            calibrate(detector, channel);
    }
    for (uint32_t i = 0; i < detector->channel_count; i++) {
        struct cairn_channel *channel = &detector->channels[i];

        channel->warm = false;
        if (isnan(channel->transfer) || isnan(channel->normal))
            continue;
        if (detector->classes[channel->class_index].sigma <= 0)
            find_class(detector, channel->class_index);
        if (channel->normal_steps == 0) { /* calibrated in this step */
            find_excess(detector, channel);
            judge(detector, channel);
            continue;
        }
        refine(detector, channel);
        cairn_shift_push(&channel->shift, detector->now.step,
                         log(by_sender(detector, channel) ? channel->send : channel->transfer) -
                             channel->normal + channel->excess);
        judge(detector, channel);
    }
    heat_together(detector);
    follow_rates(detector);
    return CAIRN_OK;
}

bool
cairn_detect_links_gathered(const struct cairn_detector *detector)
{
    return detector->links_pending &&
           detector->now.step - detector->links_pending_step >= GATHER_STEPS;
}
