/*
 * agent/service/proposal_book.h - changes of a book of proposals that rounds (proposal.c) and
 * decisions of operators (proposal_decide.c) both make. For these two files only.
 */
#ifndef CAIRN_AGENT_SERVICE_PROPOSAL_BOOK_H
#define CAIRN_AGENT_SERVICE_PROPOSAL_BOOK_H

#include "agent/service/proposal.h"

/* Remembers why a number is over, for later decisions of operators. decision NULL: nobody
 * decided. */
void book_note_end(struct proposal_book *book, uint64_t number, enum proposal_end end,
                   const struct proposal_decision *decision, uint64_t wall_ns);

/* Ends the relaunch that waits, if one does. */
bool book_end_relaunch(struct proposal_book *book, enum proposal_end end, uint64_t wall_ns);

/* Ends the proposal that waits, if one does. */
bool book_end_waiting(struct proposal_book *book, enum proposal_end end, uint64_t wall_ns);

/* Begins the story of an offer or of a relaunch. */
void book_begin_story(struct proposal_book *book, const struct proposal *made, uint64_t withdraws,
                      uint64_t wall_ns);

/* Makes a proposal the offer, under its number. decision NULL: nobody was asked. withdraws: the
 * offer that it takes back, or 0. */
void book_offer(struct proposal_book *book, const struct proposal *proposal,
                const struct proposal_decision *decision, uint64_t withdraws, uint64_t wall_ns);

/* A proposal with the next number. */
void book_give_number(struct proposal_book *book, struct proposal *proposal,
                      const struct proposal *from, uint64_t wall_ns);

/* Denials hold for one evidence: others end with it. */
void book_set_evidence(struct proposal_book *book, const struct proposal_slow *slow);

/* until_wall_ns 0: while its evidence holds. */
void book_deny(struct proposal_book *book, const struct proposal *proposal, uint64_t until_wall_ns);

#endif
