/*
 * examples/gpt/say.h - what the trainer says to people, on stderr, one line per call.
 */
#ifndef GPT_SAY_H
#define GPT_SAY_H

#include <stdint.h>

/* Every line from now on begins with "gpt[RANK]: ". Thread: before any other. */
void gpt_say_as(uint32_t rank);

/* Writes one line, with one write. Thread: any. */
void gpt_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
