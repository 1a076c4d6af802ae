/*
 * agent/process/session_frame.h - handles the frames of trainers and operators.
 *
 * Invariant: frames are untrusted. The parsers of client/session.h bound them, and their numbers
 * are checked here. A frame that is malformed, or not allowed in the session's state, closes the
 * session.
 */
#ifndef CAIRN_AGENT_PROCESS_SESSION_FRAME_H
#define CAIRN_AGENT_PROCESS_SESSION_FRAME_H

#include <stdint.h>

/* A function of the loop: context is the struct session of a socket that is ready. */
void session_ready(void *context, int fd, uint32_t ready);

#endif
