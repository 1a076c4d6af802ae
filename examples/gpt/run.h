/*
 * examples/gpt/run.h - the trainer as a function, so that tests run it in processes of their own.
 */
#ifndef GPT_RUN_H
#define GPT_RUN_H

/*
 * Trains as the arguments say, argv[0] being the program. Returns the exit status of
 * gpt_options_help.
 */
int gpt_run(int argc, char **argv);

#endif
