/*
 * tools/convert/pickle/text.h - the values that protocol 0 of pickle writes as lines of text.
 *
 * Each takes a line without its newline. NULL: *why says what is wrong with it (static), or the
 * arena is full.
 */
#ifndef CAIRN_TOOLS_CONVERT_PICKLE_TEXT_H
#define CAIRN_TOOLS_CONVERT_PICKLE_TEXT_H

#include "tools/convert/pickle/pickle.h"

/* INT: decimal, or 00 and 01 for False and True. */
struct cairn_pickle_node *cairn_pickle_line_int(struct cairn_pickle *pickle, const uint8_t *line,
                                                size_t line_bytes, const char **why);
/* LONG: decimal of at most 640 digits, an L after it allowed. */
struct cairn_pickle_node *cairn_pickle_line_long(struct cairn_pickle *pickle, const uint8_t *line,
                                                 size_t line_bytes, const char **why);
/* FLOAT: as Python prints it. */
struct cairn_pickle_node *cairn_pickle_line_float(struct cairn_pickle *pickle, const uint8_t *line,
                                                  size_t line_bytes, const char **why);
/* STRING: a quoted str of Python 2 with escapes. */
struct cairn_pickle_node *cairn_pickle_line_string(struct cairn_pickle *pickle, const uint8_t *line,
                                                   size_t line_bytes, const char **why);
/* UNICODE: Latin-1 with \uXXXX and \UXXXXXXXX; gives TEXT in UTF-8. */
struct cairn_pickle_node *cairn_pickle_line_unicode(struct cairn_pickle *pickle,
                                                    const uint8_t *line, size_t line_bytes,
                                                    const char **why);

#endif
