/*
 * examples/gpt/adamw.h - AdamW: Adam with decoupled weight decay (Loshchilov and Hutter, 2019).
 */
#ifndef GPT_ADAMW_H
#define GPT_ADAMW_H

#include <stddef.h>
#include <stdint.h>

struct gpt_adamw {
    float learning_rate; /* after the warm-up */
    float beta1;
    float beta2;
    float epsilon;
    float weight_decay;
    uint32_t warmup_steps; /* the rate grows linearly over so many updates; 0: none */
};

/* What is the same for all elements of one update. */
struct gpt_adamw_step {
    float rate;
    float correction1; /* 1 / (1 - beta1^n) */
    float correction2; /* 1 / (1 - beta2^n) */
};

/* The constants of update number `step`, counted from 1. */
struct gpt_adamw_step gpt_adamw_prepare(const struct gpt_adamw *adamw, uint64_t step);

/*
 * Updates param[count] and its moments exp_avg and exp_avg_sq with the gradient grad * scale. The
 * decay applies where `decay` is nonzero. Element by element: no result depends on another.
 */
void gpt_adamw_update(const struct gpt_adamw *adamw, const struct gpt_adamw_step *now, float *param,
                      float *exp_avg, float *exp_avg_sq, const float *grad, float scale, int decay,
                      size_t count);

#endif
