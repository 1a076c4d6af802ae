/*
 * examples/gpt/main.c - the program: everything is in run.c.
 */
#include "run.h"

int
main(int argc, char **argv)
{
    return gpt_run(argc, argv);
}
