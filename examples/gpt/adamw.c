/*
 * examples/gpt/adamw.c - AdamW in fp32, from additions, products, quotients and square roots only:
 * IEEE 754 fixes their bits, so replicas on unlike machines stay equal.
 */
#include "adamw.h"

#include <math.h>

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif

/* base^exponent by squaring; pow() may differ between machines in its last bit */
static double
power(double base, uint64_t exponent)
{
    double result = 1.0;

    for (; exponent; exponent >>= 1, base *= base) {
        if (exponent & 1)
            result *= base;
    }
    return result;
}

struct gpt_adamw_step
gpt_adamw_prepare(const struct gpt_adamw *adamw, uint64_t step)
{
    struct gpt_adamw_step now = {.rate = adamw->learning_rate};

    if (step < adamw->warmup_steps)
        now.rate = adamw->learning_rate * (float)step / (float)adamw->warmup_steps;
    now.correction1 = (float)(1.0 / (1.0 - power((double)adamw->beta1, step)));
    now.correction2 = (float)(1.0 / (1.0 - power((double)adamw->beta2, step)));
    return now;
}

void
gpt_adamw_update(const struct gpt_adamw *adamw, const struct gpt_adamw_step *now, float *param,
                 float *exp_avg, float *exp_avg_sq, const float *grad, float scale, int decay,
                 size_t count)
{
    float keep = decay ? 1.0f - now->rate * adamw->weight_decay : 1.0f;

    for (size_t i = 0; i < count; i++) {
        float g = grad[i] * scale;
        float m = adamw->beta1 * exp_avg[i] + (1.0f - adamw->beta1) * g;
        float v = adamw->beta2 * exp_avg_sq[i] + (1.0f - adamw->beta2) * g * g;

        exp_avg[i] = m;
        exp_avg_sq[i] = v;
        param[i] = param[i] * keep - now->rate * (m * now->correction1) /
                                         (sqrtf(v * now->correction2) + adamw->epsilon);
    }
}
